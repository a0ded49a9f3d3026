//! VIF sources: who decides a pod's VIF, and how long ADD waits for the decision.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::ensure;
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::{with_cluster, with_cluster_of},
    dist,
    node::POD_V4,
    pod::{NAMESPACE, VIF},
    runtime::Runtime,
    sys,
};
use serde_json::json;

const DECIDED: &str = r#"{"interfaces":[{"addresses":["10.244.0.77"]}]}"#;

/// A runtime that passes the pod's annotations.
fn with_pod_annotations(runtime: Runtime, annotations: serde_json::Value) -> Runtime {
    runtime.with("runtimeConfig", json!({ "io.kubernetes.cri.pod-annotations": annotations }))
}

/// What `ferrulectl explain` says, with its exit code.
fn explain(pod: &str) -> anyhow::Result<(Option<i32>, String)> {
    let output = Command::new(dist::binary("ferrulectl")?).args(["explain", pod]).output()?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

#[test]
fn waiting_add_completes_on_the_annotation_event() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let adding = node
            .runtime()?
            .in_background(&pod, |runtime, pod| runtime.add(pod).map(|result| (result, Instant::now())));
        cluster.wait_until_add_waits(&pod, "annotation vif.ferrule.dev/v1")?;
        ensure!(!adding.is_finished());
        let (code, story) = explain("a")?;
        ensure!(code == Some(1) && story.contains("waits for the pod's VIF, since "), "{story}");
        ensure!(story.contains(": no annotation vif.ferrule.dev/v1 on the pod"), "{story}");
        let annotated = Instant::now();
        cluster.annotate(&pod, VIF, DECIDED)?;
        let (result, answered) = adding.join()?;
        ensure!(result["ips"][0]["address"] == "10.244.0.77/32", "{result}");
        let took = answered - annotated;
        ensure!(took < Duration::from_secs(3), "ADD took {took:?} after the annotation, as if it polled");
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn del_cancels_an_add_that_waits_for_its_vif() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let before = node.kernel_state()?;
        let pod = cluster.pod(node, "a", &[])?;
        let adding =
            node.runtime()?.in_background(&pod, |runtime, pod| runtime.call("ADD", pod)?.into_error());
        cluster.wait_until_add_waits(&pod, "annotation vif.ferrule.dev/v1")?;
        ensure!(!adding.is_finished());
        node.runtime()?.del(&pod)?;
        let error = adding.join()?;
        ensure!(
            error.code == 11 && error.msg.contains("a DEL of this container arrived during its ADD"),
            "{error}"
        );
        cluster.annotate(&pod, VIF, DECIDED)?;
        ensure!(node.attachments()?.is_empty() && node.kernel_state()? == before);
        // A later ADD of the same container is not cancelled.
        node.runtime()?.add(&pod).map(drop)
    })
    .unwrap();
}

#[test]
fn address_of_a_sandbox_without_del_is_freed_once_its_interface_is_gone() {
    with_cluster(&[], |node, cluster| {
        let runtime = node.runtime()?;
        let old = cluster.pod(node, "web-0", &[(VIF, DECIDED)])?;
        runtime.add(&old)?;
        let new = old.new_sandbox(900)?;
        let refused = runtime.call("ADD", &new)?.into_error()?;
        ensure!(
            refused.code == 11 && refused.msg.contains("in use"),
            "wrong error while the old sandbox lives: {refused}"
        );
        // The runtime loses the old sandbox: its namespace ends without a DEL.
        old.clone().remove()?;
        sys::wait_until("the kernel has deleted the old interface", Duration::from_secs(5), || {
            Ok(!sys::run("ip -o link show")?.contains(&old.container_id))
        })?;
        let result = runtime.add(&new)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.77/32", "{result}");
        runtime.del(&old)?;
        runtime.check(&new)
    })
    .unwrap();
}

/// The pod keeps its UID while it lives, so that its deletion proves nothing before.
#[test]
fn ipam_address_of_a_sandbox_that_the_runtime_has_lost_is_freed_while_its_pod_lives() {
    with_cluster(&["--reconcile-period", "1"], |node, cluster| {
        let runtime = node.runtime()?;
        let old = cluster.attach(node, "web-0")?;
        let new = old.new_sandbox(900)?;
        runtime.add(&new)?;
        ensure!(node.attachments()?.len() == 2);
        old.clone().remove()?;
        sys::wait_until("the lost sandbox is removed", Duration::from_secs(30), || {
            Ok(node.attachments()?.len() == 1)
        })?;
        runtime.check(&new)?;
        runtime.del(&old).and_then(|()| runtime.check(&new))
    })
    .unwrap();
}

