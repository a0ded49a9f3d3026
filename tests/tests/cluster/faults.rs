//! Faults of the API server and of the connection to it.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use ferrule_tests::{
    apiserver::{Garbage, Options, Refusal, Resource, Switch, Which, objects},
    cluster::{Cluster, KUBECONFIG, NODE, with_cluster},
    node::{Node, POD_V4, on_node},
    pod::VIF,
    sys::wait_until,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const PODS: Which = Which { resource: Some(Resource::Pods), count: None };

/// Schedules an annotated pod and attaches it; ADD succeeds once the watch has delivered the pod.
fn follows(node: &Node, cluster: &Cluster, number: u8) -> anyhow::Result<Duration> {
    let vif = format!(r#"{{"interfaces":[{{"addresses":["10.244.0.{number}"]}}]}}"#);
    let pod = cluster.pod(node, &format!("pod-{number}"), &[(VIF, &vif)])?;
    let start = Instant::now();
    node.runtime()?.add(&pod)?;
    Ok(start.elapsed())
}

#[test]
fn watch_cut_in_the_middle_of_an_event_is_resumed_immediately() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        follows(node, cluster, 10)?;
        let mut fastest = Duration::MAX;
        for number in 11..14 {
            std::thread::sleep(Duration::from_millis(1200));
            cluster.api.switch(Switch::CutWatches { which: PODS });
            fastest = fastest.min(follows(node, cluster, number)?);
        }
        // The shortest backoff after a failure is longer; other load of the machine delays one ADD of three.
        ensure!(fastest < Duration::from_millis(700), "the watch resumed only after {fastest:?}");
        std::thread::sleep(Duration::from_millis(1200));
        cluster.api.switch(Switch::DropConnections { reset: true });
        follows(node, cluster, 20)?;
        ensure!(node.metric(r#"ferrule_watch_lists_total{source="pods"}"#)? == 1.0, "the agent listed again");
        Ok(())
    })
    .unwrap();
}

