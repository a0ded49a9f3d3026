//! Broken clusters, diagnosed with only `ferrulectl`: each cause is named, with a remedy.

use std::process::Command;

use anyhow::ensure;
use ferrule_tests::{
    apiserver::{History, Resource, Switch, objects},
    dist,
    fabric::{Member, underlay},
    node::UPLINK_MTU,
    sys,
};

use crate::fixture::{TIMEOUT, wait_until_connected, with_pods};

/// Exit code, and what a command writes.
fn ctl(node: &Member, line: &str) -> anyhow::Result<(Option<i32>, String)> {
    let output =
        node.on(|_| Ok(Command::new(dist::binary("ferrulectl")?).args(line.split(' ')).output()?))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

/// Waits until a command ends with a code, and a line of its output has all of these.
fn wait_until_named(node: &Member, line: &str, code: i32, parts: &[&str]) -> anyhow::Result<()> {
    sys::wait_until(&format!("`{line}` names {parts:?}"), TIMEOUT, || {
        let (found, text) = ctl(node, line)?;
        let is_named = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        ensure!(found == Some(code) && is_named, "{found:?}: {text}");
        Ok(true)
    })
}

#[test]
fn a_tunnel_that_the_network_between_the_nodes_blocks_is_named() {
    with_pods(&[], |fabric, pods| {
        let [one, _, three] = &fabric.nodes;
        let (code, text) = ctl(one, "nodes --ask")?;
        ensure!(code == Some(0) && text.matches("after ").count() == 4, "{text}");
        let block = "table inet filter { chain forward { type filter hook forward priority 0; udp dport 4789 drop; }; }";
        let nft = |args: &[&str]| {
            sys::in_netns(&underlay::path(underlay::ROUTER), || sys::output(Command::new("nft").args(args)))
        };
        nft(&[block])?;
        ensure!(pods[0].ping(&pods[2].addresses[0].to_string()).is_err(), "the tunnel is not blocked");
        let remedy = "must accept the tunnel's UDP port (tunnel_port)";
        wait_until_named(one, "nodes --ask", 1, &[&three.ranges[0], "vxlan to", "none within", remedy])?;
        let (_, text) = ctl(one, "nodes --ask")?;
        ensure!(text.matches("after ").count() == 2, "the near node answers: {text}");
        ensure!(text.contains("2 of 4 ranges of other nodes have not answered"), "{text}");
        nft(&["delete table inet filter"])?;
        sys::wait_until("all nodes answer", TIMEOUT, || Ok(ctl(one, "nodes --ask")?.0 == Some(0)))?;
        wait_until_connected(pods)
    })
    .unwrap();
}

#[test]
fn a_link_with_a_smaller_mtu_is_named() {
    with_pods(&[], |fabric, [_, b, c]| {
        let [one, two, three] = &fabric.nodes;
        for (node, pod) in [(two, b), (three, c)] {
            node.run("ip link set uplink mtu 1300")?;
            let cause = "small packets get through, packets of";
            wait_until_named(
                one,
                "nodes --ask",
                1,
                &[&node.ranges[0], cause, "give the uplinks the smallest"],
            )?;
            pod.ping(underlay::WORLD_ADDRESSES[0])?;
            node.run(&format!("ip link set uplink mtu {}", UPLINK_MTU))?;
        }
        sys::wait_until("all nodes answer", TIMEOUT, || Ok(ctl(one, "nodes --ask")?.0 == Some(0)))
    })
    .unwrap();
}

#[test]
fn a_firewall_that_drops_what_a_node_forwards_is_named() {
    with_pods(&[], |fabric, [_, b, _]| {
        let [_, two, _] = &fabric.nodes;
        two.run("nft add table inet guard")?;
        two.run("nft add chain inet guard forward { type filter hook forward priority 0 ; policy drop ; }")?;
        let world = underlay::WORLD_ADDRESSES[0];
        ensure!(b.ping(world).is_err(), "the firewall does not drop");
        let cause = "impaired: the nftables chain inet guard forward at the hook forward has the policy drop";
        wait_until_named(two, "explain b", 1, &[cause])?;
        wait_until_named(two, "explain b", 1, &["to do: accept", "nft -a list chain inet guard forward"])?;
        two.run("nft delete table inet guard")?;
        b.ping(world).map(drop)
    })
    .unwrap();
}

#[test]
fn two_nodes_with_one_range_are_named() {
    with_pods(&[], |fabric, _| {
        let [one, two, _] = &fabric.nodes;
        let object = objects::node("node-4", &[&two.ranges[0]]);
        fabric.api.create(Resource::Nodes, objects::with_addresses(object, &["192.0.2.4".parse()?]))?;
        wait_until_named(
            one,
            "status",
            0,
            &["node-4", two.name, &two.ranges[0], "give one of the nodes another range"],
        )
    })
    .unwrap();
}

#[test]
fn a_route_of_another_program_in_a_nodes_range_is_named() {
    with_pods(&[], |fabric, [a, b, _]| {
        let [one, two, _] = &fabric.nodes;
        one.run("ip route add 10.244.2.0/25 via 192.0.2.254")?;
        sys::wait_until("the route holds", TIMEOUT, || Ok(a.ping(&b.addresses[0].to_string()).is_err()))?;
        let cause = "no: another program has a route to 10.244.2.0/25";
        wait_until_named(
            one,
            "nodes --ask",
            1,
            &[&two.ranges[0], cause, "192.0.2.254, which is no address of node-2"],
        )
    })
    .unwrap();
}

#[test]
fn an_api_server_that_is_away_is_named() {
    with_pods(&["--watch-retry-timeout", "2"], |fabric, [a, b, _]| {
        let [one, ..] = &fabric.nodes;
        fabric.api.switch(Switch::Restart { pause_ms: 600_000, history: History::Kept });
        let remedy = "check the API server, and this node's way to it";
        for watch in ["pods ", "nodes "] {
            wait_until_named(one, "status", 0, &[watch, "unhealthy", "Connection refused", remedy])?;
        }
        let (code, text) = ctl(one, "explain a")?;
        ensure!(code == Some(0), "running pods need no API server: {text}");
        a.ping(&b.addresses[0].to_string()).map(drop)
    })
    .unwrap();
}
