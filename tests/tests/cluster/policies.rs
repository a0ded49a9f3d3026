//! What the agent reads because of network policies, and when.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{History, Options, Request, Resource, Switch, objects},
    cluster::{Cluster, NODE, with_cluster},
    node::{Node, POD_V4, POD_V6, on_node},
    pod::NAMESPACE,
    sys::wait_until,
};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(10);

/// What the health of the feed says: `[+] policy-feed (healthy, needed for ADD): open: …`.
fn feed(node: &Node) -> anyhow::Result<String> {
    let (_, text) = node.http("/readyz?verbose")?;
    let found = text.lines().find(|it| it.contains(" policy-feed ")).with_context(|| text.clone())?;
    Ok(found.replace(", needed for ADD)", ""))
}

fn wait_for_feed(node: &Node, says: &str, limit: Duration) -> anyhow::Result<()> {
    wait_until(&format!("the feed says {says}"), limit, || {
        let found = feed(node)?;
        ensure!(found.contains(says), "{found}");
        Ok(true)
    })
}

fn isolate(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let policy = objects::network_policy(NAMESPACE, name, json!({ "podSelector": {} }));
    cluster.api.create(Resource::NetworkPolicies, policy)?;
    Ok(())
}

/// The open watches of what policies ask about: namespaces, Services, and pods, of which one is the node's.
fn watches(cluster: &Cluster) -> [usize; 3] {
    let open = cluster.api.open_watches();
    [Resource::Namespaces, Resource::Services, Resource::Pods].map(|it| open.get(&it).copied().unwrap_or(0))
}

/// Requests for what policies ask about.
fn of_peers(cluster: &Cluster) -> Vec<Request> {
    let is_of_peers = |it: &Request| {
        ["/api/v1/namespaces", "/api/v1/services"].contains(&it.path.as_str())
            || it.query.contains("hostNetwork")
    };
    cluster.api.requests().into_iter().filter(is_of_peers).collect()
}

