//! The demo's two walkthroughs and their common chapters.

pub(crate) mod cluster;
pub(crate) mod standalone;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, PINS},
    pod::Pod,
    runtime::Runtime,
    sys,
};
use serde_json::Value;

use crate::report::Report;

/// From TEST-NET-2 (RFC 5737): no pod owns this address.
const FOREIGN: &str = "198.51.100.66";

/// Attaches a pod. `verbose` prints the call and its result.
fn add(
    runtime: &Runtime,
    report: &mut Report,
    pod: &mut Pod,
    what: &str,
    verbose: bool,
) -> anyhow::Result<()> {
    if verbose {
        println!(
            "   # CNI_COMMAND=ADD CNI_CONTAINERID={:.12}… CNI_NETNS={} CNI_IFNAME=eth0 \\",
            pod.container_id,
            pod.netns.display()
        );
        println!("     ferrule <<< '{}'", runtime.config());
    }
    let result = report.fact(&format!("ADD {}{what}", pod.name), || runtime.add(pod))?;
    pod.attached(&result)?;
    if verbose {
        report.output("CNI result", &serde_json::to_string(&result)?);
    }
    Ok(())
}

/// Shows `ferrulectl attachments` and the pinned maps.
fn operator_tools(node: &Node, pods: &[&Pod], report: &mut Report) -> anyhow::Result<()> {
    report.output("ferrulectl attachments", &node.ctl(&["attachments"])?);
    report.fact("the counters of every pod show traffic", || {
        let counted = |attachment: &&Value, of: &str| {
            let counted = attachment.pointer(&format!("/counters/{of}")).and_then(Value::as_u64);
            counted.unwrap_or_default() > 0
        };
        let attachments = node.attachments()?;
        for pod in pods {
            let of_pod = |it: &&Value| it.get("pod_name").and_then(Value::as_str) == Some(&pod.name);
            let all = attachments.iter().filter(of_pod);
            let mut busy = all.filter(|it| counted(it, "egress_packets") && counted(it, "ingress_packets"));
            ensure!(busy.next().is_some(), "no traffic of {} in {attachments:#?}", pod.name);
        }
        Ok(())
    })?;
    for (map, key) in [("VIFS", "by interface"), ("ENDPOINTS", "by address")] {
        let dump = show_map(map, key, report)?;
        if map == "VIFS" {
            report.fact("VIFS names every pod", || {
                for pod in pods {
                    let name = format!("\"default/{}\"", pod.name);
                    ensure!(dump.contains(&name), "{} is not in {dump}", pod.name);
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Shows the first entry of a map, and returns all of it.
fn show_map(map: &str, key: &str, report: &Report) -> anyhow::Result<String> {
    let line = format!("bpftool map dump pinned {PINS}/{map}");
    let dump = sys::run(&line)?;
    // Only the first entry, to keep the output readable.
    let first: Vec<&str> = dump.lines().take_while(|line| !line.starts_with("    },{")).collect();
    report.output(&format!("{line}    ({key}; first entry)"), &first.join("\n"));
    Ok(dump)
}

fn anti_spoofing(node: &Node, from: &Pod, to: &Pod, report: &mut Report) -> anyhow::Result<()> {
    let address = to.addresses.first().context("the pod has no address")?.to_string();
    report.chapter("Anti-spoofing");
    report.fact(&format!("packets of {} with a foreign source address are dropped", from.name), || {
        from.run(&format!("ip addr add {FOREIGN}/32 dev eth0"))?;
        ensure!(
            from.run(&format!("ping -n -c 1 -W 1 -I {FOREIGN} {address}")).is_err(),
            "the spoofed ping reached {}",
            to.name
        );
        from.run(&format!("ip addr del {FOREIGN}/32 dev eth0")).map(drop)
    })?;
    report.fact("the drops are counted by reason, for the interface that sent them", || {
        let attachments = node.attachments()?;
        let own = |it: &&Value| it.get("pod_name").and_then(Value::as_str) == Some(&from.name);
        let dropped =
            attachments.iter().find(own).and_then(|it| it.pointer("/counters/egress_drops/spoofed_ipv4"));
        ensure!(dropped.and_then(Value::as_u64).unwrap_or_default() > 0, "{attachments:#?}");
        Ok(())
    })?;
    report.fact("packets with the pod's own address still pass", || from.ping(&address)).map(drop)
}

/// Detaches pods of one node.
fn detach(runtime: &Runtime, pods: impl IntoIterator<Item = Pod>, report: &mut Report) -> anyhow::Result<()> {
    for pod in pods {
        let what = format!("CHECK {} finds no deviation; DEL succeeds", pod.name);
        report.fact(&what, || {
            runtime.check(&pod)?;
            runtime.del(&pod)
        })?;
        pod.remove()?;
    }
    Ok(())
}
