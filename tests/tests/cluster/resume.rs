//! Watches resume at their position; the checkpoint survives restarts of agent and API server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{History, Options, Request, Resource, Switch, objects},
    cluster::{Cluster, NODE, with_cluster},
    node::{Node, POD_V4, POD_V6, on_node},
    sys::wait_until,
};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Query strings of the requests for pods.
fn pod_requests(cluster: &Cluster) -> Vec<String> {
    let of_pods = |it: &Request| it.path.starts_with("/api/v1/pods");
    cluster.api.requests().into_iter().filter(of_pods).map(|it| it.query).collect()
}

/// A parameter of a query string, exactly.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Waits until what a watch knows is in its checkpoint.
fn wait_until_durable(node: &Node, source: &str, objects: f64) -> anyhow::Result<()> {
    wait_until("the checkpoint is written", TIMEOUT, || {
        Ok(node.metric(&format!("ferrule_watch_objects{{source=\"{source}\"}}"))? == objects
            && node.metric(&format!("ferrule_watch_unsaved{{source=\"{source}\"}}"))? == 0.0)
    })
}

fn watches_pods(cluster: &Cluster) -> anyhow::Result<bool> {
    Ok(cluster.api.open_watches().get(&Resource::Pods).is_some_and(|open| *open > 0))
}

