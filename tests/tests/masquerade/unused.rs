//! Addresses of the node's ranges that no pod has: unreachable at once, and no loop with the upstream router.

use std::{thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, Node, POD_V4, POD_V6, on_node, with_agent},
    pod::Pod,
    sys,
    world::{NEAR, World},
};

use super::TIMEOUT;

const UNUSED: [&str; 2] = ["10.244.0.99", "fd00:10:244::99"];
const RANGES: [&str; 2] = [POD_V4, POD_V6];

/// The exit code and the output of one ping, and how long it took.
fn ping(command: anyhow::Result<std::process::Command>, to: &str) -> anyhow::Result<(String, Duration)> {
    let start = std::time::Instant::now();
    let done = command?.args(["-n", "-c", "1", "-W", "4", to]).output()?;
    ensure!(!done.status.success(), "{to} answers");
    let text = [done.stdout, done.stderr].concat();
    Ok((String::from_utf8_lossy(&text).into_owned(), start.elapsed()))
}

/// Packets that the node has sent by its uplink.
fn sent() -> anyhow::Result<u64> {
    let link: serde_json::Value = serde_json::from_str(&sys::run("ip -s -j link show dev uplink")?)?;
    link.pointer("/0/stats64/tx/packets").and_then(serde_json::Value::as_u64).context("no counter")
}

fn routes() -> anyhow::Result<String> {
    let v4 = sys::run("ip route show type unreachable")?;
    Ok(v4 + &sys::run("ip -6 route show type unreachable proto 70")?)
}

fn is_unreachable(text: &str) -> bool {
    ["Destination Host Unreachable", "Address unreachable", "No route", "Destination unreachable"]
        .iter()
        .any(|it| text.contains(it))
}

#[test]
fn a_ping_to_an_unused_address_is_unreachable_at_once_and_does_not_loop() {
    with_agent(|node| {
        let world = World::make()?;
        let pod: Pod = node.attach("a")?;
        // The upstream router sends the ranges back.
        sys::run("ip netns exec outside sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        for (range, own) in RANGES.iter().zip([NODE_V4, NODE_V6]) {
            world.route_to(range, own)?;
        }
        for (to, near) in UNUSED.iter().zip(NEAR) {
            pod.ping(near)?;
            let before = sent()?;
            for command in [pod.command("ping"), sys::command_in(world.path(), "ping")] {
                let (text, took) = ping(command, to)?;
                ensure!(is_unreachable(&text) && took < Duration::from_secs(2), "{took:?}: {text}");
            }
            let (text, took) = ping(Ok(std::process::Command::new("ping")), to)?;
            ensure!(took < Duration::from_secs(2), "{took:?}: {text}");
            // The error to the world, and neighbour discovery.
            let sent = sent()? - before;
            ensure!(sent < 8, "{sent} packets left by the uplink");
        }
        // Pods are still reached.
        for address in &pod.addresses {
            sys::output(sys::command_in(world.path(), "ping")?.args([
                "-n",
                "-c",
                "1",
                "-W",
                "2",
                &address.to_string(),
            ]))?;
        }
        Ok(())
    })
    .unwrap();
}

fn repairs(node: &Node) -> anyhow::Result<f64> {
    node.count("ferrule_repairs_total{kind=\"range-route\",outcome=\"repaired\"}")
}

#[test]
fn a_deleted_unreachable_route_is_restored_on_notification() {
    with_agent(|node| {
        let before = routes()?;
        ensure!(before.contains("unreachable 10.244.0.0/24 proto 70"), "{before}");
        ensure!(before.contains("unreachable fd00:10:244::/64"), "{before}");
        for (number, damage) in [
            (1.0, format!("ip route del unreachable {POD_V4} proto 70")),
            (2.0, format!("ip -6 route del unreachable {POD_V6} proto 70")),
        ] {
            sys::run(&damage)?;
            sys::wait_until("the route is restored", TIMEOUT, || Ok(routes()? == before))
                .with_context(|| damage.clone())?;
            sys::wait_until("the repair is counted", TIMEOUT, || Ok(repairs(node)? == number))?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_range_that_another_program_routes_or_that_holds_an_own_address_gets_no_route() {
    on_node(|node| {
        sys::run(&format!("ip route add {POD_V4} via 192.0.2.254 dev uplink"))?;
        sys::run("ip -6 addr add fd00:10:244::1/128 dev lo nodad")?;
        node.start_agent(&RANGES)?;
        thread::sleep(Duration::from_secs(2));
        ensure!(routes()?.is_empty(), "{}", routes()?);
        let verified = node.ctl(&["verify"])?;
        ensure!(verified.contains(POD_V4) && verified.contains("another program"), "{verified}");
        ensure!(verified.contains(POD_V6) && verified.contains("fd00:10:244::1"), "{verified}");
        Ok(())
    })
    .unwrap();
}
