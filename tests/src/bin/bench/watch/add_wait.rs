//! Measures the latency from a VIF decision to the answer of the ADD that waits for it.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::NODE,
    pod::{NAMESPACE, Pod, VIF},
};
use serde_json::{Value, json};

use super::testbed::Testbed;
use crate::{
    stats::Series,
    table::{Goal, Table},
    target::{Name, Target},
    typical,
};

/// VIFs come from annotations.
pub(super) const FLAGS: [&str; 4] = ["--vif-source", "annotation", "--vif-cidr", "10.250.0.0/16"];
const WARM_UP: usize = 5;
/// By then, the plugin has called the agent and ADD waits.
const ASKED: Duration = Duration::from_millis(25);
/// The kernel removes namespaces in the background; the pause keeps this out of the next sample.
const PAUSE: Duration = Duration::from_millis(40);

/// Attaches pods in turn: VIF known before ADD, VIF set during ADD, and a VIF set during ADD that is refused.
pub(super) fn measure(testbed: &mut Testbed<'_>, count: usize, table: &mut Table) -> anyhow::Result<()> {
    testbed.start()?;
    let target = Target::new(Name::Ferrule)?;
    let (mut plain, mut late, mut refused) = (Series::default(), Series::default(), Series::default());
    for number in 0..count + WARM_UP {
        let good = vif("10.250", number);
        let samples = [
            (&mut plain, ready(testbed, &target, number, &good)?),
            (&mut late, waiting(testbed, &target, number, &good, true)?),
            (&mut refused, waiting(testbed, &target, number, &vif("10.251", number), false)?),
        ];
        if number >= WARM_UP {
            samples.into_iter().for_each(|(series, sample)| series.push(sample));
        }
    }
    table.add(format!("ADD with its VIF known, p50 of {count}"), plain.p50(), "ms", None);
    table.add("  p99", plain.percentile(99), "ms", None);
    table.add("annotation to the end of the ADD waiting for it, p50", late.p50(), "ms", None);
    table.add("  p99", late.percentile(99), "ms", None);
    table.add("  p99 minus p50 of an ADD with its VIF known", late.percentile(99) - plain.p50(), "ms", None);
    table.add("as above, with a refused VIF: nothing is plugged, p50", refused.p50(), "ms", None);
    table.add("  p99", refused.percentile(99), "ms", Goal::at_most(2.0, 0.5));
    Ok(())
}

fn ready(testbed: &Testbed<'_>, target: &Target, number: usize, vif: &str) -> anyhow::Result<Duration> {
    let mut pod = create(testbed, &format!("ready-{number}"), Some(vif))?;
    // By then, the agent has received the watch event.
    thread::sleep(ASKED);
    let took = target.add(&mut pod)?;
    leave(testbed, target, pod)?;
    Ok(took)
}

fn waiting(
    testbed: &Testbed<'_>,
    target: &Target,
    number: usize,
    vif: &str,
    is_good: bool,
) -> anyhow::Result<Duration> {
    let pod = create(testbed, &format!("waiting-{number}-{is_good}"), None)?;
    let took = thread::scope(|scope| {
        let adding = {
            let mut pod = pod.clone();
            scope.spawn(move || (target.add(&mut pod).is_ok(), Instant::now()))
        };
        // Random, to avoid synchronisation with the agent's periodic work.
        thread::sleep(ASKED + Duration::from_micros(fastrand::u64(..10_000)));
        ensure!(!adding.is_finished(), "ADD did not wait for its VIF");
        testbed.cluster.annotate(&pod, VIF, vif)?;
        let annotated = Instant::now();
        let (is_ok, ended) = adding.join().map_err(|_| anyhow!("the runtime panicked"))?;
        ensure!(is_ok == is_good, "ADD success: {is_ok}, expected {is_good}");
        Ok(ended.saturating_duration_since(annotated))
    })?;
    leave(testbed, target, pod)?;
    Ok(took)
}

fn create(testbed: &Testbed<'_>, name: &str, vif: Option<&str>) -> anyhow::Result<Pod> {
    let pod = testbed.node.pod(name)?;
    let mut object = typical::pod(NAMESPACE, name, NODE);
    json_patch::merge(&mut object, &json!({ "metadata": { "uid": pod.uid } }));
    let object: Value = vif.map_or(object.clone(), |vif| objects::with_annotation(object, VIF, vif));
    testbed.cluster.api.create(Resource::Pods, object)?;
    Ok(pod)
}

fn leave(testbed: &Testbed<'_>, target: &Target, pod: Pod) -> anyhow::Result<()> {
    target.del(&pod)?;
    testbed.cluster.api.delete(Resource::Pods, NAMESPACE, &pod.name)?;
    pod.remove()?;
    thread::sleep(PAUSE);
    Ok(())
}

/// A VIF with an address of its own per number.
fn vif(net: &str, number: usize) -> String {
    let [.., high, low] = (number as u32 + 512).to_be_bytes();
    json!({ "interfaces": [{ "addresses": [format!("{net}.{high}.{low}")] }] }).to_string()
}
