//! After `ferrule-agent uninstall`, a node has nothing of the agent, and still has what others put there.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context as _, ensure};
use ferrule_tests::{dist, sys};

use crate::fixture::{TIMEOUT, with_pods};

const INSTALL: [&str; 4] = ["--cni-bin-dir", "/run/cni/bin", "--cni-conf-dir", "/run/cni/net.d"];

/// What agents leave on the calling thread's node, by kind.
fn left() -> anyhow::Result<BTreeMap<&'static str, Vec<String>>> {
    let lines = |command: &str, wanted: fn(&str) -> bool| -> anyhow::Result<Vec<String>> {
        Ok(sys::run(command)?.lines().filter(|line| wanted(line)).map(ToOwned::to_owned).collect())
    };
    let below = |directory: &str| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    let ours = |line: &str| line.contains("ferrule") || line.contains("from_") || line.contains("to_");
    let mut left = BTreeMap::from([
        ("interfaces of pods", lines("ip -o link", |line| line.contains(": fr") && !line.contains("vxlan"))?),
        ("tunnel", lines("ip -o link", |line| line.contains("ferrule-vxlan"))?),
        ("routes", lines("ip route show table all proto 70", |_| true)?),
        ("IPv6 routes", lines("ip -6 route show table all proto 70", |_| true)?),
        ("rules", lines("ip rule", |line| line.contains("7070"))?),
        ("nftables", lines("nft list tables", ours)?),
        ("filters", lines("tc filter show dev uplink ingress", ours)?),
        ("egress filters", lines("tc filter show dev uplink egress", ours)?),
        ("pins", below("/sys/fs/bpf/ferrule")),
        ("state", below("/run/ferrule")),
        ("plugin", below("/run/cni/bin").into_iter().filter(|it| it.ends_with("ferrule")).collect()),
        ("configuration", below("/run/cni/net.d").into_iter().filter(|it| it.contains("ferrule")).collect()),
    ]);
    if left.get("filters").is_none_or(Vec::is_empty) {
        left.insert("qdisc", lines("tc qdisc show dev uplink", |line| line.contains("clsact"))?);
    }
    Ok(left)
}

fn uninstall() -> anyhow::Result<(bool, String)> {
    let output = Command::new(dist::binary("ferrule-agent")?).args(INSTALL).arg("uninstall").output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn an_uninstalled_node_has_nothing_of_the_agent() {
    with_pods(&INSTALL, |fabric, _| {
        let [one, ..] = &fabric.nodes;
        one.on(|node| {
            sys::wait_until("the configuration is installed", TIMEOUT, || {
                Ok(Path::new("/run/cni/net.d/05-ferrule.conflist").exists())
            })?;
            for (what, found) in left()? {
                ensure!(!found.is_empty(), "the agent has left no {what}, so that the test cannot fail");
            }
            fs::write("/run/cni/net.d/10-other.conflist", "{}")?;
            fs::write("/run/cni/net.d/04-chain.conflist", r#"{"plugins":[{"type":"ferrule"}]}"#)?;
            sys::run("ip route add unreachable 198.18.7.0/24 proto static")?;

            let (succeeded, log) = uninstall()?;
            ensure!(!succeeded && log.contains("stop the agent"), "beside a running agent: {log}");
            node.stop_agent()?;
            // Without pods that have ports of the node, the agent has no such table.
            sys::run("nft add table inet ferrule-ports")?;
            let (succeeded, log) = uninstall()?;
            ensure!(succeeded, "{log}");
            for (what, found) in left()? {
                ensure!(found.is_empty(), "left of {what}: {found:#?}\n{log}");
            }
            ensure!(!Path::new("/sys/fs/bpf/ferrule").exists() && !Path::new("/run/ferrule").exists());
            ensure!(Path::new("/run/cni/net.d/10-other.conflist").exists());
            ensure!(log.contains("04-chain.conflist"), "an operator's chain that calls the plugin: {log}");
            ensure!(!log.contains("10-other.conflist"), "{log}");
            sys::run("ip route del unreachable 198.18.7.0/24 proto static").context("a foreign route")?;

            let (succeeded, log) = uninstall()?;
            ensure!(succeeded && !log.contains("removed"), "nothing is left for a second run: {log}");
            Ok(())
        })
    })
    .unwrap();
}
