//! Traffic between nodes, with the packets on the wire, and to and from the outside.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    capture::{Frames, VNI},
    fabric::{Fabric, Member, underlay::WORLD_ADDRESSES},
    forge,
    pod::Pod,
    sys::wait_until,
    traffic,
    wire::Wire,
};

use super::{Pods, TIMEOUT};
use crate::report::Report;

const STREAM: u64 = 256 << 20;
const DROPS: &str = r#"ferrule_link_drops_total{interface="ferrule-vxlan",reason="tunnel_outer"}"#;

pub(super) fn connect(fabric: &Fabric, pods: &Pods, report: &mut Report) -> anyhow::Result<()> {
    report.chapter("Connectivity, and what is on the wire of node-1");
    let [one, two, three] = &fabric.nodes;
    report.output(
        "ip route show proto 70, on node-1",
        &one.node_routes()?.into_iter().collect::<Vec<_>>().join("\n"),
    );
    let Pods { web, vip, db, job } = pods;
    local(web, vip, report)?;
    ping(one, web, db, "node-2, on the same segment: directly", |seen| seen.expect_bare(), report)?;
    let is_tunnelled = |seen: &Frames| seen.expect_tunnelled(&one.addresses, &three.addresses);
    ping(one, web, job, "node-3, behind the router: by VXLAN", is_tunnelled, report)?;
    report.fact("web-0 reaches the addresses of all nodes, and all nodes reach web-0", || {
        for node in &fabric.nodes {
            node.addresses.iter().try_for_each(|address| web.ping(&address.to_string()).map(drop))?;
            web.addresses.iter().try_for_each(|address| node.ping(*address).map(drop))?;
        }
        Ok(())
    })?;
    for (to, home) in [(vip, one), (db, two), (job, three)] {
        let address = to.addresses.first().context("no address")?;
        let what =
            format!("web-0 sends {} MiB over TCP to {} on {}, intact", STREAM >> 20, to.name, home.name);
        let streamed = report.fact(&what, || traffic::stream(web.path(), to.path(), *address, STREAM))?;
        println!("   {:.1} Gbit/s, every byte verified", streamed.gbit_per_second());
    }
    Ok(())
}

fn local(web: &Pod, vip: &Pod, report: &mut Report) -> anyhow::Result<()> {
    report.fact("web-0 reaches vip-0 on the same node by ping over IPv4 and IPv6", || {
        // The further address is another interface's.
        vip.addresses.iter().take(2).try_for_each(|address| web.ping(&address.to_string()).map(drop))
    })
}

/// Pings a pod of another node, and shows and judges what is on the wire.
fn ping(
    node: &Member,
    from: &Pod,
    to: &Pod,
    way: &str,
    judge: impl Fn(&Frames) -> anyhow::Result<()>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let what = format!("{} reaches {} on {way}", from.name, to.name);
    let seen = report.fact(&what, || {
        let capture = node.capture()?;
        to.addresses.iter().try_for_each(|address| from.ping(&address.to_string()).map(drop))?;
        let all = capture.end()?;
        let pairs = from.addresses.iter().zip(&to.addresses);
        let seen = pairs.flat_map(|(from, to)| all.between(*from, *to).0);
        let seen = Frames(seen.collect());
        judge(&seen)?;
        Ok(seen)
    })?;
    report.output(&format!("capture at the cable of {}", node.name), &seen.to_string());
    Ok(())
}

/// A world behind the router, which has no route to pods.
pub(super) fn to_world(fabric: &Fabric, pods: &Pods, report: &mut Report) -> anyhow::Result<()> {
    report.chapter("To the world");
    let world = fabric.world();
    for (pod, node) in [(&pods.web, 0), (&pods.job, 2)] {
        let node = fabric.nodes.get(node).context("no such node")?;
        for (own, to) in node.addresses.iter().zip(WORLD_ADDRESSES) {
            let what =
                format!("{} connects to {to}, which sees the address of {}, {own}", pod.name, node.name);
            report.fact(&what, || {
                let seen = [world.tcp_source(pod, to)?, world.udp_source(pod, to)?];
                ensure!(seen.iter().all(|it| it.ip() == *own), "the world sees {seen:?}");
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// A stranger on the segment sends VXLAN.
pub(super) fn forge(fabric: &Fabric, pods: &Pods, report: &mut Report) -> anyhow::Result<()> {
    report.chapter("A stranger on the segment");
    let [one, ..] = &fabric.nodes;
    let (wire, at_pod) = (fabric.forger()?, Wire::open(pods.web.path(), "eth0")?);
    let (Some(from), Some(to)) = (pods.job.addresses.first(), pods.web.addresses.first()) else {
        anyhow::bail!("pods without addresses")
    };
    let mark = b"forged";
    let inner = forge::datagram(*from, *to, 9999, mark)?;
    report.fact("VXLAN from a stranger, with job-0's address inside, does not arrive at web-0", || {
        let counter = || one.on(|node| node.count(DROPS));
        let before = counter()?;
        forge::send_tunnelled(&wire, "192.0.2.66".parse()?, one, VNI, &inner)?;
        wait_until("the drop is counted", TIMEOUT, || Ok(counter()? > before))?;
        let arrived = at_pod.receive(Duration::from_millis(100), |frame| frame.ends_with(mark))?;
        ensure!(arrived.is_none(), "the packet has arrived");
        Ok(())
    })?;
    let drops = one.on(|node| node.http("/metrics"))?.1;
    let drops: Vec<_> = drops.lines().filter(|line| line.starts_with("ferrule_link_drops_total{")).collect();
    report.output("curl -s http://127.0.0.1:9469/metrics | grep ^ferrule_link_drops", &drops.join("\n"));
    Ok(())
}