#[test]
fn restarted_agent_resumes_at_its_position_without_a_list() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let late = cluster.pod(node, "late", &[])?;
        let gone = cluster.pod(node, "gone", &[])?;
        wait_until("both pods are known", TIMEOUT, || {
            Ok(node.metric(r#"ferrule_watch_objects{source="pods"}"#)? == 2.0)
        })?;
        node.stop_agent()?;
        cluster.delete(&gone)?;
        cluster.annotate(&late, "vif.ferrule.dev/v1", r#"{"interfaces":[{"addresses":["10.244.0.50"]}]}"#)?;
        cluster.api.clear_requests();
        node.start_again()?;
        let result = node.runtime()?.add(&late)?;
        ensure!(
            result["ips"][0]["address"] == "10.244.0.50/32",
            "the change during the downtime was missed: {result}"
        );
        let refused = node.runtime()?.call("ADD", &gone)?.into_error()?;
        ensure!(refused.code == 3, "the deletion during the downtime was missed: {refused}");
        let requests = pod_requests(cluster);
        let [only] = requests.as_slice() else { anyhow::bail!("expected one request, found {requests:?}") };
        ensure!(
            parameter(only, "watch") == Some("true")
                && parameter(only, "resourceVersion").is_some()
                && parameter(only, "sendInitialEvents").is_none(),
            "{only}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn position_survives_a_crash() {
    with_cluster(&[], |node, cluster| {
        cluster.pod(node, "a", &[])?;
        wait_until_durable(node, "pods", 1.0)?;
        let version = |pod: &Value| pod["metadata"]["resourceVersion"].as_str()?.parse::<u64>().ok();
        let created = cluster.api.list(Resource::Pods).first().and_then(version).context("no pod")?;
        node.kill_agent()?;
        cluster.api.clear_requests();
        node.start_again()?;
        wait_until("the agent watches", TIMEOUT, || watches_pods(cluster))?;
        let requests = pod_requests(cluster);
        let position = |query: &String| parameter(query, "resourceVersion")?.parse::<u64>().ok();
        ensure!(
            !requests.is_empty() && requests.iter().all(|it| position(it) >= Some(created)),
            "{requests:?}"
        );
        ensure!(requests.iter().all(|it| parameter(it, "watch") == Some("true")), "{requests:?}");
        ensure!(requests.iter().all(|it| parameter(it, "sendInitialEvents").is_none()), "{requests:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn deletion_lost_in_a_compaction_is_found_by_relist() {
    for gone_at_opening in [false, true] {
        with_cluster(&["--vif-source", "annotation"], |node, cluster| {
            let gone = cluster.pod(node, "gone", &[])?;
            wait_until("the pod is known", TIMEOUT, || {
                Ok(node.metric(r#"ferrule_watch_objects{source="pods"}"#)? == 1.0)
            })?;
            node.stop_agent()?;
            cluster.delete(&gone)?;
            cluster.pod(node, "other", &[])?;
            cluster.api.switch(Switch::GoneAtOpening { enabled: gone_at_opening });
            cluster.api.switch(Switch::Compact {});
            node.start_again()?;
            wait_until("the expired position leads to a relist", TIMEOUT, || {
                let refused = node.runtime()?.call("ADD", &gone)?.into_error()?;
                ensure!(refused.code == 3, "{refused}");
                Ok(true)
            })?;
            ensure!(node.metric(r#"ferrule_watch_lists_total{source="pods"}"#)? == 1.0);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn add_and_del_work_during_an_api_server_outage_and_agent_restart() {
    with_cluster(&["--watch-retry-timeout", "2"], |node, cluster| {
        let runtime = node.runtime()?;
        let annotations = serde_json::json!({ "io.kubernetes.cri.pod-annotations": {} });
        let runtime = runtime.with("runtimeConfig", annotations);
        let before = cluster.pod(node, "before", &[])?;
        runtime.add(&before)?;
        wait_until_durable(node, "nodes", 1.0)?;
        cluster.api.switch(Switch::Restart { pause_ms: 3_600_000, history: History::Kept });
        let during = node.pod("during")?;
        runtime.add(&during)?;
        runtime.del(&before)?;
        node.kill_agent()?;
        node.start_again()?;
        let after = node.pod("after")?;
        runtime.add(&after)?;
        runtime.del(&during)?;
        wait_until("the watch is unhealthy", TIMEOUT, || {
            let status = node.ctl(&["status", "-o", "json"])?;
            Ok(status.contains("unhealthy"))
        })?;
        let (code, body) = node.http("/readyz")?;
        ensure!(code == 200, "not ready without the API server: {body}");
        Ok(())
    })
    .unwrap();
}

/// Environment variable: seconds of API server outage; 3600 for a long run.
const AWAY: &str = "FERRULE_API_AWAY_SECONDS";

#[test]
fn long_api_server_outage_blocks_no_pod_and_misses_no_change() {
    // With the history kept, the agent may resume; with the history lost, it must compare with a list.
    for is_lost in [false, true] {
        with_cluster(&["--vif-source", "auto", "--watch-retry-timeout", "2"], |node, cluster| {
            let runtime = node.runtime()?;
            let ipam = runtime
                .clone()
                .with("runtimeConfig", serde_json::json!({ "io.kubernetes.cri.pod-annotations": {} }));
            let vif = |number: u8| format!(r#"{{"interfaces":[{{"addresses":["10.244.0.{number}"]}}]}}"#);
            let known = cluster.pod(node, "known", &[("vif.ferrule.dev/v1", &vif(101))])?;
            let gone = cluster.pod(node, "gone", &[("vif.ferrule.dev/v1", &vif(102))])?;
            wait_until("both are known", TIMEOUT, || {
                Ok(node.metric(r#"ferrule_watch_objects{source="pods"}"#)? == 2.0)
            })?;
            let seconds = std::env::var(AWAY).map_or(Ok(4), |text| text.parse::<u64>().context(AWAY))?;
            let back = Instant::now() + Duration::from_secs(seconds);
            cluster.api.switch(Switch::Restart { pause_ms: seconds * 1000, history: History::Kept });
            // Changes that the agent cannot learn of during the outage.
            cluster.delete(&gone)?;
            let new = cluster.pod(node, "new", &[("vif.ferrule.dev/v1", &vif(103))])?;
            if is_lost {
                cluster.api.switch(Switch::Compact {});
            }
            let mut number = 0;
            while Instant::now() + Duration::from_secs(1) < back {
                number += 1;
                let other = node.pod(&format!("other-{number}"))?;
                for (runtime, pod) in [(&runtime, &known), (&ipam, &other)] {
                    runtime.add(pod).context("ADD during the outage")?;
                    runtime.check(pod)?;
                    runtime.del(pod)?;
                }
                other.remove()?;
                // Limits the rate: 253 addresses with a cooldown of 30 s each.
                std::thread::sleep(Duration::from_millis(250));
            }
            ensure!(number > 0, "no pod was attached during the outage");
            // The backoff may have grown to a minute.
            wait_until("the changes during the outage are known", Duration::from_secs(90), || {
                Ok(runtime.add(&new).is_ok())
            })?;
            let refused = runtime.call("ADD", &gone)?.into_error()?;
            ensure!(refused.code == 3, "the deletion was missed: {refused}");
            let listed_again = node.metric(r#"ferrule_watch_lists_total{source="pods"}"#)? == 2.0;
            ensure!(listed_again == is_lost);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn watch_recovers_after_each_kind_of_api_server_restart() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        // A write of the agent after the last pod would make the compaction expire the position of pods.
        wait_until("the agent has said that it serves", TIMEOUT, || Ok(cluster.has_announced()))?;
        for (history, name, number) in [(History::Kept, "kept", 1), (History::Compacted, "compacted", 2)] {
            cluster.api.switch(Switch::Restart { pause_ms: 300, history });
            let pod = node.pod(name)?;
            let vif = format!(r#"{{"interfaces":[{{"addresses":["10.244.0.10{number}"]}}]}}"#);
            cluster.schedule(&pod, &[("vif.ferrule.dev/v1", &vif)])?;
            node.runtime()?.add(&pod).with_context(|| format!("after {history:?}"))?;
        }
        ensure!(
            node.metric(r#"ferrule_watch_lists_total{source="pods"}"#)? == 1.0,
            "the agent listed although its position was current"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn add_waits_for_the_nodes_pod_cidrs() {
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        cluster.start_agent(node, &[])?;
        let status = node.runtime()?.status()?.into_error()?;
        ensure!(status.code == 50 && status.msg.contains("podCIDRs"), "{status}");
        let mut node_object = objects::node(NODE, &[]);
        node_object["spec"] = serde_json::json!({});
        cluster.api.create(Resource::Nodes, node_object)?;
        let (code, body) = node.http("/readyz")?;
        ensure!(code == 503 && body.contains("ranges"), "{code}: {body}");
        let pod = cluster.pod(node, "early", &[])?;
        let early = node.runtime()?.in_background(&pod, |runtime, pod| runtime.add(pod));
        cluster.wait_until_add_waits(&pod, "pod CIDR in the node's spec.podCIDRs")?;
        ensure!(!early.is_finished(), "ADD returned before the node had pod CIDRs");
        let given = serde_json::json!({ "spec": { "podCIDR": POD_V4, "podCIDRs": [POD_V4, POD_V6] } });
        cluster.api.patch(Resource::Nodes, "", NODE, given)?;
        let result = early.join()?;
        ensure!(result["ips"][0]["address"] == "10.244.0.2/32", "{result}");
        node.runtime()?.status()?.into_result()?;
        ensure!(node.http("/readyz")?.0 == 200);
        Ok(())
    })
    .unwrap();
}