#[test]
fn what_policies_ask_about_is_followed_only_while_there_is_a_policy() {
    with_cluster(&[], |node, cluster| {
        wait_for_feed(node, "(healthy: open: the cluster has no policy", TIMEOUT)?;
        ensure!(of_peers(cluster).is_empty(), "{:#?}", of_peers(cluster));
        let mut ended = objects::pod(NAMESPACE, "ended", "other");
        ended["status"]["phase"] = json!("Succeeded");
        let mut on_host = objects::pod(NAMESPACE, "on-host", "other");
        on_host["spec"]["hostNetwork"] = json!(true);
        for pod in [ended, on_host, objects::pod(NAMESPACE, "peer", "other")] {
            cluster.api.create(Resource::Pods, pod)?;
        }
        isolate(cluster, "first")?;
        wait_for_feed(node, "(healthy: following the policies (1)", TIMEOUT)?;
        ensure!(watches(cluster) == [1, 1, 2], "{:?}", watches(cluster));
        let pods = node.metric(r#"ferrule_watch_objects{source="all-pods"}"#)?;
        ensure!(pods == 1.0, "{pods} pods");
        isolate(cluster, "second")?;
        wait_for_feed(node, "following the policies (2)", TIMEOUT)?;
        cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, "second")?;
        cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, "first")?;
        wait_for_feed(node, "followed for a while", TIMEOUT)?;
        ensure!(watches(cluster) == [1, 1, 2], "a policy that is replaced costs no lists");
        let lists = of_peers(cluster).len();
        isolate(cluster, "first")?;
        wait_for_feed(node, "following the policies (1)", TIMEOUT)?;
        ensure!(of_peers(cluster).len() == lists, "{:#?}", of_peers(cluster));
        cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, "first")?;
        wait_for_feed(node, "(healthy: open: the cluster has no policy", Duration::from_secs(30))?;
        wait_until("the watches are closed", TIMEOUT, || Ok(watches(cluster) == [0, 0, 1]))?;
        isolate(cluster, "first")?;
        wait_for_feed(node, "following the policies (1)", TIMEOUT)?;
        ensure!(watches(cluster) == [1, 1, 2], "{:?}", watches(cluster));
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_agent_that_starts_again_resumes_what_policies_ask_about_and_lists_none_of_it() {
    with_cluster(&[], |node, cluster| {
        cluster.api.create(Resource::Pods, objects::pod(NAMESPACE, "peer", "other"))?;
        isolate(cluster, "first")?;
        wait_for_feed(node, "following the policies (1)", TIMEOUT)?;
        node.stop_agent()?;
        cluster.api.create(Resource::Pods, objects::pod(NAMESPACE, "later", "other"))?;
        let before = of_peers(cluster).len();
        node.start_again()?;
        wait_for_feed(node, "following the policies (1)", TIMEOUT)?;
        wait_until("the agent knows both pods", TIMEOUT, || {
            Ok(node.metric(r#"ferrule_watch_objects{source="all-pods"}"#)? == 2.0)
        })?;
        let asked = of_peers(cluster).split_off(before);
        let resumes =
            |it: &Request| it.query.contains("watch=true") && !it.query.contains("sendInitialEvents");
        ensure!(asked.len() == 3 && asked.iter().all(resumes), "{asked:#?}");
        // Checkpoints that nothing renews would grow old.
        let is_stored = || Path::new("/run/ferrule/watch/all-pods.log").exists();
        ensure!(is_stored());
        cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, "first")?;
        wait_for_feed(node, "(healthy: open: the cluster has no policy", Duration::from_secs(30))?;
        wait_until("the checkpoint is removed", TIMEOUT, || Ok(!is_stored()))
    })
    .unwrap();
}

#[test]
fn cluster_policies_count_where_the_cluster_has_the_type_and_are_no_matter_elsewhere() {
    with_cluster(&[], |node, cluster| {
        let asked = |it: &Request| it.path == "/apis/policy.networking.k8s.io/v1alpha2";
        let answers: Vec<_> = cluster.api.requests().into_iter().filter(asked).map(|it| it.status).collect();
        ensure!(answers == [404], "{answers:?}");
        cluster.attach(node, "a")?;
        node.stop_agent()?;
        cluster.api.switch(Switch::InstallClusterPolicies { installed: true });
        let spec = json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} } });
        let policy = objects::cluster_network_policy("c", spec);
        cluster.api.create(Resource::ClusterNetworkPolicies, policy)?;
        node.start_again()?;
        wait_for_feed(node, "(healthy: following the policies (1)", TIMEOUT)?;
        cluster.api.delete(Resource::ClusterNetworkPolicies, "", "c")?;
        wait_for_feed(node, "(healthy: open: the cluster has no policy", Duration::from_secs(30))?;
        // A checkpoint of what the cluster has no longer must not serve a start without the API server.
        let is_stored = || Path::new("/run/ferrule/watch/clusternetworkpolicies.log").exists();
        ensure!(is_stored());
        node.stop_agent()?;
        cluster.api.switch(Switch::InstallClusterPolicies { installed: false });
        node.start_again()?;
        wait_until("the checkpoint is removed", TIMEOUT, || Ok(!is_stored()))
    })
    .unwrap();
}

#[test]
fn cluster_policies_of_a_version_that_the_agent_does_not_read_make_the_node_not_ready_and_are_logged() {
    with_cluster(&[], |node, cluster| {
        wait_for_feed(node, "(healthy: open: the cluster has no policy", TIMEOUT)?;
        node.stop_agent()?;
        cluster.api.switch(Switch::InstallClusterPolicies { installed: true });
        cluster.api.switch(Switch::RenameClusterPolicies { version: Some("v1beta1".to_owned()) });
        isolate(cluster, "first")?;
        node.start_again()?;
        wait_for_feed(node, "(healthy: following the policies (1)", TIMEOUT)
            .context("of a type without objects")?;
        node.stop_agent()?;
        let spec = json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} } });
        cluster.api.create(Resource::ClusterNetworkPolicies, objects::cluster_network_policy("c", spec))?;
        node.start_again()?;
        wait_for_feed(node, "(unhealthy: ClusterNetworkPolicies are not enforced", TIMEOUT)?;
        let says = feed(node)?;
        ensure!(says.contains("as v1beta1 of") && says.contains("reads v1alpha2"), "{says}");
        ensure!(node.http("/readyz")?.0 != 200, "new pods would be open to what is denied");
        ensure!(node.log().contains("ClusterNetworkPolicies are not enforced"), "it is logged");
        wait_until("NetworkPolicies are enforced", TIMEOUT, || {
            Ok(node.metric("ferrule_policy_policies")? == 1.0)
        })?;
        node.stop_agent()?;
        cluster.api.switch(Switch::RenameClusterPolicies { version: None });
        node.start_again()?;
        wait_for_feed(node, "(healthy: following the policies (2)", TIMEOUT)
    })
    .unwrap();
}

