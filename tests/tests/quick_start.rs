//! The quick start of `docs/`: its commands print what the page shows, and leave nothing. `…` stands for what
//! differs from run to run.

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

/// The commands between two headings, with what a reader waits for, and what they print.
fn shown(from: &str, to: &str) -> anyhow::Result<(String, Vec<&'static str>)> {
    let section =
        PAGE.split_once(from).and_then(|(_, rest)| rest.split_once(to)).context("no such section")?.0;
    let (mut script, mut printed) = (String::new(), Vec::new());
    let (mut is_console, mut goes_on) = (false, false);
    for line in section.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
            continue;
        }
        let command = line.strip_prefix("# ").unwrap_or(line);
        // The programs are built already.
        let is_build = command.starts_with("cargo ") || command.starts_with("export PATH=");
        let is_command = goes_on || line.starts_with("# ");
        if is_console && !is_command {
            printed.extend(line.split('…').map(str::trim).filter(|it| !it.is_empty()));
        }
        if is_console && !is_build && is_command {
            script += &format!("{command}\n");
            let patience = PATIENCE.iter().filter(|(begin, _)| command.starts_with(begin));
            patience.for_each(|(_, wait)| script += &format!("{wait}\n"));
        }
        goes_on = is_console && line.ends_with('\\');
    }
    Ok((script, printed))
}

#[test]
fn the_quick_start_shows_what_it_says_and_leaves_nothing() {
    on_node(|_| {
        let (script, printed) = shown("## Start an agent", "## In a cluster")?;
        ensure!(printed.len() > 20, "the page shows little: {printed:?}");
        let programs = dist::binary("ferrule")?.parent().map(Path::to_path_buf).unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(std::iter::once(programs).chain(env::split_paths(&path)))?;
        let mut shell = Command::new("timeout");
        let shell = shell.args([LIMIT, "bash", "-c", &script]).env("PATH", path).current_dir("/run");
        let output = shell.output().context("cannot run the page's commands")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let mut rest: &str = &text;
        for expected in printed {
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
