//! The demo's two walkthroughs and their common chapters.

pub(crate) mod cluster;
pub(crate) mod standalone;

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, Node, PINS, SOCKET},
    pod::Pod,
    runtime::Runtime,
    sys, traffic,
    world::{FAR, World},
};
use serde_json::Value;

use crate::report::Report;

const STREAM: u64 = 512 << 20;
/// From TEST-NET-2 (RFC 5737): no pod owns this address.
const FOREIGN: &str = "198.51.100.66";
/// Of the node's range.
const UNUSED: &str = "10.244.0.250";

fn introduce(report: &Report) {
    report.chapter("A node and its agent");
    println!(
        "   The node consists of a network and a mount namespace, with its own /run and BPF file system."
    );
}

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

fn connect(pods: &[Pod], report: &mut Report) -> anyhow::Result<()> {
    report.chapter("Connectivity");
    for from in pods {
        for to in pods.iter().filter(|to| to.name != from.name) {
            let both = [from, to].iter().all(|pod| pod.addresses.iter().any(|it| it.is_ipv6()));
            let what = if both { "IPv4 and IPv6" } else { "IPv4" };
            report.fact(&format!("{} reaches {} by ping over {what}", from.name, to.name), || {
                // The first address of each family belongs to eth0.
                let v4 = to.addresses.iter().find(|it| it.is_ipv4());
                let v6 = to.addresses.iter().find(|it| it.is_ipv6() && both);
                v4.into_iter().chain(v6).try_for_each(|address| from.ping(&address.to_string()).map(drop))
            })?;
        }
    }
    let (Some(web), Some(db)) = (pods.first(), pods.get(2)) else { anyhow::bail!("too few pods") };
    report.fact(&format!("{} reaches the node by ping over IPv4 and IPv6", web.name), || {
        [NODE_V4, NODE_V6].iter().try_for_each(|address| web.ping(address).map(drop))
    })?;
    for address in &db.addresses {
        let what =
            format!("{} sends {} MiB over TCP to {}, {address}, intact", web.name, STREAM >> 20, db.name);
        let streamed = report.fact(&what, || traffic::stream(web.path(), db.path(), *address, STREAM))?;
        println!("   {:.1} Gbit/s, every byte verified", streamed.gbit_per_second());
    }
    let home = PathBuf::from("/proc/thread-self/ns/net");
    for address in [NODE_V4, NODE_V6] {
        let what = format!("{} sends {} MiB over TCP to the node, {address}, intact", web.name, STREAM >> 22);
        report.fact(&what, || traffic::stream(web.path(), &home, address.parse()?, STREAM >> 2))?;
    }
    Ok(())
}

/// A world behind the uplink that has no route to pods.
fn to_world(from: &Pod, report: &mut Report) -> anyhow::Result<()> {
    report.chapter("To the world");
    let world = World::make()?;
    for (node, to) in [NODE_V4, NODE_V6].iter().zip(FAR) {
        report.fact(
            &format!("{} connects to {to}, which sees the node's address {node}", from.name),
            || {
                let seen = [world.tcp_source(from, to)?, world.udp_source(from, to)?];
                ensure!(seen.iter().all(|it| it.ip().to_string() == *node), "the world sees {seen:?}");
                Ok(())
            },
        )?;
    }
    report.output("nft list table inet ferrule", &sys::run("nft list table inet ferrule")?);
    report.fact(&format!("{UNUSED}, an address that no pod has, is unreachable at once"), || {
        let ping = from.command("ping")?.args(["-n", "-c", "1", "-W", "5", UNUSED]).output()?;
        let text = String::from_utf8_lossy(&ping.stdout).into_owned();
        ensure!(text.contains("Destination Host Unreachable"), "{text}");
        Ok(())
    })
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
    for (map, key) in
        [("VIFS", "by interface"), ("ENDPOINTS", "by address"), ("VIF_COUNTERS", "packets and drops")]
    {
        let line = format!("bpftool map dump pinned {PINS}/{map}");
        let dump = sys::run(&line)?;
        // Only the first entry, to keep the output readable.
        let first: Vec<&str> = dump.lines().take_while(|line| !line.starts_with("    },{")).collect();
        report.output(&format!("{line}    ({key}; first entry)"), &first.join("\n"));
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

fn crash(node: &mut Node, from: &Pod, to: &Pod, report: &mut Report) -> anyhow::Result<()> {
    let address = to.addresses.first().context("the pod has no address")?.to_string();
    report.fact("packets flow after the agent is killed by SIGKILL", || {
        node.kill_agent()?;
        from.ping(&address)
    })?;
    println!("   {SOCKET} is now a stale socket");
    Ok(())
}

/// Detaches all pods and verifies that nothing is left.
fn end(
    node: &mut Node,
    runtime: &Runtime,
    pods: impl IntoIterator<Item = Pod>,
    empty: &[String],
    report: &mut Report,
) -> anyhow::Result<()> {
    report.chapter("CHECK and DEL");
    for pod in pods {
        let what = format!("CHECK {} finds no deviation; DEL succeeds", pod.name);
        report.fact(&what, || {
            runtime.check(&pod)?;
            runtime.del(&pod)
        })?;
        pod.remove()?;
    }
    report
        .fact("no interface, route or map entry of the pods remains", || node.wait_for_kernel_state(empty))?;
    report.fact("the agent lists no attachment", || {
        let left = node.attachments()?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    report.fact("the agent shuts down gracefully on SIGTERM", || node.stop_agent())
}
