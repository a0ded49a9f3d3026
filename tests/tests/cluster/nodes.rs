//! The nodes of the cluster: what is refused, what costs nothing, and what a node says about itself.

use std::{net::IpAddr, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Options, Resource, Switch, objects},
    cluster::{Cluster, KUBECONFIG, NODE, with_cluster_of},
    dist,
    node::{Node, POD_V4, on_node},
    sys::wait_until,
};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(20);
const TAINT: &str = "ferrule.dev/agent-not-ready";

/// A Node object with addresses.
fn node_at(name: &str, ranges: &[&str], addresses: &[&str]) -> Value {
    let mut object = objects::node(name, ranges);
    let addresses: Vec<_> =
        addresses.iter().map(|it| json!({ "type": "InternalIP", "address": it })).collect();
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.insert("addresses".to_owned(), addresses.into());
    }
    object
}

/// The agent's report of a component, once it has these texts.
fn expect(node: &Node, component: &str, texts: &[&str]) -> anyhow::Result<()> {
    wait_until(&format!("{component} reports {texts:?}"), TIMEOUT, || {
        let reported = node.ctl(&["status"]).unwrap_or_else(|error| format!("{error:#}"));
        let mut lines = reported.lines().map(str::trim_start);
        let line = lines.find(|line| line.starts_with(&format!("{component} "))).unwrap_or_default();
        ensure!(texts.iter().all(|text| line.contains(text)), "{reported}");
        Ok(true)
    })
}

/// The notes of the Events about a node.
fn events(cluster: &Cluster, name: &str) -> Vec<String> {
    let is_about = |event: &Value| {
        let parts = [
            ("/reason", "NodeRangeRefused"),
            ("/type", "Warning"),
            ("/metadata/namespace", "default"),
            ("/involvedObject/kind", "Node"),
            ("/involvedObject/name", name),
        ];
        parts.iter().all(|(pointer, text)| event.pointer(pointer).is_some_and(|it| it == text))
    };
    let note = |it: &Value| it.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    cluster.api.list(Resource::Events).iter().filter(|it| is_about(it)).map(note).collect()
}

/// The API has creation times in seconds.
fn wait_for_a_younger_one() {
    std::thread::sleep(Duration::from_millis(1100));
}

fn own(cluster: &Cluster) -> anyhow::Result<Value> {
    cluster.api.get(Resource::Nodes, "", NODE).context("no Node")
}

/// The condition `NetworkUnavailable` of this node.
fn condition(cluster: &Cluster) -> anyhow::Result<Option<Value>> {
    let node = own(cluster)?;
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let find = |name: &str| conditions?.iter().find(|it| it.get("type").is_some_and(|it| it == name));
    ensure!(find("Ready").is_some(), "the kubelet's condition is gone: {node}");
    Ok(find("NetworkUnavailable").cloned())
}