#[test]
fn half_open_connection_is_detected() {
    with_cluster(&["--vif-source", "annotation", "--watch-read-timeout", "2"], |node, cluster| {
        cluster.api.switch(Switch::StallWatches {});
        let pod = cluster.pod(node, "a", &[(VIF, r#"{"interfaces":[{"addresses":["10.244.0.9"]}]}"#)])?;
        let adding = node.runtime()?.in_background(&pod, |runtime, pod| runtime.add(pod));
        wait_until("the silent stream is closed", TIMEOUT, || {
            Ok(node.metric(r#"ferrule_watch_failures_total{source="pods",reason="idle"}"#)? > 0.0)
        })?;
        cluster.api.switch(Switch::ResumeWatches {});
        adding.join()?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn restored_api_server_is_detected_although_its_watches_are_silent() {
    let flags = ["--vif-source", "annotation", "--watch-read-timeout", "2", "--vif-timeout", "30"];
    with_cluster(&flags, |node, cluster| {
        follows(node, cluster, 10)?;
        let history = ferrule_tests::apiserver::History::New;
        cluster.api.switch(Switch::Restart { pause_ms: 0, history });
        follows(node, cluster, 11)?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn malformed_events_are_skipped_and_counted() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        follows(node, cluster, 10)?;
        let garbage = [Garbage::NotJson, Garbage::BadObject, Garbage::UnknownType, Garbage::Huge(20)];
        for garbage in garbage {
            cluster.api.switch(Switch::SendGarbage { garbage, which: PODS });
        }
        follows(node, cluster, 11)?;
        wait_until("each malformed event is counted", TIMEOUT, || {
            Ok(node.metric(r#"ferrule_watch_undecodable_total{source="pods"}"#)? >= 4.0)
        })?;
        ensure!(node.metric(r#"ferrule_watch_lists_total{source="pods"}"#)? == 1.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn retry_after_of_an_overloaded_server_is_honoured() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        follows(node, cluster, 10)?;
        std::thread::sleep(Duration::from_millis(1200));
        let refusal = Refusal {
            status: 429,
            retry_after: Some(2),
            times: Some(1),
            resource: Some(Resource::Pods),
            ..Refusal::default()
        };
        cluster.api.switch(Switch::Refuse(refusal));
        cluster.api.clear_requests();
        cluster.api.switch(Switch::CutWatches { which: PODS });
        follows(node, cluster, 11)?;
        let mut requests = cluster.api.requests();
        requests.retain(|request| request.path.starts_with("/api/v1/pods"));
        let [refused, retried] = &requests[..] else {
            bail!("expected one refused and one successful request, found {requests:#?}")
        };
        ensure!((refused.status, retried.status) == (429, 200), "{requests:#?}");
        ensure!(retried.at - refused.at >= Duration::from_secs(2), "{requests:#?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn expired_token_is_read_again() {
    on_node(|node| {
        let cluster =
            Cluster::start(Options { tokens: Some(vec!["first".to_owned()]), ..Options::default() })?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4]))?;
        cluster.api.kubeconfig(std::path::Path::new(KUBECONFIG), Some("first"))?;
        cluster.start_agent(node, &["--vif-source", "annotation"])?;
        follows(node, &cluster, 10)?;
        // Otherwise this request could be the one that finds the token expired.
        wait_until("the agent has said that it serves", TIMEOUT, || Ok(cluster.has_announced()))?;
        cluster.api.kubeconfig(std::path::Path::new(KUBECONFIG), Some("second"))?;
        cluster.api.switch(Switch::SetTokens { tokens: Some(vec!["second".to_owned()]) });
        cluster.api.switch(Switch::CutWatches { which: Which::default() });
        follows(node, &cluster, 11)?;
        // Both sources share the token that either has read.
        wait_until("the expired token is noticed", TIMEOUT, || {
            Ok(node.http("/metrics")?.1.contains(r#"reason="unauthorized""#))
        })?;
        ensure!(node.metric(r#"ferrule_watch_lists_total{source="pods"}"#)? == 1.0);
        Ok(())
    })
    .unwrap();
}

/// Refuses all watches of pods, and lets lists pass.
fn without_watches() -> Refusal {
    Refusal { status: 403, watches_only: true, resource: Some(Resource::Pods), ..Refusal::default() }
}

#[test]
fn agent_without_permission_to_watch_learns_of_pods_from_lists() {
    let flags = ["--vif-source", "annotation", "--watch-retry-timeout", "5", "--vif-timeout", "60"];
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4]))?;
        cluster.api.switch(Switch::Refuse(without_watches()));
        cluster.start_agent(node, &flags)?;
        follows(node, &cluster, 10)?;
        wait_until("status names the failure", Duration::from_secs(60), || {
            let status = node.ctl(&["status"])?;
            ensure!(
                status.contains("refused to watch pods: 403") && status.contains("lists keep"),
                "{status}"
            );
            Ok(true)
        })?;
        cluster.api.switch(Switch::RefuseNothing {});
        // A retry waits for at most 30 s, and a quiet stream counts as healthy after another 30 s.
        wait_until("the watch works", Duration::from_secs(90), || Ok(!node.ctl(&["status"])?.contains("403")))
    })
    .unwrap();
}

#[test]
fn missing_permission_is_reported_in_status() {
    with_cluster(&["--watch-retry-timeout", "1", "--watch-max-backoff", "1"], |node, cluster| {
        cluster.api.switch(Switch::Deny { resource: Resource::Pods, token: None });
        cluster.api.switch(Switch::CutWatches { which: PODS });
        wait_until("status reports the missing permission", TIMEOUT, || {
            let status = node.ctl(&["status"])?;
            ensure!(status.contains("403") && status.contains("role"), "{status}");
            Ok(true)
        })?;
        cluster.api.switch(Switch::DenyNothing {});
        wait_until("the source is healthy again", TIMEOUT, || Ok(!node.ctl(&["status"])?.contains("403")))
    })
    .unwrap();
}

#[test]
fn server_without_streaming_lists_is_listed_from_its_memory() {
    on_node(|node| {
        let cluster = Cluster::start(Options { watch_list: false, ..Options::default() })?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4]))?;
        for number in 0..1100 {
            cluster.api.create(Resource::Pods, objects::pod("default", &format!("p{number}"), NODE))?;
        }
        cluster.start_agent(node, &["--vif-source", "annotation"])?;
        follows(node, &cluster, 10)?;
        ensure!(node.metric(r#"ferrule_watch_objects{source="pods"}"#)? == 1101.0);
        // A real API server ignores the limit of a list that any version satisfies, and answers it whole.
        let is_list = |query: &str| query.ends_with("&limit=500&resourceVersion=0");
        let lists =
            cluster.api.requests().into_iter().filter(|it| it.path == "/api/v1/pods" && is_list(&it.query));
        ensure!(lists.count() == 1, "{:#?}", cluster.api.requests());
        Ok(())
    })
    .unwrap();
}
