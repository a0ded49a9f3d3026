//! `ctr run --cni`: containers without pod and CRI; their namespace is named by a PID.

use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use ferrule_tests::{containerd::Containerd, image::POD, node::Node, sys};

use crate::{TIMEOUT, addresses, nothing_is_left, with_containerd};

#[test]
fn ctr_containers_reach_each_other_and_leak_nothing() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        let mut runs = ["one", "two"].map(|name| containerd.ctr_run(name));
        let (one, two) = (running(node, containerd, "one")?, running(node, containerd, "two")?);
        for (from, to) in one.iter().zip(&two) {
            let exec = ["task", "exec", "--exec-id", "ask", "one", POD, "ask", &to.to_string()];
            let seen = containerd.ctr(&exec)?;
            ensure!(seen.trim() == from.to_string(), "{to} saw the client address {seen}");
        }
        for (run, name) in runs.iter_mut().zip(["one", "two"]) {
            let run = run.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            containerd.ctr(&["task", "kill", "--signal", "SIGKILL", name])?;
            sys::wait_until("ctr ends with its container", TIMEOUT, || Ok(run.try_wait()?.is_some()))?;
        }
        nothing_is_left(node, &empty)
    })
    .unwrap();
}

#[test]
fn attachment_without_del_from_ctr_is_garbage_collected() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        node.stop_agent()?;
        node.start_again_with(&["--reconcile-period", "1"])?;
        containerd.ctr_run_detached("one")?;
        running(node, containerd, "one")?;
        // A detached `ctr run` never calls DEL.
        containerd.ctr(&["task", "rm", "--force", "one"])?;
        containerd.ctr(&["container", "rm", "one"])?;
        sys::wait_until("the agent collects the attachment", TIMEOUT, || Ok(node.attachments()?.is_empty()))?;
        nothing_is_left(node, &empty)
    })
    .unwrap();
}

/// Waits until a container runs and returns its addresses, which were assigned before.
fn running(node: &Node, containerd: &Containerd, name: &str) -> anyhow::Result<Vec<IpAddr>> {
    sys::wait_until("the container runs", TIMEOUT, || {
        let tasks = containerd.ctr(&["task", "ls"])?;
        Ok(tasks.lines().any(|line| line.starts_with(name) && line.contains("RUNNING")))
    })?;
    // `ctr` prefixes the container ID with containerd's namespace.
    addresses(node, &format!("default-{name}")).context("by ctr")
}
