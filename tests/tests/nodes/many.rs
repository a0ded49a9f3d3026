//! A cluster of a thousand nodes: what each costs, and that all of them leave nothing.

use std::time::Duration;

use anyhow::ensure;
use ferrule_tests::{
    apiserver::Resource,
    fabric::{Member, crowd, on_fabric},
    sys,
};

use crate::fixture::{wait_until_connected, with_pods};

const NODES: u16 = 1000;
/// On a machine with two CPUs that three agents and other tests share.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Of the agent's memory, in KiB, with what the allocator keeps of two thousand changes.
const MAX_GROWTH: u64 = 12 << 10;

fn wait_for_routes(node: &Member, ranges: usize) -> anyhow::Result<()> {
    sys::wait_until(&format!("{} has routes to {ranges} ranges", node.name), TIMEOUT, || {
        let routes = node.node_routes()?.len();
        ensure!(routes == ranges, "{routes} routes");
        Ok(true)
    })
}

#[test]
fn a_thousand_nodes_cost_little_and_leave_nothing() {
    with_pods(&[], |fabric, pods| {
        let [one, ..] = &fabric.nodes;
        let memory = || one.on(|node| node.agent_status("RssAnon"));
        let (rows, before) = (one.node_rows()?, memory()?);
        for number in 0..NODES {
            fabric.api.create(Resource::Nodes, crowd::node(number))?;
        }
        fabric.nodes.iter().try_for_each(|node| wait_for_routes(node, 4 + 2 * usize::from(NODES)))?;
        let all = rows.len() + 4 * usize::from(NODES);
        sys::wait_until("the map has all nodes", TIMEOUT, || Ok(one.node_rows()?.len() == all))?;
        // Changes give their memory back some seconds after the last one.
        sys::wait_until(&format!("{NODES} nodes cost at most {MAX_GROWTH} KiB"), TIMEOUT, || {
            let growth = memory()?.saturating_sub(before);
            ensure!(growth <= MAX_GROWTH, "{growth} KiB");
            println!("{NODES} nodes cost {growth} KiB");
            Ok(true)
        })?;
        wait_until_connected(pods)?;
        let routes = one.run("ip -4 route show proto 70")?;
        let direct = routes.lines().filter(|line| line.starts_with("172.") && line.contains("dev uplink"));
        ensure!(direct.count() == usize::from(NODES) / 10, "{routes}");

        for number in 0..NODES {
            fabric.api.delete(Resource::Nodes, "", &crowd::name(number))?;
        }
        fabric.nodes.iter().try_for_each(|node| wait_for_routes(node, 4))?;
        sys::wait_until("the map has the first nodes only", TIMEOUT, || Ok(one.node_rows()? == rows))?;
        wait_until_connected(pods)
    })
    .unwrap();
}

/// At the start of an agent of a cluster that exists.
#[test]
fn a_list_of_a_thousand_nodes_becomes_routes_and_rows_in_one_pass() {
    on_fabric(|fabric| {
        fabric.nodes.iter().try_for_each(Member::register)?;
        for number in 0..NODES {
            fabric.api.create(Resource::Nodes, crowd::node(number))?;
        }
        let [one, ..] = &fabric.nodes;
        one.begin_agent(&[])?;
        one.wait_until_ready()?;
        wait_for_routes(one, 4 + 2 * usize::from(NODES))?;
        let all = 12 + 4 * usize::from(NODES);
        sys::wait_until("the map has all nodes", TIMEOUT, || Ok(one.node_rows()?.len() == all))?;
        let log = one.on(|node| Ok(node.log()))?;
        ensure!(log.matches("changed the routes to other nodes").count() == 1, "{log}");
        println!("{NODES} nodes, from the list to routes and rows: {:?}", crowd::converged(&log)?);
        Ok(())
    })
    .unwrap();
}
