//! A VIF that a controller decides after the runtime asked for it.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, ensure};
use ferrule_tests::{
    apiserver::Resource,
    fabric::{Fabric, Member},
    pod::Pod,
    sys::wait_until,
};
use serde_json::Value;

use super::{FLAGS, TIMEOUT, annotate};
use crate::report::Report;

/// Every pod waits for a controller's annotation.
const BY_ANNOTATION: [&str; 2] = ["--vif-source", "annotation"];
const ONE: &str = r#"{"interfaces": [{"addresses": ["10.244.1.210"]}]}"#;
const RESUMES: &str = r#"ferrule_watch_resumes_total{source="pods"}"#;
const LISTS: &str = r#"ferrule_watch_lists_total{source="pods"}"#;

/// Returns the pod that waited.
pub(super) fn late(fabric: &Fabric, report: &mut Report) -> anyhow::Result<Pod> {
    report.chapter("A VIF decision that arrives late");
    let [one, ..] = &fabric.nodes;
    println!("   # ferrule-agent … {}", BY_ANNOTATION.join(" "));
    report.fact(
        "node-1's agent restarts with --vif-source annotation and recovers its attachments",
        || {
            let before = one.on(|node| node.attachments())?.len();
            restart(one, &[FLAGS, BY_ANNOTATION].concat())?;
            ensure!(one.on(|node| node.attachments())?.len() == before);
            Ok(())
        },
    )?;
    report.fact("the watch resumes at its position, without a relist", || {
        wait_until("the watch has resumed", TIMEOUT, || Ok(one.on(|node| node.metric(RESUMES))? > 0.0))?;
        ensure!(one.on(|node| node.count(LISTS))? == 0.0, "the agent listed again");
        Ok(())
    })?;
    let mut late = one.pod("late-0", &[])?;
    let waited = one.on(|node| {
        let runtime = node.runtime()?;
        wait(fabric, &runtime, &mut late, report)
    })?;
    println!(
        "   {:.1} ms from the API server's response to the annotation until the plugin's exit (no polling)",
        waited.as_secs_f64() * 1e3
    );
    restart(one, &FLAGS)?;
    Ok(late)
}

fn restart(node: &Member, flags: &[&str]) -> anyhow::Result<()> {
    node.on(|node| node.stop_agent())?;
    node.begin_agent(flags)?;
    node.wait_until_ready()
}

fn wait(
    fabric: &Fabric,
    runtime: &ferrule_tests::runtime::Runtime,
    late: &mut Pod,
    report: &mut Report,
) -> anyhow::Result<Duration> {
    thread::scope(|scope| {
        let adding = {
            let late = late.clone();
            scope.spawn(move || runtime.add(&late).map(|result| (result, Instant::now())))
        };
        let mut found = Vec::new();
        report.fact("ADD late-0 waits for a VIF decision and reports this as a pod event", || {
            wait_until("the pod has an event", TIMEOUT, || {
                found = events(fabric);
                Ok(found.iter().any(|(reason, _)| reason == "CNIWaitingForVIF"))
            })?;
            ensure!(!adding.is_finished(), "ADD returned without a decision");
            Ok(())
        })?;
        for (reason, note) in found.iter().filter(|(reason, _)| reason.starts_with("CNI")) {
            println!("   {reason}: {note}");
        }
        report.fact("ADD late-0 returns once late-0 is annotated", || {
            annotate(fabric, late, ONE)?;
            let annotated = Instant::now();
            let (result, answered) = adding.join().map_err(|_| anyhow!("the runtime panicked"))??;
            late.attached(&result)?;
            Ok(answered.saturating_duration_since(annotated))
        })
    })
}

/// Reason and note of each event.
fn events(fabric: &Fabric) -> Vec<(String, String)> {
    let text = |event: &Value, key| event.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let events = fabric.api.list(Resource::Events);
    events.iter().map(|event| (text(event, "reason"), text(event, "message"))).collect()
}
