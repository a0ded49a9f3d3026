//! The operator's view of an agent, and garbage collection.

use std::time::Duration;

use anyhow::ensure;
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::{NODE, with_cluster},
    sys::wait_until,
};
use serde_json::{Value, json};

#[test]
fn readiness_does_not_depend_on_the_api_server() {
    with_cluster(&["--watch-retry-timeout", "1", "--watch-max-backoff", "1"], |node, cluster| {
        wait_until("the agent is ready", Duration::from_secs(10), || Ok(node.http("/readyz")?.0 == 200))?;
        let history = ferrule_tests::apiserver::History::Kept;
        cluster.api.switch(ferrule_tests::apiserver::Switch::Restart { pause_ms: 3_600_000, history });
        wait_until("the watch is unhealthy", Duration::from_secs(10), || {
            let status = node.ctl(&["status"])?;
            ensure!(status.contains("unhealthy"), "{status}");
            Ok(true)
        })?;
        ensure!(node.http("/readyz")?.0 == 200 && node.http("/healthz")?.0 == 200);
        node.runtime()?.status()?.into_result().map(drop)
    })
    .unwrap();
}

#[test]
fn pods_that_no_add_comes_for_are_explained_by_what_the_api_server_lists() {
    with_cluster(&[], |node, cluster| {
        let create = |name: &str, fields: Value| {
            let pod = objects::merged(objects::pod("default", name, NODE), &fields);
            cluster.api.create(Resource::Pods, pod)
        };
        let (reason, message) = ("NodePorts", "Predicate NodePorts failed");
        create("refused", json!({ "status": { "phase": "Failed", "reason": reason, "message": message } }))?;
        create("ended", json!({ "status": { "phase": "Succeeded" } }))?;
        create("of-node", json!({ "spec": { "hostNetwork": true } }))?;
        for (pod, expected) in [
            (
                "refused",
                "refused: not carried: the pod has ended (Failed): NodePorts: Predicate NodePorts failed",
            ),
            ("ended", "ended: not carried: the pod has ended (Succeeded)"),
            ("of-node", "of-node: on its node's network: hostNetwork"),
        ] {
            wait_until("the pod is explained", Duration::from_secs(10), || {
                let explained = node.ctl(&["explain", pod]).unwrap_or_else(|error| format!("{error:#}"));
                ensure!(explained.contains(expected), "{explained}");
                Ok(true)
            })?;
        }
        node.ctl(&["explain", "of-node"]).map(drop)
    })
    .unwrap();
}

#[test]
fn orphaned_attachment_is_garbage_collected() {
    with_cluster(&["--reconcile-period", "2"], |node, cluster| {
        let before = node.kernel_state()?;
        let (lost, kept, running) =
            (cluster.attach(node, "lost")?, cluster.attach(node, "kept")?, cluster.attach(node, "running")?);
        cluster.delete(&lost)?;
        lost.clone().remove()?;
        kept.clone().remove()?;
        cluster.delete(&running)?;
        wait_until("gc --dry-run explains the removal", Duration::from_secs(10), || {
            let explained = node.ctl(&["gc", "--dry-run"])?;
            Ok(["lost", "kept", "running"].iter().all(|name| explained.contains(name)))
        })?;
        wait_until("the orphan is removed", Duration::from_secs(20), || Ok(node.attachments()?.len() == 2))?;
        std::thread::sleep(Duration::from_secs(5));
        let names: Vec<_> = node.attachments()?.iter().map(|it| it["pod_name"].clone()).collect();
        ensure!(names == ["kept", "running"], "attachments of a live pod or namespace must stay: {names:?}");
        node.runtime()?.check(&running)?;
        for pod in [&kept, &running] {
            node.runtime()?.del(pod)?;
        }
        node.wait_for_kernel_state(&before)
    })
    .unwrap();
}
