//! The agent's log: its form, its filter, and what must never be in it.

mod secrets;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{node::on_node, sys};
use nix::sys::signal::Signal;
use serde_json::Value;

const POD_CIDR: &str = "10.244.1.0/24";
const TIMEOUT: Duration = Duration::from_secs(10);

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
        ensure!(field("key") == format!("cluster/{}/eth0", pod.container_id), "{failed}");
        ensure!(failed.get("trace").is_none(), "the call is not traced: {failed}");
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
