//! Nodes leave, come back with other ranges, and swap them, with and without a running agent.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    fabric::{Member, destination, on_fabric},
    pod::Pod,
    probe::Probe,
    sys,
};
use serde_json::json;

use crate::fixture::{TIMEOUT, captured, wait_until_connected, wait_until_reached, with_pods};

const NEW_RANGES: [&str; 2] = ["10.245.2.0/24", "fd00:10:245:2::/64"];

/// Waits until a node has routes to exactly these ranges of other nodes, and exactly their rows and its own
/// in the map `NODES`.
fn wait_until_exact(node: &Member, others: &[(&Member, &[&str])]) -> anyhow::Result<()> {
    let host = |address: &IpAddr| format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
    let ranges = others.iter().flat_map(|(_, ranges)| ranges.iter().map(|it| (*it).to_owned()));
    let ranges: BTreeSet<String> = ranges.collect();
    let addresses = others.iter().flat_map(|(other, _)| &other.addresses).chain(&node.addresses).map(host);
    let rows: BTreeSet<String> = addresses.chain(ranges.clone()).chain(node.ranges.clone()).collect();
    sys::wait_until(&format!("{} has the other nodes' ranges", node.name), TIMEOUT, || {
        let routes = node.node_routes()?;
        let found: BTreeSet<_> = routes.iter().map(|it| destination(it).to_owned()).collect();
        ensure!(found == ranges && routes.len() == ranges.len(), "routes {routes:?}, expected {ranges:?}");
        let found = node.node_rows()?;
        ensure!(found == rows, "rows {found:?}, expected {rows:?}");
        // Of all ranges of a family, the length is the same.
        let found = node.indexed_rows()?;
        ensure!(found == rows, "rows in the index {found:?}, expected {rows:?}");
        Ok(true)
    })
}

fn ranges(node: &Member) -> [&str; 2] {
    node.ranges.each_ref().map(String::as_str)
}

fn reached(from: &Pod, to: &Pod) -> anyhow::Result<()> {
    to.addresses.iter().try_for_each(|address| wait_until_reached(from, *address))
}

#[test]
fn a_range_inside_of_a_service_cidr_of_the_api_is_refused_by_name() {
    on_fabric(|fabric| {
        let [one, two, three] = &fabric.nodes;
        let [v4, v6] = ranges(two);
        fabric.api.create(Resource::ServiceCidrs, objects::service_cidr("kubernetes", &[v4]))?;
        fabric.nodes.iter().try_for_each(Member::register)?;
        one.begin_agent(&[])?;
        one.wait_until_ready()?;
        sys::wait_until("the status names the range", TIMEOUT, || {
            let status = one.status()?;
            ensure!(status.contains(&format!("overlaps the range {v4} of Services")), "{status}");
            Ok(true)
        })?;
        wait_until_exact(one, &[(two, &[v6]), (three, &ranges(three))])
    })
    .unwrap();
}

#[test]
fn a_node_that_comes_back_with_another_range_is_reached_there_and_nowhere_else() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, two, three] = &fabric.nodes;
        two.unregister()?;
        wait_until_exact(one, &[(three, &ranges(three))])?;
        wait_until_exact(three, &[(one, &ranges(one))])?;
        for old in &b.addresses {
            let frames = captured(two, || {
                let ping = a.run(&format!("ping -n -c 1 -W 1 {old}"));
                ensure!(ping.is_err(), "{} reaches {old}", a.name);
                Ok(())
            })?;
            frames.to(*old).expect_none()?;
        }
        two.register_with(&NEW_RANGES)?;
        wait_until_exact(one, &[(two, &NEW_RANGES), (three, &ranges(three))])?;
        wait_until_exact(three, &[(one, &ranges(one)), (two, &NEW_RANGES)])?;
        let new = two.attach("new")?;
        ensure!(new.addresses.iter().all(|it| it.to_string().contains("245")), "{:?}", new.addresses);
        [a, c].into_iter().try_for_each(|from| reached(from, &new))
    })
    .unwrap();
}

