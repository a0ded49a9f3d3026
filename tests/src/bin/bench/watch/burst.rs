//! Measures the throughput of a burst of events.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, Switch},
    cluster::NODE,
    pod::NAMESPACE,
    sys::wait_until,
};
use serde_json::json;

use super::testbed::{TIMEOUT, Testbed, name};
use crate::{
    stats::Series,
    table::{Goal, Table},
};

const ROUNDS: usize = 3;
const APPLIED: &str = r#"ferrule_watch_events_total{source="pods",kind="applied"}"#;

/// Changes pods while the watch is stalled, then resumes the watch.
pub(super) fn measure(testbed: &Testbed<'_>, events: usize, table: &mut Table) -> anyhow::Result<()> {
    let (mut took, mut cpu) = (Series::default(), Series::default());
    let mut version = testbed.cluster.api.resource_version();
    for round in 0..=ROUNDS {
        version = testbed.cluster.api.resource_version();
        let (time, used) = one(testbed, round, events)?;
        // The first round warms the agent up.
        if round > 0 {
            took.push(time);
            cpu.push(used);
        }
    }
    let per_second = |ms: f64| events as f64 / ms * 1e3;
    table.add(
        format!("burst of {events} events, per agent CPU time"),
        per_second(cpu.p50()),
        "events/s",
        Goal::at_least(50_000.0, 150_000.0),
    );
    table.add("  agent CPU time per event", cpu.p50() * 1e3 / events as f64, "µs", None);
    table.add("  from server to registry", per_second(took.p50()), "events/s", None);
    let alone = read_alone(testbed, version, events)?;
    table.add("  API server alone", per_second(alone.as_secs_f64() * 1e3), "events/s", None);
    Ok(())
}

fn one(testbed: &Testbed<'_>, round: usize, events: usize) -> anyhow::Result<(Duration, Duration)> {
    let (api, agent) = (&testbed.cluster.api, testbed.agent()?);
    api.switch(Switch::StallWatches {});
    for number in 0..events {
        let label = json!({ "metadata": { "labels": { "turn": format!("{round}-{number}") } } });
        api.patch(Resource::Pods, NAMESPACE, &name(number % testbed.pods.max(1)), label)?;
    }
    thread::sleep(Duration::from_millis(200));
    let goal = testbed.node.count(APPLIED)? + events as f64;
    let (start, used) = (Instant::now(), agent.used()?);
    api.switch(Switch::ResumeWatches {});
    wait_until("the agent has applied all events", TIMEOUT, || {
        // Short enough for the precision, long enough to keep the polling cost low.
        thread::sleep(Duration::from_millis(10));
        Ok(testbed.node.count(APPLIED)? >= goal)
    })?;
    let took = start.elapsed();
    ensure!(testbed.node.count(APPLIED)? == goal, "events were delivered more than once");
    Ok((took, agent.used()?.saturating_sub(used)))
}

/// Reads the same events without processing them.
fn read_alone(testbed: &Testbed<'_>, version: u64, events: usize) -> anyhow::Result<Duration> {
    let mut stream = TcpStream::connect(testbed.cluster.api.address())?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let start = Instant::now();
    write!(
        stream,
        "GET /api/v1/pods?watch=true&resourceVersion={version}&fieldSelector=spec.nodeName%3D{NODE} HTTP/1.1\r\n\
         Host: api\r\nConnection: close\r\n\r\n"
    )?;
    let (mut seen, mut block, mut last) = (0, vec![0; 256 << 10], 0);
    while seen < events {
        let length = stream.read(&mut block)?;
        let read = block.get(..length).filter(|read| !read.is_empty()).context("the watch has ended")?;
        for byte in read {
            seen += usize::from(last == b'}' && *byte == b'\n');
            last = *byte;
        }
    }
    Ok(start.elapsed())
}
