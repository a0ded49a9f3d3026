//! `ctr run --cni`: no pod, no CRI, and a namespace that is known by a PID.

use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use ferrule_tests::{containerd::Containerd, image::POD, node::Node, sys};

use crate::{PATIENCE, addresses, nothing_is_left, with_containerd};

#[test]
fn containers_of_ctr_reach_each_other_and_leave_nothing() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        let mut runs = ["one", "two"].map(|name| containerd.ctr_run(name));
        let (one, two) = (running(node, containerd, "one")?, running(node, containerd, "two")?);
        for (from, to) in one.iter().zip(&two) {
            let exec = ["task", "exec", "--exec-id", "ask", "one", POD, "ask", &to.to_string()];
            let seen = containerd.ctr(&exec)?;
            ensure!(seen.trim() == from.to_string(), "{to} saw {seen}");
        }
        for (run, name) in runs.iter_mut().zip(["one", "two"]) {
            let run = run.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            containerd.ctr(&["task", "kill", "--signal", "SIGKILL", name])?;
            sys::wait_until("ctr ends with its container", PATIENCE, || Ok(run.try_wait()?.is_some()))?;
        }
        nothing_is_left(node, &empty)
    })
    .unwrap();
}

#[test]
fn what_ctr_forgets_to_delete_is_collected() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        node.stop_agent()?;
        node.start_again_with(&["--reconcile-period", "1"])?;
        containerd.ctr_run_detached("one")?;
        running(node, containerd, "one")?;
        // Detached, it calls no DEL at the end.
        containerd.ctr(&["task", "rm", "--force", "one"])?;
        containerd.ctr(&["container", "rm", "one"])?;
        sys::wait_until("the agent collects the attachment", PATIENCE, || {
            Ok(node.attachments()?.is_empty())
        })?;
        nothing_is_left(node, &empty)
    })
    .unwrap();
}

/// Waits until a container runs, and gives its addresses. It is attached before.
fn running(node: &Node, containerd: &Containerd, name: &str) -> anyhow::Result<Vec<IpAddr>> {
    sys::wait_until("the container runs", PATIENCE, || {
        let tasks = containerd.ctr(&["task", "ls"])?;
        Ok(tasks.lines().any(|line| line.starts_with(name) && line.contains("RUNNING")))
    })?;
    // As ctr tells a plugin: with containerd's namespace.
    addresses(node, &format!("default-{name}")).context("by ctr")
}
