//! The quick start of `docs/`: its commands do what the page says, and leave nothing.

use std::{env, path::Path, process::Command};

use anyhow::{Context as _, ensure};
use ferrule_tests::{dist, node::on_node};

const PAGE: &str = include_str!("../../docs/quick-start.md");
/// Ends all processes of the script that is late, the agent too.
const LIMIT: &str = "120";
/// A reader needs longer to type a command than the agent to start and to repair.
const PATIENCE: [(&str, &str); 2] = [
    ("ferrule-agent --standalone", "until [ -S /run/ferrule/agent.sock ]; do sleep 0.1; done"),
    (
        "sleep 2",
        "until curl -s 127.0.0.1:9469/metrics | grep -q 'link-down\",outcome=\"repaired'; do sleep 0.1; done",
    ),
];

/// The commands between two headings, with what a reader waits for.
fn script(from: &str, to: &str) -> anyhow::Result<String> {
    let section =
        PAGE.split_once(from).and_then(|(_, rest)| rest.split_once(to)).context("no such section")?.0;
    let mut script = String::new();
    let (mut is_console, mut goes_on) = (false, false);
    for line in section.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
            continue;
        }
        let command = line.strip_prefix("# ").unwrap_or(line);
        // The programs are built already.
        let is_build = command.starts_with("cargo ") || command.starts_with("export PATH=");
        if is_console && !is_build && (goes_on || line.starts_with("# ")) {
            script += &format!("{command}\n");
            let patience = PATIENCE.iter().filter(|(begin, _)| command.starts_with(begin));
            patience.for_each(|(_, wait)| script += &format!("{wait}\n"));
        }
        goes_on = is_console && line.ends_with('\\');
    }
    Ok(script)
}

#[test]
fn the_quick_start_shows_what_it_says_and_leaves_nothing() {
    on_node(|_| {
        let script = script("## Start an agent", "## In a cluster")?;
        let programs = dist::binary("ferrule")?.parent().map(Path::to_path_buf).unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(std::iter::once(programs).chain(env::split_paths(&path)))?;
        let mut shell = Command::new("timeout");
        let shell = shell.args([LIMIT, "bash", "-c", &script]).env("PATH", path).current_dir("/run");
        let output = shell.output().context("cannot run the page's commands")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let mut rest: &str = &text;
        for expected in [
            "10.244.0.2/32",
            "10.244.0.3/32",
            "shop/db-0",
            "1 received",
            "shop/web-0: carried",
            "probe",
            "100% packet loss",
            "dropped spoofed_ipv4",
            "no deviations in 2 attachments",
            "ferrule_repairs_total{kind=\"link-down\",outcome=\"repaired\"} 1",
            "1 received",
            "[]",
        ] {
            rest = rest.split_once(expected).with_context(|| format!("no {expected}: {text}\n{errors}"))?.1;
        }
        ensure!(output.status.success() && !text.contains("failed"), "{text}\n{errors}");
        for left in ["/run/ferrule", "/sys/fs/bpf/ferrule", "/run/netns/web-0", "/run/netns/db-0"] {
            ensure!(!Path::new(left).exists(), "{left} is left");
        }
        Ok(())
    })
    .unwrap();
}