#[test]
fn annotation_in_the_call_needs_no_api_server() {
    with_cluster(&["--vif-source", "annotation"], |node, _| {
        let pod = node.pod("never-seen")?;
        let result =
            with_pod_annotations(node.runtime()?, json!({ VIF: DECIDED, "other": "x" })).add(&pod)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.77/32", "{result}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn source_auto_prefers_the_annotation_and_falls_back_to_ipam() {
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
        let reported = node.pod("reported")?;
        let result = with_pod_annotations(node.runtime()?, json!({})).add(&reported)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.3/32", "wrong address: {result}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ipam_does_not_allocate_an_annotated_address_in_use() {
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
fn addresses_outside_the_pod_ranges_are_refused_and_rolled_back() {
    with_cluster(&["--vif-cidr", "10.244.0.0/24", "--vif-cidr", "192.0.2.0/24"], |node, cluster| {
        let before = node.kernel_state()?;
        for (number, (addresses, why)) in [
            (r#""10.250.0.1""#, "outside the ranges for pods"),
            (r#""192.0.2.1""#, "belongs to the node"),
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
fn a_refused_address_changes_no_setting_of_the_node_and_an_admitted_one_does() {
    let settings = || {
        let names = ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/uplink/accept_ra"];
        let values = names.map(|it| fs::read_to_string(format!("/proc/sys/net/{it}")));
        let values = values.into_iter().collect::<Result<Vec<_>, _>>()?;
        anyhow::Ok(values.iter().map(|it| it.trim().to_owned()).collect::<Vec<_>>())
    };
    let vif = r#"{"interfaces":[{"addresses":["10.244.0.9","fd00:9::9"]}]}"#;
    for (ranges, is_admitted) in [(&["10.244.0.0/24"][..], false), (&["10.244.0.0/24", "fd00:9::/64"], true)]
    {
        let ranges = ranges.iter().flat_map(|it| ["--vif-cidr", *it]).collect::<Vec<_>>();
        with_cluster_of(&[POD_V4], &ranges, |node, cluster| {
            ensure!(settings()? == ["1", "0", "1"], "{:?}", settings()?);
            let pod = cluster.pod(node, "a", &[(VIF, vif)])?;
            let outcome = node.runtime()?.call("ADD", &pod)?;
            if is_admitted {
                outcome.into_result()?;
                ensure!(settings()? == ["1", "1", "2"], "{:?}", settings()?);
            } else {
                let refused = outcome.into_error()?;
                ensure!(refused.code == 104 && refused.msg.contains("fd00:9::9"), "{refused}");
                ensure!(settings()? == ["1", "0", "1"], "{:?}", settings()?);
            }
            node.runtime()?.del(&pod)
        })
        .unwrap();
    }
}

#[test]
fn add_of_a_deleted_pod_fails_immediately() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let adding = node.runtime()?.in_background(&pod, |runtime, pod| {
            runtime.call("ADD", pod).map(|answer| (answer, Instant::now()))
        });
        cluster.wait_until_add_waits(&pod, "annotation vif.ferrule.dev/v1")?;
        let deleted = Instant::now();
        cluster.delete(&pod)?;
        let (answer, at) = adding.join()?;
        let refused = answer.into_error()?;
        ensure!(refused.code == 3 && at - deleted < Duration::from_secs(5), "{refused}");
        let ended = cluster.pod(node, "job", &[])?;
        cluster.api.patch(Resource::Pods, NAMESPACE, "job", objects::phase("Succeeded"))?;
        let refused = node.runtime()?.call("ADD", &ended)?.into_error()?;
        ensure!(refused.code == 3, "{refused}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn recreated_pod_of_the_same_name_is_distinguished_by_uid() {
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
fn static_pod_with_a_different_uid_in_the_api_is_attached() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let hash = "0123456789abcdef0123456789abcdef";
        let annotations =
            [(VIF, DECIDED), ("kubernetes.io/config.source", "file"), ("kubernetes.io/config.mirror", hash)];
        let mirror = cluster.pod(node, "etcd", &annotations)?;
        let at_kubelet = ferrule_tests::pod::Pod { uid: hash.to_owned(), ..mirror };
        node.runtime()?.add(&at_kubelet).map(drop)
    })
    .unwrap();
}

#[test]
fn add_without_a_vif_decision_times_out_and_emits_an_event() {
    with_cluster(&["--vif-source", "annotation", "--vif-timeout", "4"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let start = Instant::now();
        let refused = node.runtime()?.call("ADD", &pod)?.into_error()?;
        let took = start.elapsed();
        ensure!(refused.code == 11 && refused.msg.contains(VIF), "{refused}");
        ensure!(took > Duration::from_secs(4) && took < Duration::from_secs(9), "{took:?}");
        ferrule_tests::sys::wait_until("both events are recorded", Duration::from_secs(10), || {
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
fn del_is_not_blocked_by_a_waiting_add() {
    with_cluster(&["--vif-source", "annotation", "--vif-timeout", "20"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let adding = node.runtime()?.in_background(&pod, |runtime, pod| runtime.call("ADD", pod));
        cluster.wait_until_add_waits(&pod, "annotation vif.ferrule.dev/v1")?;
        let start = Instant::now();
        node.runtime()?.del(&pod)?;
        ensure!(start.elapsed() < Duration::from_secs(10));
        cluster.delete(&pod)?;
        adding.join()?.into_error()?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn waiting_add_is_cancelled_at_shutdown_and_succeeds_on_retry() {
    with_cluster(&["--vif-source", "annotation"], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let adding = node.runtime()?.in_background(&pod, |runtime, pod| runtime.call("ADD", pod));
        cluster.wait_until_add_waits(&pod, "annotation vif.ferrule.dev/v1")?;
        let start = Instant::now();
        node.stop_agent()?;
        ensure!(start.elapsed() < Duration::from_secs(3), "shutdown took {:?}", start.elapsed());
        let refused = adding.join()?.into_error()?;
        ensure!(refused.code == 11 && refused.msg.contains("stopping"), "{refused}");
        cluster.annotate(&pod, VIF, DECIDED)?;
        node.start_again()?;
        node.runtime()?.add(&pod).map(drop)
    })
    .unwrap();
}
