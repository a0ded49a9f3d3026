//! A large cluster: the agent's memory, and the time of changes.

use anyhow::Context as _;
use ferrule_tests::{
    apiserver::{self, Resource},
    node::Node,
    pod::Pod,
    sys::wait_until,
};
use serde_json::Value;

use super::{
    Options,
    bed::{Bed, TIMEOUT},
    burden::Burden,
    changes, rows,
};
use crate::{
    memory,
    table::{Goal, Table},
};

/// How often each kind of change is measured here; most samples are of the small cluster.
const EVENTS: usize = 50;
const LARGE: &str = ", large cluster";
const KNOWN: &str = "ferrule_policy_policies";
const GOAL: Goal = Goal::at_most(60.0, 45.0);

/// Starts an agent in the cluster, attaches the local pods, and makes changes.
pub(super) fn measure(node: &mut Node, options: &Options, table: &mut Table) -> anyhow::Result<()> {
    let &Options { pods, namespaces, policies, local, events, .. } = options;
    let history = pods + namespaces + policies + 10_000;
    let server = apiserver::Options { history_limit: history, ..apiserver::Options::default() };
    let bed = Bed::without_agent(node, server)?;
    let burden = Burden { pods, namespaces, policies, local };
    eprintln!("policy: {burden}");
    burden.create(&bed.cluster.api)?;
    let bed = bed.start()?;
    let known = policies as f64;
    wait_until("the agent knows all policies", TIMEOUT, || Ok(bed.node.metric(KNOWN)? >= known))?;
    memory::measure(bed.node, &format!("{burden}"), None, table)?;
    let runtime = bed.node.runtime()?;
    let attach = |number| -> anyhow::Result<Pod> {
        let (namespace, name) = burden.local(number);
        let object = bed.cluster.api.get(Resource::Pods, &namespace, &name).context("no such pod")?;
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned();
        let pod = Pod { namespace, uid, ..bed.node.pod(&name)? };
        runtime.add(&pod)?;
        Ok(pod)
    };
    let _attached = (0..local).map(attach).collect::<Result<Vec<_>, _>>()?;
    let attached = format!("{local} of the pods attached");
    memory::measure(bed.node, &attached, GOAL, table)?;
    rows::measure(bed.node, &attached, table)?;
    if events > 0 {
        let events = events.min(EVENTS);
        changes::labels_and_policies(&bed, events, LARGE, table)?;
        changes::foreign_pods(&bed, events, LARGE, table)?;
        memory::measure(bed.node, "after these changes", GOAL, table)?;
    }
    Ok(())
}
