//! Who decides a pod's VIF, and how long a pod waits for it.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::with_cluster,
    pod::NAMESPACE,
    runtime::Runtime,
    sys,
};
use serde_json::json;

const VIF: &str = "vif.ferrule.dev/v1";
const DECIDED: &str = r#"{"interfaces":[{"addresses":["10.244.0.77"]}]}"#;

/// A runtime that hands over the pod's annotations.
fn telling(runtime: Runtime, annotations: serde_json::Value) -> Runtime {
    runtime.with("runtimeConfig", json!({ "io.kubernetes.cri.pod-annotations": annotations }))
}

#[test]
fn pain_10_an_add_is_woken_by_the_annotation_that_it_waits_for() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let (runtime, waiting) = (node.runtime()?, pod.clone());
        let adding = thread::spawn(move || runtime.add(&waiting).map(|result| (result, Instant::now())));
        thread::sleep(Duration::from_millis(500));
        ensure!(!adding.is_finished());
        let annotated = Instant::now();
        cluster.annotate(&pod, VIF, DECIDED)?;
        let (result, answered) = adding.join().map_err(|_| anyhow!("panicked"))??;
        ensure!(result["ips"][0]["address"] == "10.244.0.77/32", "{result}");
        let took = answered - annotated;
        ensure!(took < Duration::from_millis(500), "nothing is polled each second: {took:?}");
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn a_del_ends_an_add_that_waits_for_its_vif() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let before = node.kernel_state()?;
        let pod = cluster.pod(node, "a", &[])?;
        let (runtime, waiting) = (node.runtime()?, pod.clone());
        let adding = thread::spawn(move || runtime.call("ADD", &waiting)?.into_error());
        thread::sleep(Duration::from_millis(300));
        ensure!(!adding.is_finished());
        node.runtime()?.del(&pod)?;
        let error = adding.join().map_err(|_| anyhow!("panicked"))??;
        ensure!(error.code == 11 && error.msg.contains("deleted meanwhile"), "{error}");
        cluster.annotate(&pod, VIF, DECIDED)?;
        ensure!(node.attachments()?.is_empty() && node.kernel_state()? == before);
        // A new ADD of the same container is another one.
        node.runtime()?.add(&pod).map(drop)
    })
    .unwrap();
}

#[test]
fn pain_24_a_sandbox_that_was_never_deleted_does_not_keep_its_pods_address_for_ever() {
    with_cluster(&[], |node, cluster| {
        let runtime = node.runtime()?;
        let old = cluster.pod(node, "web-0", &[(VIF, DECIDED)])?;
        runtime.add(&old)?;
        let new = old.new_sandbox(900)?;
        let refused = runtime.call("ADD", &new)?.into_error()?;
        ensure!(refused.code == 11 && refused.msg.contains("in use"), "the old one lives: {refused}");
        // Its runtime loses its memory, and the namespace goes without a DEL.
        old.clone().remove()?;
        sys::wait_until("the kernel has taken its interface down", Duration::from_secs(5), || {
            Ok(!sys::run("ip -o link show")?.contains(&old.container_id))
        })?;
        let result = runtime.add(&new)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.77/32", "{result}");
        runtime.del(&old)?;
        runtime.check(&new)
    })
    .unwrap();
}

