//! Measures the time to list all pods.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use ferrule_tests::{
    apiserver::{ApiServer, Request, Resource, Switch, Which},
    sys::wait_until,
};

use super::testbed::{TIMEOUT, Testbed};
use crate::{
    stats::Series,
    table::{Goal, Table},
};

/// How the server sends a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ListMode {
    Streamed,
    Pages,
}

/// Start of the API server's request log, in time since the epoch.
struct Clock(Duration);

const WATCHED: Which = Which { resource: Some(Resource::Pods), count: None };

/// Measures relists after an expired position, and initial lists of agents without a checkpoint.
pub(super) fn measure(
    testbed: &mut Testbed<'_>,
    mode: ListMode,
    times: usize,
    goal: Goal,
    table: &mut Table,
) -> anyhow::Result<()> {
    if times == 0 {
        return Ok(());
    }
    let clock = Clock::read(&testbed.cluster.api)?;
    let (mut again, mut cpu, mut first, mut start) =
        (Series::default(), Series::default(), Series::default(), Series::default());
    for _ in 0..times {
        let before = lists(testbed).len();
        testbed.node.stop_agent()?;
        testbed.cluster.api.clear_requests();
        let begun = SystemTime::now();
        testbed.start()?;
        let listed = until_listed(testbed, before)?;
        first.push(listed.saturating_sub(asked(testbed, &clock)?));
        start.push(listed.saturating_sub(begun.duration_since(UNIX_EPOCH)?));
    }
    for _ in 0..times {
        // By then, the checkpoint of the previous list is durable.
        thread::sleep(Duration::from_secs(3));
        let before = lists(testbed).len();
        let (api, agent) = (&testbed.cluster.api, testbed.agent()?);
        api.clear_requests();
        api.switch(Switch::Compact {});
        let used = agent.used()?;
        api.switch(Switch::SendError { code: 410, retry_after: None, which: WATCHED });
        let listed = until_listed(testbed, before)?;
        cpu.push(agent.used()?.saturating_sub(used));
        again.push(listed.saturating_sub(asked(testbed, &clock)?));
    }
    let how = if mode == ListMode::Streamed { "as a stream" } else { "in pages of 500" };
    let pods = testbed.pods;
    table.add(format!("relist of {pods} pods {how}, p50 of {times}"), again.p50(), "ms", goal);
    table.add("  maximum", again.percentile(100), "ms", None);
    table.add("  agent CPU time, p50", cpu.p50(), "ms", None);
    table.add("  initial list without a checkpoint, p50", first.p50(), "ms", None);
    table.add("  agent start to end of initial list, p50", start.p50(), "ms", None);
    Ok(())
}

/// Waits for one more list than `before`, and returns the time of its end since the epoch.
fn until_listed(testbed: &Testbed<'_>, before: usize) -> anyhow::Result<Duration> {
    wait_until("the agent has relisted", TIMEOUT, || Ok(lists(testbed).len() > before))?;
    lists(testbed).last().copied().context("no list in the agent's log")
}

/// The end of each pod list in the agent's log, since the epoch.
fn lists(testbed: &Testbed<'_>) -> Vec<Duration> {
    let log = testbed.node.log();
    let lines = log.lines().filter(|line| line.contains(": listed watch=\"pods\""));
    let time = |line: &str| line.split_whitespace().next()?.parse::<jiff::Timestamp>().ok();
    lines
        .filter_map(time)
        .filter_map(|time| time.duration_since(jiff::Timestamp::UNIX_EPOCH).try_into().ok())
        .collect()
}

/// Arrival of the last list's first request, since the epoch.
fn asked(testbed: &Testbed<'_>, Clock(start): &Clock) -> anyhow::Result<Duration> {
    let is_first = |it: &&Request| {
        let begins = it.query.contains("sendInitialEvents=true") || !it.query.contains("watch=true");
        it.path == "/api/v1/pods" && it.status == 200 && begins && !it.query.contains("continue=")
    };
    let requests = testbed.cluster.api.requests();
    let first = requests.iter().find(is_first).context("no list request")?;
    Ok(*start + first.at)
}

// === impl Clock ===

impl Clock {
    /// Takes the fastest of 20 requests, for the smallest error.
    fn read(api: &ApiServer) -> anyhow::Result<Self> {
        let mut best: Option<(Duration, Self)> = None;
        for _ in 0..20 {
            let mut stream = TcpStream::connect(api.address())?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let (start, now) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n")?;
            stream.read_to_end(&mut Vec::new())?;
            let took = start.elapsed();
            let at = api.requests().last().context("no request")?.at;
            if best.as_ref().is_none_or(|(least, _)| took < *least) {
                best = Some((took, Self((now + took / 2).saturating_sub(at))));
            }
        }
        Ok(best.context("no request")?.1)
    }
}
