//! A node leaves and comes back with another range, while another node has no agent.

use anyhow::{Context as _, ensure};
use ferrule_tests::{fabric::Fabric, node::SOCKET, pod::Pod, probe::Probe, sys::wait_until};

use super::{Pods, TIMEOUT, add};
use crate::report::Report;

const RANGES: [&str; 2] = ["10.245.2.0/24", "fd00:10:245:2::/64"];

/// Returns a pod in the new range.
pub(super) fn return_with_another_range(
    fabric: &Fabric,
    pods: &Pods,
    report: &mut Report,
) -> anyhow::Result<Pod> {
    report.chapter("node-2 comes back with another range, while the agent of node-1 is dead");
    let [one, two, _] = &fabric.nodes;
    let Pods { web, db, job, .. } = pods;
    let to = job.addresses.first().context("no address")?;
    let probe = Probe::start(web.path(), job.path(), *to)?;
    report.fact("packets flow from web-0 to job-0 after node-1's agent is killed by SIGKILL", || {
        one.on(|node| node.kill_agent())?;
        probe.expect_flow("after the kill")
    })?;
    println!("   {SOCKET} is now a stale socket");
    two.on(|node| node.runtime()?.del(db))?;
    two.unregister()?;
    two.register_with(&RANGES)?;
    println!("   Node node-2 is deleted, and created again with {}", RANGES.join(", "));
    let new = report.fact("node-2 has its new range", || {
        wait_until("node-2 has its new range", TIMEOUT, || Ok(two.status()?.contains(RANGES[0])))
    });
    new?;
    let new = add(two, "db-1", " succeeds: addresses from the new range", false, report)?;
    report.fact("node-1's agent starts again, and its routes lead to the new range only", || {
        one.on(|node| node.start_again())?;
        wait_until("the routes follow", TIMEOUT, || {
            let routes = one.node_routes()?.into_iter().collect::<String>();
            Ok(RANGES.iter().all(|it| routes.contains(it))
                && !two.ranges.iter().any(|it| routes.contains(it)))
        })
    })?;
    report.output(
        "ip route show proto 70, on node-1",
        &one.node_routes()?.into_iter().collect::<Vec<_>>().join("\n"),
    );
    report.fact("web-0 and job-0 reach db-1 by ping over IPv4 and IPv6", || {
        let reach = |from: &Pod| new.addresses.iter().try_for_each(|it| from.ping(&it.to_string()).map(drop));
        [web, job].into_iter().try_for_each(reach)
    })?;
    let outcome = report.fact("no packet from web-0 to job-0 was lost meanwhile", || {
        let outcome = probe.end()?;
        outcome.expect_all()?;
        Ok(outcome)
    })?;
    println!("   {} packets, one each millisecond", outcome.sent);
    ensure!(outcome.sent > 0);
    Ok(new)
}