#[test]
fn an_annotation_in_the_runtimes_call_needs_no_api_server() {
    with_cluster(&["--vif-source", "annotation"], |node, _| {
        let pod = node.pod("never-seen")?;
        let result = telling(node.runtime()?, json!({ VIF: DECIDED, "other": "x" })).add(&pod)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.77/32", "{result}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn auto_is_the_annotation_where_there_is_one_and_else_the_nodes_ipam() {
    with_cluster(&[], |node, cluster| {
        let annotated = cluster.pod(node, "annotated", &[(VIF, DECIDED)])?;
        let result = node.runtime()?.add(&annotated)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.77/32", "{result}");
        let plain = cluster.pod(node, "plain", &[])?;
        let result = node.runtime()?.add(&plain)?;
        ensure!(
            result["ips"][0]["address"] == "10.244.0.2/32"
                && result["ips"].as_array().map(Vec::len) == Some(2)
        );
        let told = node.pod("told")?;
        let result = telling(node.runtime()?, json!({})).add(&told)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.3/32", "no need to see the pod: {result}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn pain_22_an_annotated_address_is_not_given_to_another_pod_by_the_ipam() {
    with_cluster(&[], |node, cluster| {
        let vif = r#"{"interfaces":[{"addresses":["10.244.0.2"]}]}"#;
        let first = cluster.pod(node, "first", &[(VIF, vif)])?;
        node.runtime()?.add(&first)?;
        let second = cluster.pod(node, "second", &[])?;
        let result = node.runtime()?.add(&second)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.3/32", "{result}");
        let thief = cluster.pod(node, "thief", &[(VIF, vif)])?;
        let refused = node.runtime()?.call("ADD", &thief)?.into_error()?;
        ensure!(refused.code == 11 && refused.msg.contains("in use"), "{refused}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn addresses_that_are_not_for_pods_are_refused_and_nothing_is_left() {
    with_cluster(&["--vif-cidr", "10.244.0.0/24", "--vif-cidr", "192.0.2.0/24"], |node, cluster| {
        let before = node.kernel_state()?;
        for (number, (addresses, why)) in [
            (r#""10.250.0.1""#, "not in the ranges"),
            (r#""192.0.2.1""#, "the node's own"),
            (r#""10.244.0.9/24", "10.244.0.10""#, "interfaces[0].addresses"),
        ]
        .into_iter()
        .enumerate()
        {
            let vif = format!(r#"{{"interfaces":[{{"addresses":[{addresses}]}}]}}"#);
            let pod = cluster.pod(node, &format!("p{number}"), &[(VIF, &vif)])?;
            let refused = node.runtime()?.call("ADD", &pod)?.into_error()?;
            ensure!(refused.code == 104 && refused.msg.contains(why), "{why}: {refused}");
            node.runtime()?.del(&pod)?;
        }
        node.wait_for_kernel_state(&before)
    })
    .unwrap();
}

#[test]
fn a_pod_that_is_gone_fails_at_once() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let (runtime, waiting) = (node.runtime()?, pod.clone());
        let adding =
            thread::spawn(move || runtime.call("ADD", &waiting).map(|answer| (answer, Instant::now())));
        thread::sleep(Duration::from_millis(300));
        let deleted = Instant::now();
        cluster.delete(&pod)?;
        let (answer, at) = adding.join().map_err(|_| anyhow!("panicked"))??;
        let refused = answer.into_error()?;
        ensure!(refused.code == 3 && at - deleted < Duration::from_secs(2), "{refused}");
        let ended = cluster.pod(node, "job", &[])?;
        cluster.api.patch(Resource::Pods, NAMESPACE, "job", objects::phase("Succeeded"))?;
        let refused = node.runtime()?.call("ADD", &ended)?.into_error()?;
        ensure!(refused.code == 3, "{refused}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn pain_6_a_pod_made_again_under_its_name_is_another_one() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let old = cluster.pod(node, "web-0", &[(VIF, DECIDED)])?;
        node.runtime()?.add(&old)?;
        cluster.delete(&old)?;
        let new =
            cluster.pod(node, "web-0", &[(VIF, r#"{"interfaces":[{"addresses":["10.244.0.78"]}]}"#)])?;
        let result = node.runtime()?.add(&new)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.78/32", "{result}");
        node.runtime()?.del(&old)?;
        node.runtime()?.check(&new)
    })
    .unwrap();
}

#[test]
fn a_static_pod_has_another_uid_at_the_kubelet_than_in_the_api() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let mirror = cluster.pod(node, "etcd", &[(VIF, DECIDED), ("kubernetes.io/config.source", "file")])?;
        let at_kubelet =
            ferrule_tests::pod::Pod { uid: "0123456789abcdef0123456789abcdef".to_owned(), ..mirror };
        node.runtime()?.add(&at_kubelet).map(drop)
    })
    .unwrap();
}

#[test]
fn an_add_that_waits_in_vain_says_so_in_time_and_on_the_pod() {
    with_cluster(&["--vif-source", "annotation", "--vif-timeout", "4"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let start = Instant::now();
        let refused = node.runtime()?.call("ADD", &pod)?.into_error()?;
        let took = start.elapsed();
        ensure!(refused.code == 11 && refused.msg.contains(VIF), "{refused}");
        ensure!(took > Duration::from_secs(4) && took < Duration::from_secs(6), "{took:?}");
        ferrule_tests::sys::wait_until("both are told", Duration::from_secs(10), || {
            let events = cluster.api.list(Resource::Events);
            let has = |reason: &str| {
                events.iter().any(|it| {
                    it["reason"] == reason
                        && it["involvedObject"]["name"] == "a"
                        && it["involvedObject"]["uid"] == pod.uid.as_str()
                })
            };
            ensure!(has("CNIWaitingForVIF") && has("CNITimedOutWaitingForVIF"), "{events:#?}");
            Ok(true)
        })?;
        node.runtime()?.del(&pod)
    })
    .unwrap();
}

#[test]
fn a_del_does_not_wait_for_an_add_that_waits() {
    with_cluster(&["--vif-source", "annotation", "--vif-timeout", "20"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let (runtime, waiting) = (node.runtime()?, pod.clone());
        let adding = thread::spawn(move || runtime.call("ADD", &waiting));
        thread::sleep(Duration::from_millis(300));
        let start = Instant::now();
        node.runtime()?.del(&pod)?;
        ensure!(start.elapsed() < Duration::from_secs(2));
        cluster.delete(&pod)?;
        adding.join().map_err(|_| anyhow!("panicked"))??.into_error()?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn who_waits_when_the_agent_stops_is_sent_away_and_is_served_by_the_next() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let (runtime, waiting) = (node.runtime()?, pod.clone());
        let adding = thread::spawn(move || runtime.call("ADD", &waiting));
        thread::sleep(Duration::from_millis(500));
        let start = Instant::now();
        node.stop_agent()?;
        ensure!(start.elapsed() < Duration::from_secs(3), "it took {:?} to stop", start.elapsed());
        let refused = adding.join().map_err(|_| anyhow!("panicked"))??.into_error()?;
        ensure!(refused.code == 11 && refused.msg.contains("stopping"), "{refused}");
        cluster.annotate(&pod, VIF, DECIDED)?;
        node.start_again()?;
        node.runtime()?.add(&pod).map(drop)
    })
    .unwrap();
}