#[test]
fn packets_flow_while_a_killed_agent_misses_a_change_that_its_successor_makes_up_for() {
    with_pods(&[], |fabric, [a, _, c]| {
        let [one, two, three] = &fabric.nodes;
        let probes = [(a, c), (c, a)].map(|(from, to)| {
            to.addresses.iter().map(|it| Probe::start(from.path(), to.path(), *it)).collect::<Vec<_>>()
        });
        let probes = probes.into_iter().flatten().collect::<anyhow::Result<Vec<_>>>()?;
        let flow = |when| probes.iter().try_for_each(|probe| probe.expect_flow(when));
        flow("at first")?;
        one.on(|node| node.kill_agent())?;
        flow("after the agent was killed")?;
        two.unregister()?;
        two.register_with(&NEW_RANGES)?;
        wait_until_exact(three, &[(one, &ranges(one)), (two, &NEW_RANGES)])?;
        one.on(|node| node.start_again())?;
        wait_until_exact(one, &[(two, &NEW_RANGES), (three, &ranges(three))])?;
        flow("after the agent has started again")?;
        sys::wait_until("node-2 has its new ranges", TIMEOUT, || Ok(two.status()?.contains(NEW_RANGES[0])))?;
        reached(a, &two.attach("new")?)?;
        for probe in probes {
            probe.end()?.expect_all()?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn nodes_deleted_while_the_agent_was_down_leave_nothing() {
    with_pods(&[], |fabric, _| {
        let [one, two, three] = &fabric.nodes;
        one.on(|node| node.stop_agent())?;
        ensure!(one.node_routes()?.len() == 4, "{:?}", one.node_routes()?);
        two.unregister()?;
        three.unregister()?;
        one.on(|node| node.start_again())?;
        wait_until_exact(one, &[])?;
        for family in ["-4", "-6"] {
            let routes = one.run(&format!("ip {family} route show table all"))?;
            ensure!(!routes.contains("encap"), "{routes}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn nodes_that_swap_their_ranges_are_reached_whatever_the_order_of_the_events() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, two, three] = &fabric.nodes;
        two.on(|node| node.runtime()?.del(b))?;
        three.on(|node| node.runtime()?.del(c))?;
        // The new owner of node 3's ranges is added before node 3 is deleted.
        two.unregister()?;
        two.register_with(&ranges(three))?;
        three.unregister()?;
        three.register_with(&ranges(two))?;
        wait_until_exact(one, &[(two, &ranges(three)), (three, &ranges(two))])?;
        for (node, now) in [(two, ranges(three)), (three, ranges(two))] {
            sys::wait_until("the node has its new ranges", TIMEOUT, || Ok(node.status()?.contains(now[0])))?;
        }
        let (near, far) = (two.attach("near")?, three.attach("far")?);
        for from in [(a, &near), (a, &far), (&near, &far)] {
            reached(from.0, from.1)?;
        }
        for ((source, near), far) in a.addresses.iter().zip(&near.addresses).zip(&far.addresses) {
            let frames = captured(one, || {
                a.ping(&near.to_string())?;
                a.ping(&far.to_string()).map(drop)
            })?;
            frames.between(*source, *near).expect_bare()?;
            frames.between(*source, *far).expect_tunnelled(&one.addresses, &three.addresses)?;
        }
        Ok(())
    })
    .context("node 2 and node 3 swap")
    .unwrap();
}

#[test]
fn a_node_with_other_addresses_is_reached_there() {
    const NEW: [&str; 2] = ["192.0.2.22", "2001:db8:1::22"];
    with_pods(&[], |fabric, pods| {
        let [one, two, three] = &fabric.nodes;
        let [a, b, c] = pods;
        let addresses = NEW.map(|address| json!({ "type": "InternalIP", "address": address }));
        for ((new, old), length) in NEW.iter().zip(&two.addresses).zip([24, 64]) {
            two.run(&format!("ip addr del {old}/{length} dev uplink"))?;
            two.run(&format!("ip addr add {new}/{length} dev uplink nodad"))?;
        }
        for (family, router) in [("-4", "192.0.2.254"), ("-6", "2001:db8:1::254")] {
            two.run(&format!("ip {family} route replace default via {router} dev uplink"))?;
        }
        fabric.api.patch(Resource::Nodes, "", two.name, json!({ "status": { "addresses": addresses } }))?;
        wait_until_connected(pods)?;
        let new: Vec<IpAddr> = NEW.iter().map(|it| it.parse()).collect::<Result<_, _>>()?;
        for ((to, near), far) in b.addresses.iter().zip(&a.addresses).zip(&c.addresses) {
            let frames = captured(two, || {
                a.ping(&to.to_string())?;
                c.ping(&to.to_string()).map(drop)
            })?;
            frames.between(*near, *to).expect_bare()?;
            frames.between(*far, *to).expect_tunnelled(&new, &three.addresses)?;
        }
        let routes = one.node_routes()?;
        ensure!(routes.iter().any(|it| it.contains("via 192.0.2.22 ")), "{routes:?}");
        Ok(())
    })
    .unwrap();
}