#[test]
fn an_agent_that_enforces_no_policies_reads_none() {
    with_cluster(&["--policy", "off"], |node, cluster| {
        cluster.attach(node, "a")?;
        isolate(cluster, "first")?;
        cluster.attach(node, "b")?;
        let is_of_policies = |it: &Request| {
            it.path.contains("policies")
                || it.path.contains("policy.networking")
                || it.query.contains("hostNetwork")
        };
        let asked: Vec<_> = cluster.api.requests().into_iter().filter(is_of_policies).collect();
        ensure!(asked.is_empty(), "{asked:#?}");
        ensure!(feed(node).is_err(), "a component without a meaning");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_agent_that_starts_without_its_api_server_knows_that_the_cluster_has_no_policy() {
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4, POD_V6]))?;
        cluster.start_agent(node, &[])?;
        wait_for_feed(node, "(healthy: open", TIMEOUT)?;
        node.stop_agent()?;
        cluster.api.switch(Switch::Restart { pause_ms: 60_000, history: History::Kept });
        node.start_again()?;
        wait_for_feed(node, "(healthy: open", TIMEOUT)
    })
    .unwrap();
}

#[test]
fn new_pods_wait_while_what_a_policy_asks_about_cannot_be_listed() {
    with_cluster(&[], |node, cluster| {
        wait_for_feed(node, "(healthy: open", TIMEOUT)?;
        cluster.api.switch(Switch::Deny { resource: Resource::Services, token: None });
        isolate(cluster, "first")?;
        wait_for_feed(
            node,
            "(healthy: gathering what the policies (1) ask about; waiting for the list of Services",
            TIMEOUT,
        )?;
        ensure!(node.http("/readyz")?.0 == 200, "a moment is no failure");
        wait_for_feed(node, "(unhealthy: gathering", Duration::from_secs(30))?;
        ensure!(node.http("/readyz")?.0 != 200, "new pods do wait");
        cluster.api.switch(Switch::DenyNothing {});
        wait_for_feed(node, "(healthy: following the policies (1)", Duration::from_secs(60))?;
        ensure!(node.http("/readyz")?.0 == 200);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_policy_that_is_not_understood_gets_one_event_for_each_version() {
    with_cluster(&[], |node, cluster| {
        let spec = json!({ "podSelector": {}, "newer": true });
        cluster.api.create(Resource::NetworkPolicies, objects::network_policy(NAMESPACE, "odd", spec))?;
        let notes = || -> Vec<String> {
            let events = cluster.api.list(Resource::Events).into_iter();
            let events = events.filter(|it| it["reason"] == "PolicyNotUnderstood");
            events.map(|it| it["message"].as_str().unwrap_or_default().to_owned()).collect()
        };
        wait_until("the Event is written", TIMEOUT, || Ok(notes().len() == 1))?;
        ensure!(notes().iter().all(|it| it.contains("newer") && it.contains("isolates")), "{:?}", notes());
        let event =
            cluster.api.list(Resource::Events).into_iter().find(|it| it["reason"] == "PolicyNotUnderstood");
        let about = event.context("no Event")?["involvedObject"].clone();
        ensure!(about["kind"] == "NetworkPolicy" && about["apiVersion"] == "networking.k8s.io/v1", "{about}");
        ensure!(about["namespace"] == NAMESPACE && about["name"] == "odd", "{about}");
        let patch = |patch| cluster.api.patch(Resource::NetworkPolicies, NAMESPACE, "odd", patch);
        patch(json!({ "metadata": { "labels": { "a": "b" } } }))?;
        patch(json!({ "spec": { "newer": null, "newest": true } }))?;
        wait_until("the next version has its own", TIMEOUT, || {
            Ok(notes().iter().any(|it| it.contains("newest")))
        })?;
        ensure!(notes().len() == 2, "{:?}", notes());
        ensure!(node.log().contains("a policy is not fully understood"));
        Ok(())
    })
    .unwrap();
}
