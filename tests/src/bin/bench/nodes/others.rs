//! Node objects without nodes: addresses on the cable's network, and ranges.

use std::{thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    fabric::Fabric,
    sys,
};

use super::{cable::Cable, ferrule::members};

/// On a machine with two CPUs that the agents share.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The agents work for a moment after so many changes.
const SETTLE: Duration = Duration::from_secs(2);
/// The routes to the one other node that exists, one for each family.
const ROUTES: usize = 2;

/// Runs a measurement while the cluster has so many further Node objects, and both agents know them.
pub(super) fn with_others<T>(
    fabric: &Fabric,
    cable: &Cable,
    count: u16,
    run: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let [v4, v6] = cable.networks;
    let v4 = v4.strip_suffix("0.").context("the cable's network has no room")?;
    for number in 0..count {
        let [high, low] = number.to_be_bytes();
        // Beside the nodes' own, and with ranges outside those of cable and nodes.
        let addresses = [format!("{v4}{}.{low}", 1 + high).parse()?, format!("{v6}1:{number:x}").parse()?];
        let ranges = [format!("172.{}.{low}.0/24", 16 + high), format!("fd01:0:0:{number:x}::/64")];
        let node = objects::node(&name(number), &ranges.each_ref().map(String::as_str));
        fabric.api.create(Resource::Nodes, objects::with_addresses(node, &addresses))?;
    }
    wait_for_routes(fabric, ROUTES * (1 + usize::from(count)))?;
    thread::sleep(SETTLE);
    let result = run();
    for number in 0..count {
        fabric.api.delete(Resource::Nodes, "", &name(number))?;
    }
    wait_for_routes(fabric, ROUTES)?;
    result
}

fn wait_for_routes(fabric: &Fabric, count: usize) -> anyhow::Result<()> {
    members(fabric).iter().try_for_each(|node| {
        sys::wait_until(&format!("{} has {count} routes to other nodes", node.name), TIMEOUT, || {
            let routes = node.node_routes()?.len();
            ensure!(routes == count, "{routes} routes");
            Ok(true)
        })
    })
}

fn name(number: u16) -> String {
    format!("other-{number}")
}
