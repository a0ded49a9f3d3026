//! The time from the list of a large cluster's nodes until all routes and rows exist.

use std::time::Duration;

use anyhow::ensure;
use ferrule_tests::{
    apiserver::Resource,
    fabric::{Member, crowd, on_fabric},
    sys,
};

use crate::stats::Series;

/// For an agent in a debug build, on a machine with two CPUs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the first agent of a node, in a cluster of so many further nodes, so many times.
pub(super) fn measure(nodes: u16, times: usize) -> anyhow::Result<Series> {
    let mut took = Series::default();
    for _ in 0..times {
        took.push(on_fabric(|fabric| {
            fabric.nodes.iter().try_for_each(Member::register)?;
            for number in 0..nodes {
                fabric.api.create(Resource::Nodes, crowd::node(number))?;
            }
            let [one, ..] = &fabric.nodes;
            one.begin_agent(&[])?;
            one.wait_until_ready()?;
            // The list has two more nodes with two ranges each.
            let all = 2 * (2 + usize::from(nodes));
            sys::wait_until(&format!("{all} routes"), TIMEOUT, || {
                let routes = one.node_routes()?.len();
                ensure!(routes == all, "{routes} routes");
                one.on(|node| crowd::converged(&node.log())).map(|_| true)
            })?;
            one.on(|node| crowd::converged(&node.log()))
        })?);
    }
    Ok(took)
}
