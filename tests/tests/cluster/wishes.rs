//! Events about ports of the node and limits of traffic that a pod asks for and does not get.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::Resource,
    chain::Chain,
    cluster::{Cluster, with_cluster},
    pod::Pod,
    sys::wait_until,
};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(10);
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";

/// The Events of a reason about a pod.
fn events(cluster: &Cluster, pod: &Pod, reason: &str) -> Vec<Value> {
    let is_meant = |it: &Value| {
        let uid = it.pointer("/involvedObject/uid").and_then(Value::as_str);
        it.get("reason").and_then(Value::as_str) == Some(reason) && uid == Some(&pod.uid)
    };
    cluster.api.list(Resource::Events).into_iter().filter(is_meant).collect()
}

fn wait_for(cluster: &Cluster, pod: &Pod, reason: &str, expected: &str) -> anyhow::Result<()> {
    wait_until("the pod has an Event", TIMEOUT, || {
        let found = events(cluster, pod, reason);
        Ok(found.iter().any(|it| it["type"] == "Warning" && it.to_string().contains(expected)))
    })
}

fn chain(capability: &str, value: Value) -> Chain {
    let plugin = json!({ "type": "ferrule", "capabilities": { capability: true } });
    Chain::new("1.0.0", [plugin]).with(capability, value)
}

#[test]
fn a_port_of_the_node_that_is_refused_causes_one_event_however_often_the_runtime_tries() {
    with_cluster(&[], |node, cluster| {
        let mapping = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
        let first = cluster.pod(node, "first", &[])?;
        chain("portMappings", mapping.clone()).add(&first)?;
        let second = cluster.pod(node, "second", &[])?;
        for _ in 0..3 {
            ensure!(chain("portMappings", mapping.clone()).add(&second).is_err(), "the port is taken");
        }
        wait_for(
            cluster,
            &second,
            "CNIHostPortRefused",
            "port TCP 0.0.0.0:8080 is taken by the pod default/first",
        )?;
        let found = events(cluster, &second, "CNIHostPortRefused");
        ensure!(found.len() == 1, "{found:#?}");
        ensure!(events(cluster, &first, "CNIHostPortRefused").is_empty(), "of the pod that has the port");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_annotation_of_bandwidth_that_has_no_effect_causes_an_event() {
    with_cluster(&[], |node, cluster| {
        let misspelt = cluster.pod(node, "misspelt", &[(INGRESS, "10Mbit")])?;
        wait_for(cluster, &misspelt, "CNIBandwidthIgnored", "10Mbit")?;
        let limited = cluster.pod(node, "limited", &[(INGRESS, "10M")])?;
        chain("bandwidth", json!({ "ingressRate": 10_000_000 })).add(&limited)?;
        ensure!(events(cluster, &limited, "CNIBandwidthIgnored").is_empty(), "the limit is the annotation's");
        cluster.annotate(&limited, INGRESS, "20M")?;
        wait_for(cluster, &limited, "CNIBandwidthIgnored", "was started with 10000000 bit/s")?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_port_that_an_agent_takes_over_for_itself_is_explained_at_the_pod_that_had_it() {
    with_cluster(&[], |node, cluster| {
        let mut pod = cluster.pod(node, "resolver", &[])?;
        let mapping = json!([{ "hostPort": 8472, "containerPort": 53, "protocol": "udp" }]);
        let mut chain = chain("portMappings", mapping);
        pod.attached(&chain.add(&pod)?)?;
        node.ctl(&["explain", "resolver"])?;
        node.kill_agent()?;
        node.start_again_with(&["--tunnel-port", "8472"])?;
        let explained = format!("{:#}", node.ctl(&["explain", "resolver"]).err().context("it has the port")?);
        let cause =
            "impaired: the node's port UDP 0.0.0.0:8472 is the agent's own, for the tunnel between nodes";
        ensure!(explained.contains(cause), "{explained}");
        chain.del(&pod)
    })
    .unwrap();
}
