//! Real container runtimes with the real shim and agent: containerd through its CRI and by `ctr`, and podman.
//!
//! The agent itself installs plugin and network configuration in the runtimes' default directories.

mod ctr;
mod podman;
mod pods;
mod restarts;
mod without_agent;

use std::{net::IpAddr, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    containerd::{self, Containerd},
    cri::Sandbox,
    image::POD,
    node::{Node, POD_V4, POD_V6, on_node},
    pid_namespace::{BIN_DIR, CONF_DIR},
    sys,
};
use serde_json::Value;

/// The program in the containers, `src/bin/pod.rs`.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pod");
/// Flags that make the agent install plugin and network configuration.
const INSTALL: [&str; 4] = ["--cni-bin-dir", BIN_DIR, "--cni-conf-dir", CONF_DIR];
/// Name of the installed network.
const NETWORK: &str = "ferrule";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `run` on a node with containerd and an agent.
fn with_containerd<T: Send>(
    run: impl FnOnce(&mut Node, &mut Containerd) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    on_node(|node| {
        node.pid_namespace()?;
        start_agent(node)?;
        let mut containerd = Containerd::start(node, Path::new(PROGRAM))?;
        wait_for_network(&containerd)?;
        let result = run(node, &mut containerd);
        result.map_err(|error| error.context(format!("containerd's log:\n{}", containerd::log_text())))
    })
}

fn start_agent(node: &mut Node) -> anyhow::Result<()> {
    let standalone = ["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6];
    node.start_agent_with(&[&standalone[..], &INSTALL[..]].concat())
}

fn wait_for_network(containerd: &Containerd) -> anyhow::Result<()> {
    sys::wait_until("containerd's network is ready", TIMEOUT, || {
        containerd.cri().network_ready()?.map_err(anyhow::Error::msg)?;
        Ok(true)
    })
}

/// The agent's record of a container.
fn attachment(node: &Node, container_id: &str) -> anyhow::Result<Value> {
    let found =
        node.attachments()?.into_iter().find(|it| it.get("container_id") == Some(&container_id.into()));
    found.with_context(|| format!("{container_id} is not attached"))
}

/// A container's addresses as recorded by the agent, IPv4 first.
fn addresses(node: &Node, container_id: &str) -> anyhow::Result<Vec<IpAddr>> {
    let attachment = attachment(node, container_id)?;
    let addresses = attachment.get("addresses").and_then(Value::as_array).context("no addresses")?;
    addresses
        .iter()
        .map(|it| {
            let cidr = it.as_str().context("no text")?;
            Ok(cidr.split('/').next().unwrap_or(cidr).parse()?)
        })
        .collect()
}

/// Connects from one container to all addresses of another pod, and verifies the client address seen there.
fn reaches(containerd: &Containerd, container: &str, from: &[IpAddr], to: &[IpAddr]) -> anyhow::Result<()> {
    ensure!(!to.is_empty() && from.len() == to.len(), "{from:?} to {to:?}");
    for (from, to) in from.iter().zip(to) {
        let seen = containerd.cri().exec(container, &[POD, "ask", &to.to_string()])?;
        ensure!(seen == from.to_string(), "{to} saw the client address {seen}, expected {from}");
    }
    Ok(())
}

/// Stops and removes pods, and requires that nothing is left.
fn remove(node: &Node, containerd: &Containerd, pods: &[Sandbox], empty: &[String]) -> anyhow::Result<()> {
    for pod in pods {
        containerd.cri().stop(pod)?;
        containerd.cri().remove(pod)?;
    }
    nothing_is_left(node, empty)
}

fn nothing_is_left(node: &Node, empty: &[String]) -> anyhow::Result<()> {
    ensure!(node.attachments()?.is_empty(), "{:#?}", node.attachments()?);
    node.wait_for_kernel_state(empty)?;
    let netns: Vec<_> = std::fs::read_dir("/run/netns")?.collect::<Result<_, _>>()?;
    ensure!(netns.len() == 1, "leftover namespaces, besides the uplink's: {netns:?}");
    Ok(())
}
