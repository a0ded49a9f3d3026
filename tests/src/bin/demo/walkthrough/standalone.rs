//! A node without Kubernetes: the agent's own IPAM allocates addresses.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, Node, POD_V4, POD_V6, SOCKET},
    pod::Pod,
    sys, traffic,
    world::{FAR, World},
};

use crate::report::Report;

const STREAM: u64 = 512 << 20;
/// Of the node's range.
const UNUSED: &str = "10.244.0.250";

pub(crate) fn run(node: &mut Node, report: &mut Report) -> anyhow::Result<()> {
    report.chapter("A node and its agent");
    println!(
        "   The node consists of a network and a mount namespace, with its own /run and BPF file system."
    );
    println!("   # ferrule-agent --standalone --pod-cidr {POD_V4} --pod-cidr {POD_V6}");
    report.fact("the agent loads its eBPF programs and serves", || node.start_agent(&[POD_V4, POD_V6]))?;
    let runtime = node.runtime()?;
    let empty = node.kernel_state()?;

    report.chapter("Attach three pods, as a container runtime does");
    let mut add = |name: &str| -> anyhow::Result<Pod> {
        let mut pod = node.pod(name)?;
        super::add(&runtime, report, &mut pod, " succeeds", name == "web-0")?;
        Ok(pod)
    };
    let pods = [add("web-0")?, add("web-1")?, add("db-0")?];
    let [web, other, db] = &pods;
    connect(&pods, report)?;
    to_world(web, report)?;
    report.chapter("Operator tools");
    super::operator_tools(node, &[web, other, db], report)?;
    super::anti_spoofing(node, web, db, report)?;
    crash(node, other, db, report)?;
    report.fact("the agent restarts and recovers its attachments", || {
        node.start_again()?;
        ensure!(node.attachments()?.len() == pods.len());
        Ok(())
    })?;

    report.chapter("CHECK and DEL");
    super::detach(&runtime, pods, report)?;
    report.fact("no interface, route or map entry of the pods remains", || {
        node.wait_for_kernel_state(&empty)
    })?;
    report.fact("the agent lists no attachment", || {
        let left = node.attachments()?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    report.fact("the agent shuts down gracefully on SIGTERM", || node.stop_agent())
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

fn crash(node: &mut Node, from: &Pod, to: &Pod, report: &mut Report) -> anyhow::Result<()> {
    let address = to.addresses.first().context("the pod has no address")?.to_string();
    report.fact("packets flow after the agent is killed by SIGKILL", || {
        node.kill_agent()?;
        from.ping(&address)
    })?;
    println!("   {SOCKET} is now a stale socket");
    Ok(())
}
