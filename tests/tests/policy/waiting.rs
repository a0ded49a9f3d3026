//! A pod has no network before it is judged.

use std::{thread, time::Duration};

use anyhow::ensure;
use ferrule_tests::{
    apiserver::{Options, Resource, Switch, objects},
    cluster::{Cluster, NODE, with_cluster},
    node::{POD_V4, POD_V6, on_node},
    pod::NAMESPACE,
    sys,
};
use serde_json::json;

use super::fixture::{LABEL, TIMEOUT, attach, expect_isolated, isolate, label, reaches, wait_until_reaches};

#[test]
fn a_new_pod_is_isolated_from_its_first_packet_on() {
    with_cluster(&[], |node, cluster| {
        let b = attach(node, cluster, "b", &[])?;
        isolate(cluster, "p", &json!([]))?;
        sys::wait_until("the policy is known", TIMEOUT, || {
            Ok(node.metric("ferrule_policy_policies")? == 1.0)
        })?;
        for name in ["a1", "a2", "a3"] {
            let a = attach(node, cluster, name, &[LABEL])?;
            expect_isolated(&b, &a)?;
            ensure!(reaches(&a, &b)?, "what the pod sends");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_add_waits_for_what_policies_ask_about_and_says_what_is_missing() {
    with_cluster(&["--vif-timeout", "2"], |node, cluster| {
        let (b, c) = (attach(node, cluster, "b", &[])?, attach(node, cluster, "c", &[])?);
        cluster.api.switch(Switch::Deny { resource: Resource::Services, token: None });
        isolate(cluster, "p", &json!([]))?;
        sys::wait_until("the policy is known", TIMEOUT, || {
            Ok(node.http("/readyz?verbose")?.1.contains("gathering what the policies (1)"))
        })?;
        let mut a = cluster.pod(node, "a", &[])?;
        label(cluster, &a, &[LABEL])?;
        let error = node.runtime()?.call("ADD", &a)?.into_error()?;
        let text = format!("{error}");
        ensure!(
            text.contains("policies of the cluster are not in force") && text.contains("Services"),
            "{text}"
        );
        ensure!(error.code == 11, "{text}");
        ensure!(reaches(&b, &c)?, "attached pods go on");
        cluster.api.switch(Switch::DenyNothing {});
        sys::wait_until("the pod gets its network", TIMEOUT * 3, || {
            let answer = node.runtime()?.call("ADD", &a)?.into_result()?;
            a.attached(&answer)?;
            Ok(true)
        })?;
        expect_isolated(&b, &a)
    })
    .unwrap();
}

#[test]
fn pods_are_open_where_policies_were_never_listed_if_the_operator_wants_that_and_judged_with_the_list() {
    let flags = ["--policy-unlisted", "open", "--vif-timeout", "3"];
    on_node(|node| {
        let cluster = &Cluster::start(Options::default())?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4, POD_V6]))?;
        isolate(cluster, "p", &json!([]))?;
        cluster.api.switch(Switch::Deny { resource: Resource::NetworkPolicies, token: None });
        cluster.start_agent(node, &flags)?;
        sys::wait_until("new pods are open", TIMEOUT, || {
            Ok(node.http("/readyz?verbose")?.1.contains("open, with --policy-unlisted=open"))
        })?;
        let (a, b) = (attach(node, cluster, "a", &[LABEL])?, attach(node, cluster, "b", &[])?);
        ensure!(reaches(&b, &a)?, "no policy was ever listed");
        cluster.api.switch(Switch::DenyNothing {});
        wait_until_reaches(&b, &a, false)?;
        // Another start, again without an answer: rows and a checkpoint are there.
        node.stop_agent()?;
        cluster.api.switch(Switch::Deny { resource: Resource::NetworkPolicies, token: None });
        node.start_again()?;
        thread::sleep(Duration::from_secs(4));
        expect_isolated(&b, &a)
    })
    .unwrap();
}

#[test]
fn an_add_of_a_pod_that_the_api_does_not_know_fails_once_there_is_a_policy() {
    with_cluster(&["--vif-timeout", "2", "--vif-source", "ipam"], |node, cluster| {
        let free = node.attach("before")?;
        isolate(cluster, "p", &json!([]))?;
        sys::wait_until("the policy is in force", TIMEOUT, || {
            Ok(node.metric("ferrule_policy_policies")? == 1.0)
        })?;
        let pod = node.pod("unknown")?;
        let before = node.kernel_state()?;
        let error = node.runtime()?.call("ADD", &pod)?.into_error()?;
        let text = format!("{error}");
        ensure!(error.code == 11 && text.contains("unknown") && text.contains("did not deliver"), "{text}");
        node.wait_for_kernel_state(&before)?;
        let other = attach(node, cluster, "other", &[])?;
        ensure!(
            !reaches(&other, &free)?,
            "nothing is known of the pod, which is closed since there is a policy"
        );
        cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, "p")?;
        wait_until_reaches(&other, &free, true)
    })
    .unwrap();
}

#[test]
fn a_policy_too_large_for_the_maps_is_reported_and_leaves_what_is_in_force() {
    with_cluster(&[], |node, cluster| {
        let a = attach(node, cluster, "a", &[LABEL])?;
        let b = attach(node, cluster, "b", &[])?;
        isolate(cluster, "p", &json!([]))?;
        wait_until_reaches(&b, &a, false)?;
        let rule = |n: u32| {
            let cidr = format!("10.0.{}.{}/32", n / 256, n % 256);
            json!({"ports": [{"port": n}], "from": [{"ipBlock": {"cidr": cidr}}]})
        };
        isolate(cluster, "large", &(1..400).map(rule).collect())?;
        sys::wait_until("the refusal is reported", TIMEOUT, || {
            let text = node.http("/readyz?verbose")?.1;
            let line = text.lines().find(|it| it.contains(" policy ")).unwrap_or_default().to_owned();
            ensure!(line.contains("unhealthy") && line.contains("default/large"), "{text}");
            Ok(true)
        })?;
        sys::wait_until("an Event is written", TIMEOUT, || {
            let events = cluster.api.list(Resource::Events);
            Ok(events
                .iter()
                .any(|it| it["reason"] == "PolicyRefused" && it["involvedObject"]["name"] == "large"))
        })?;
        expect_isolated(&b, &a)?;
        let pod = cluster.pod(node, "later", &[])?;
        let error = node.runtime()?.call("ADD", &pod)?.into_error()?;
        ensure!(error.code == 11 && format!("{error}").contains("default/large"), "{error}");
        cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, "large")?;
        sys::wait_until("the pod gets its network", TIMEOUT, || Ok(node.runtime()?.add(&pod).is_ok()))
    })
    .unwrap();
}