#[test]
fn a_range_that_overlaps_this_nodes_is_refused_with_an_event_until_it_is_given_back() {
    with_cluster_of(&[POD_V4], &[], |node, cluster| {
        wait_for_a_younger_one();
        cluster.api.create(Resource::Nodes, node_at("node-2", &["10.244.1.0/24"], &["192.0.2.2"]))?;
        expect(node, "cluster", &[" healthy", "other nodes: 1"])?;
        cluster.api.create(Resource::Nodes, node_at("node-3", &["10.244.0.0/16"], &["192.0.2.3"]))?;
        expect(node, "cluster", &["unhealthy", "10.244.0.0/16 of node-3", "of the node node-1"])?;
        wait_until("the node has an Event", TIMEOUT, || {
            Ok(events(cluster, "node-3").iter().any(|it| it.contains(&format!("of the node {NODE}"))))
        })?;
        let event = cluster.api.list(Resource::Events);
        let event = event.iter().find(|it| it["reason"] == "NodeRangeRefused").context("no Event")?;
        let third = cluster.api.get(Resource::Nodes, "", "node-3").context("no Node")?;
        ensure!(event["involvedObject"]["uid"] == third["metadata"]["uid"], "{event}");
        let pod = cluster.attach(node, "a")?;
        ensure!(pod.addresses[0] == "10.244.0.2".parse::<IpAddr>()?, "{:?}", pod.addresses);
        ensure!(node.http("/readyz")?.0 == 200, "ADD works all the same");

        cluster.api.delete(Resource::Nodes, "", "node-3")?;
        expect(node, "cluster", &[" healthy", "other nodes: 1"])?;
        ensure!(events(cluster, "node-3").len() == 1, "one Event for one conflict");
        let said = "refusing what a Node object says";
        ensure!(node.log().matches(said).count() == 1, "{}", node.log());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_conflict_of_other_nodes_is_shown_here_and_is_an_event_of_theirs() {
    with_cluster_of(&[POD_V4], &[], |node, cluster| {
        let created = |name: &str| {
            cluster.api.create(Resource::Nodes, node_at(name, &["10.244.7.0/24"], &[])).map(drop)
        };
        created("node-2")?;
        wait_for_a_younger_one();
        created("node-3")?;
        expect(node, "cluster", &["unhealthy", "10.244.7.0/24 of node-3", "of the node node-2"])?;
        cluster.api.delete(Resource::Nodes, "", "node-2")?;
        expect(node, "cluster", &[" healthy", "other nodes: 1"])?;
        ensure!(events(cluster, "node-2").is_empty() && events(cluster, "node-3").is_empty());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_rewritten_status_without_news_costs_neither_a_checkpoint_nor_a_line() {
    with_cluster_of(&[POD_V4], &[], |node, cluster| {
        cluster.api.create(Resource::Nodes, node_at("node-2", &["10.244.1.0/24"], &["192.0.2.2"]))?;
        expect(node, "cluster", &["other nodes: 1"])?;
        let applied = r#"ferrule_watch_events_total{source="nodes",kind="applied"}"#;
        let unsaved = r#"ferrule_watch_unsaved{source="nodes"}"#;
        let settled = || Ok(condition(cluster)?.is_some() && node.metric(unsaved)? == 0.0);
        wait_until("all is written", TIMEOUT, settled)?;
        let checkpoint = || std::fs::read_to_string("/run/ferrule/watch/nodes.log");
        let lines = |name: &str| anyhow::Ok(checkpoint()?.matches(&format!("[\"{name}\",")).count());
        std::thread::sleep(Duration::from_secs(2));
        let (before, log, stored) = (node.metric(applied)?, node.log(), lines("node-2")?);
        for count in 0..20 {
            let images = json!([{ "names": ["registry.example/a"], "sizeBytes": count }]);
            let status = json!({ "status": { "images": images } });
            cluster.api.patch(Resource::Nodes, "", "node-2", status)?;
            std::thread::sleep(Duration::from_millis(100));
        }
        wait_until("the events arrive", TIMEOUT, || Ok(node.metric(applied)? >= before + 20.0))?;
        std::thread::sleep(Duration::from_secs(2));
        ensure!(lines("node-2")? == stored, "the checkpoint has the object again");
        ensure!(node.log() == log, "{}", node.log());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_ready_agent_clears_network_unavailable_and_removes_the_startup_taint() {
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        let mut object = node_at(NODE, &[], &["192.0.2.1"]);
        object["spec"] = json!({ "taints": [
            { "key": "other", "effect": "NoSchedule" },
            { "key": TAINT, "effect": "NoSchedule" },
            { "key": TAINT, "effect": "NoExecute" },
        ] });
        object["status"]["conditions"]
            .as_array_mut()
            .context("no conditions")?
            .push(json!({ "type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated" }));
        cluster.api.create(Resource::Nodes, object)?;
        cluster.start_agent(node, &[])?;
        // Without ranges, ADD fails: the agent is not ready.
        std::thread::sleep(Duration::from_secs(2));
        let before = condition(&cluster)?.context("no condition")?;
        ensure!(before["status"] == "True", "{before}");
        let ranges = json!({ "spec": { "podCIDR": POD_V4, "podCIDRs": [POD_V4] } });
        cluster.api.patch(Resource::Nodes, "", NODE, ranges)?;
        wait_until("the Node says that its network works", TIMEOUT, || {
            let now = condition(&cluster)?.context("no condition")?;
            let left = own(&cluster)?["spec"]["taints"].clone();
            Ok(now["status"] == "False"
                && now["reason"] == "FerruleIsUp"
                && left == json!([{ "key": "other", "effect": "NoSchedule" }]))
        })?;
        expect(node, "node-status", &[" healthy"])
    })
    .unwrap();
}

#[test]
fn an_uninstallation_takes_back_only_the_agents_own_condition() {
    let uninstall = || -> anyhow::Result<String> {
        let follow = ["--kubeconfig", KUBECONFIG, "--node-name", NODE, "uninstall"];
        let output = Command::new(dist::binary("ferrule-agent")?).args(follow).output()?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{log}");
        Ok(log)
    };
    with_cluster_of(&[POD_V4], &[], |node, cluster| {
        wait_until("the Node is announced", TIMEOUT, || Ok(cluster.has_announced()))?;
        node.stop_agent()?;
        // The node is clean although the API server refuses.
        cluster.api.switch(Switch::Deny { resource: Resource::Nodes, token: None });
        let log = uninstall()?;
        ensure!(log.contains("the Node keeps the condition") && condition(cluster)?.is_some(), "{log}");
        cluster.api.switch(Switch::DenyNothing {});
        let log = uninstall()?;
        ensure!(condition(cluster)?.is_none() && log.contains("the condition of the Node"), "{log}");
        let of_others = json!({ "type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated" });
        let mut conditions = own(cluster)?["status"]["conditions"].clone();
        conditions.as_array_mut().context("no conditions")?.push(of_others.clone());
        let undone = json!({ "status": { "conditions": conditions } });
        cluster.api.patch(Resource::Nodes, "", NODE, undone)?;
        uninstall()?;
        ensure!(condition(cluster)? == Some(of_others), "{:?}", condition(cluster)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_missing_role_is_named_and_harms_no_pod() {
    with_cluster_of(&[POD_V4], &[], |node, cluster| {
        expect(node, "node-status", &[" healthy"])?;
        cluster.api.switch(Switch::Deny { resource: Resource::Nodes, token: None });
        let undone = json!({ "spec": { "taints": [{ "key": TAINT, "effect": "NoSchedule" }] } });
        cluster.api.patch(Resource::Nodes, "", NODE, undone)?;
        expect(node, "node-status", &["unhealthy", "the role in deploy/"])?;
        cluster.attach(node, "a")?;
        cluster.api.switch(Switch::DenyNothing {});
        expect(node, "node-status", &[" healthy"])?;
        ensure!(own(cluster)?["spec"]["taints"].as_array().is_none_or(Vec::is_empty));
        Ok(())
    })
    .unwrap();
}
