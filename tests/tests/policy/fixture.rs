//! A cluster with two pods and a policy.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::Cluster,
    node::Node,
    pod::{NAMESPACE, Pod},
    sys::wait_until,
};
use serde_json::{Value, json};

/// Covers a watch, and the shortest healing period.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// Selected by the policy of [`isolate`].
pub const LABEL: (&str, &str) = ("role", "isolated");

/// Creates a pod with a label, and attaches it.
pub fn attach(node: &Node, cluster: &Cluster, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<Pod> {
    let mut pod = cluster.pod(node, name, &[])?;
    label(cluster, &pod, labels)?;
    let result = node.runtime()?.add(&pod)?;
    pod.attached(&result)?;
    Ok(pod)
}

pub fn label(cluster: &Cluster, pod: &Pod, labels: &[(&str, &str)]) -> anyhow::Result<()> {
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(key, value)| ((*key).into(), json!(value))).collect();
    let patch = json!({"metadata": {"labels": labels}});
    cluster.api.patch(Resource::Pods, NAMESPACE, &pod.name, patch)?;
    Ok(())
}

/// Creates a policy that lets pods with the label receive nothing but what the rules allow.
pub fn isolate(cluster: &Cluster, name: &str, ingress: &Value) -> anyhow::Result<()> {
    let (key, value) = LABEL;
    let spec = json!({
        "podSelector": {"matchLabels": {key: value}}, "policyTypes": ["Ingress"], "ingress": ingress,
    });
    cluster.api.create(Resource::NetworkPolicies, objects::network_policy(NAMESPACE, name, spec))?;
    Ok(())
}

/// Three pods: a policy isolates the first one from all but the second.
pub fn isolated_with_a_friend(node: &Node, cluster: &Cluster) -> anyhow::Result<[Pod; 3]> {
    let a = attach(node, cluster, "a", &[LABEL])?;
    let b = attach(node, cluster, "b", &[("role", "friend")])?;
    let c = attach(node, cluster, "c", &[])?;
    isolate(cluster, "p", &json!([{"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}]}]))?;
    wait_until_reaches(&c, &a, false)?;
    wait_until_reaches(&b, &a, true)?;
    Ok([a, b, c])
}

pub fn first(pod: &Pod) -> anyhow::Result<String> {
    Ok(pod.addresses.first().context("no address")?.to_string())
}

/// Whether an echo request is answered, within a second.
pub fn reaches(from: &Pod, to: &Pod) -> anyhow::Result<bool> {
    Ok(from.run(&format!("ping -n -c 1 -W 1 {}", first(to)?)).is_ok())
}

pub fn wait_until_reaches(from: &Pod, to: &Pod, expected: bool) -> anyhow::Result<()> {
    let what = format!("{} {} {}", from.name, if expected { "reaches" } else { "does not reach" }, to.name);
    wait_until(&what, TIMEOUT, || Ok(reaches(from, to)? == expected))
}

/// Checks three times, as much as the other way for one.
pub fn expect_isolated(from: &Pod, to: &Pod) -> anyhow::Result<()> {
    for _ in 0..3 {
        ensure!(!reaches(from, to)?, "{} reaches {}", from.name, to.name);
    }
    Ok(())
}
