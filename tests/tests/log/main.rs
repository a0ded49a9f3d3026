//! The agent's log: its form, its filter, and what must never be in it.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Options, Resource, Switch, Which, objects},
    cluster::{Cluster, KUBECONFIG, NODE},
    node::on_node,
    sys,
};
use nix::sys::signal::Signal;
use serde_json::Value;

const POD_CIDR: &str = "10.244.1.0/24";
const TIMEOUT: Duration = Duration::from_secs(10);
/// Marked, so that each trace of a secret is found.
const SECRETS: [&str; 2] = ["marked-token-1c7f", "marked-token-9ab2"];

#[test]
fn beyond_a_terminal_each_line_is_json_and_a_failed_call_names_pod_and_key() {
    on_node(|node| {
        node.use_agent("ferrule-agent", &[("FERRULE_LOG_FORMAT", "auto")]);
        node.start_agent(&[POD_CIDR])?;
        let mut pod = node.pod("web")?;
        let right = std::mem::replace(&mut pod.netns, "/run/netns/nowhere".into());
        ensure!(node.runtime()?.add(&pod).is_err(), "an ADD without a namespace must fail");
        pod.netns = right;
        let log = node.log();
        let lines: Result<Vec<Value>, _> = log.lines().map(serde_json::from_str).collect();
        let lines = lines.with_context(|| log.clone())?;
        let failed = lines.iter().find(|it| it["message"] == "a CNI call failed").context(log.clone())?;
        let field = |name: &str| failed[name].as_str().unwrap_or_default();
        ensure!(field("pod").ends_with("/web"), "{failed}");
        ensure!(field("call").contains(&pod.container_id) && field("error").contains("nowhere"), "{failed}");
        ensure!(field("level") == "WARN" && failed["code"].is_number(), "{failed}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_filter_of_the_log_changes_by_command_and_by_signal_until_the_next_start() {
    on_node(|node| {
        node.start_agent(&[POD_CIDR])?;
        ensure!(node.ctl(&["log-level"])?.trim() == "info,kube_client=off", "{}", node.ctl(&["log-level"])?);
        let changed = node.ctl(&["log-level", "ferrule_agent=debug"])?;
        ensure!(changed.trim() == "ferrule_agent=debug (before: info,kube_client=off)", "{changed}");
        let refused = format!("{:#}", node.ctl(&["log-level", "ferrule_agent=debgu"]).unwrap_err());
        ensure!(refused.contains("debgu"), "{refused}");
        node.ctl(&["log-level", "--reset"])?;
        for expected in ["info,kube_client=off,ferrule_agent=debug", "info,kube_client=off"] {
            node.signal_agent(Signal::SIGUSR1)?;
            sys::wait_until(&format!("the filter is {expected}"), TIMEOUT, || {
                Ok(node.ctl(&["log-level"])?.trim() == expected)
            })?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn no_token_of_a_kubeconfig_is_shown_at_any_level_of_the_log_nor_by_metrics_nor_ferrulectl() {
    let [first, second] = SECRETS;
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        let tokens = |token: &str| Switch::SetTokens { tokens: Some(vec![token.to_owned()]) };
        cluster.api.kubeconfig(Path::new(KUBECONFIG), Some(first))?;
        cluster.api.switch(tokens(first));
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_CIDR]))?;
        node.use_agent("ferrule-agent", &[("FERRULE_LOG", "trace")]);
        cluster.start_agent(node, &[])?;
        cluster.attach(node, "web")?;
        // Errors of authentication must not show the token either.
        cluster.api.switch(tokens(second));
        cluster.api.switch(Switch::CutWatches { which: Which::default() });
        sys::wait_until("the agent's requests are refused", TIMEOUT, || Ok(node.log().contains("401")))?;
        cluster.api.kubeconfig(Path::new(KUBECONFIG), Some(second))?;
        let mut shown = vec![("log", node.log()), ("metrics", node.http("/metrics")?.1)];
        for command in ["status", "attachments", "nodes", "verify", "log-level"] {
            shown.push((
                command,
                node.ctl(&[command, "-o", "json"]).unwrap_or_else(|error| format!("{error:#}")),
            ));
        }
        ensure!(shown[0].1.contains("TRACE"), "the log has no lines of the level trace");
        for (place, text) in shown {
            for secret in SECRETS {
                ensure!(!text.contains(secret), "{place} shows {secret}");
            }
        }
        Ok(())
    })
    .unwrap();
}
