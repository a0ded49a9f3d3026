//! A node with very many routes of other programs.

use std::{fmt::Write as _, thread, time::Duration};

use anyhow::ensure;
use ferrule_tests::{
    apiserver::{Resource, objects},
    fabric::Member,
    sys,
};

use crate::fixture::{TIMEOUT, with_pods};

const ROUTES: u32 = 20_000;
const BATCH: usize = 1000;
const PAUSE: Duration = Duration::from_millis(150);
/// Messages of a pass on a node with two others.
const FEW: f64 = 200.0;

/// Passes of the agent, and messages that these have read.
fn passes(node: &Member) -> anyhow::Result<[f64; 2]> {
    node.on(|node| {
        Ok([node.metric("ferrule_node_passes_total")?, node.metric("ferrule_node_pass_messages_total")?])
    })
}

/// Adds as many routes to networks of the world, no faster than the agent reads the notifications.
fn add_routes(node: &Member) -> anyhow::Result<()> {
    for begin in (0..ROUTES).step_by(BATCH) {
        let mut lines = String::new();
        for number in (begin..).take(BATCH) {
            let [_, _, high, low] = number.to_be_bytes();
            writeln!(lines, "route add 20.{high}.{low}.0/24 via 192.0.2.254 proto bird")?;
        }
        node.on(|_| {
            std::fs::write("/run/routes", lines)?;
            sys::run("ip -batch /run/routes").map(drop)
        })?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

#[test]
fn a_pass_reads_few_messages_however_many_routes_other_programs_have() {
    with_pods(&[], |fabric, [a, b, _]| {
        let [one, two, _] = &fabric.nodes;
        let quiet = passes(one)?;
        add_routes(one)?;
        let [before, read] = passes(one)?;
        // One pass may have been due for another reason.
        ensure!(before - quiet[0] <= 1.0, "routes to the world have caused {} passes", before - quiet[0]);

        // Each join and each leave is a pass.
        let routes = one.node_routes()?.len();
        for number in 0..4 {
            let other = objects::node("node-4", &["10.244.4.0/24"]);
            fabric.api.create(Resource::Nodes, objects::with_addresses(other, &["192.0.2.4".parse()?]))?;
            sys::wait_until("node 4 has a route", TIMEOUT, || Ok(one.node_routes()?.len() > routes))?;
            fabric.api.delete(Resource::Nodes, "", "node-4")?;
            sys::wait_until("node 4 has none", TIMEOUT, || Ok(one.node_routes()?.len() == routes))?;
            a.ping(&b.addresses[number % 2].to_string())?;
        }
        let [now, all] = passes(one)?;
        ensure!(now - before >= 8.0, "{} passes", now - before);
        let each = (all - read) / (now - before);
        ensure!(each < FEW, "a pass reads {each} messages");

        // All routes are read again for one that leads to pods.
        let to = b.addresses[0];
        one.run(&format!("ip route add blackhole {to}"))?;
        sys::wait_until("the route holds", TIMEOUT, || Ok(a.ping(&to.to_string()).is_err()))?;
        let [_, whole] = passes(one)?;
        ensure!(whole - all >= f64::from(ROUTES), "{} messages, of {ROUTES} routes", whole - all);
        one.run(&format!("ip route del blackhole {to}"))?;
        sys::wait_until("the pod is reached again", TIMEOUT, || a.ping(&to.to_string()).map(|_| true))?;
        ensure!(one.node_routes()?.iter().any(|it| it.starts_with(&two.ranges[0])));
        Ok(())
    })
    .unwrap();
}
