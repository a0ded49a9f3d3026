//! The API server is away, and comes back with a compacted history.

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{History, Switch},
    fabric::Fabric,
    pod::Pod,
    sys::wait_until,
};

use super::{FLAGS, Pods, TIMEOUT, add, delete};
use crate::report::Report;

/// Until the demo ends the outage.
const LONG_MS: u64 = 600_000;
const PODS: &str = r#"ferrule_watch_objects{source="pods"}"#;
const UNSAVED: &str = r#"ferrule_watch_unsaved{source="pods"}"#;
const LISTS: &str = r#"ferrule_watch_lists_total{source="pods"}"#;

/// Returns the pods of node 1 that were attached during and after the outage.
pub(super) fn without_api_server(
    fabric: &Fabric,
    pods: &Pods,
    report: &mut Report,
) -> anyhow::Result<Vec<Pod>> {
    report.chapter("API server outage, with an agent crash");
    let [one, ..] = &fabric.nodes;
    let (mut during, gone) = (one.pod("web-1", &[])?, one.pod("gone-0", &[])?);
    let attached = one.on(|node| node.attachments())?.len();
    // vip-0 has two interfaces.
    let known = (attached - 1 + 2) as f64;
    wait_until("the agent has stored the pods", TIMEOUT, || {
        one.on(|node| Ok(node.metric(PODS)? == known && node.metric(UNSAVED)? == 0.0))
    })?;
    fabric.api.switch(Switch::Restart { pause_ms: LONG_MS, history: History::Compacted });
    delete(fabric, &gone)?;
    let to = pods.job.addresses.first().context("no address")?.to_string();
    report.fact("the API server is away; web-0 reaches job-0 after node-1's agent is killed, too", || {
        one.on(|node| node.kill_agent())?;
        pods.web.ping(&to).map(drop)
    })?;
    report.fact("the agent restarts without the API server, with all attachments and routes", || {
        one.begin_agent(&FLAGS)?;
        one.wait_until_ready()?;
        ensure!(one.on(|node| node.attachments())?.len() == attached, "attachments are missing");
        ensure!(one.node_routes()?.len() == 4, "{:?}", one.node_routes()?);
        pods.web.ping(&to).map(drop)
    })?;
    let what = " succeeds, using the agent's checkpoint of the API state";
    one.on(|node| super::super::add(&node.runtime()?, report, &mut during, what, false))?;
    report.fact("web-1 reaches job-0 by ping", || during.ping(&to).map(drop))?;

    report.chapter("The API server returns with a compacted history; gone-0 was deleted meanwhile");
    fabric.api.switch(Switch::Restart { pause_ms: 0, history: History::Compacted });
    report.fact("the agent's position is expired (410): it relists and finds gone-0 deleted", || {
        wait_until("the agent has relisted", TIMEOUT, || Ok(one.on(|node| node.count(LISTS))? > 0.0))
    })?;
    let log = one.on(|node| Ok(node.log()))?;
    let lines: Vec<_> = log.lines().filter(|line| line.contains("watch=\"pods\"")).collect();
    report.output(
        "the agent's log of the relist",
        &lines.get(lines.len().saturating_sub(2)..).unwrap_or_default().join("\n"),
    );
    let refused = report.fact("ADD gone-0 fails: the pod is deleted", || {
        one.on(|node| node.runtime()?.call("ADD", &gone)?.into_error())
    })?;
    println!("   {refused}");
    gone.remove()?;
    let after = add(one, "web-2", " succeeds: the watch has resumed", false, report)?;
    Ok(vec![during, after])
}
