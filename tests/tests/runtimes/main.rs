//! Real container runtimes with the real shim and agent: containerd through its CRI and by `ctr`, and podman.
//!
//! The agent installs plugin and network itself, where the runtimes look for them.

mod away;
mod ctr;
mod podman;
mod pods;
mod restarts;

use std::{net::IpAddr, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    cage::{BIN_DIR, CONF_DIR},
    containerd::{self, Containerd},
    cri::Sandbox,
    image::POD,
    node::{Node, POD_V4, POD_V6, on_node},
    sys,
};
use serde_json::Value;

/// The program in the containers.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pod");
/// By these flags the agent installs plugin and network.
const INSTALL: [&str; 4] = ["--cni-bin-dir", BIN_DIR, "--cni-conf-dir", CONF_DIR];
/// The network, as the agent calls it.
const NETWORK: &str = "ferrule";
const PATIENCE: Duration = Duration::from_secs(30);

/// A node with a containerd and an agent.
fn with_containerd<T: Send>(
    run: impl FnOnce(&mut Node, &mut Containerd) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    on_node(|node| {
        node.cage()?;
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
    sys::wait_until("containerd says that its network is ready", PATIENCE, || {
        containerd.cri().network_ready()?.map_err(anyhow::Error::msg)?;
        Ok(true)
    })
}

/// What the agent has of a container.
fn attachment(node: &Node, container_id: &str) -> anyhow::Result<Value> {
    let found =
        node.attachments()?.into_iter().find(|it| it.get("container_id") == Some(&container_id.into()));
    found.with_context(|| format!("{container_id} is not attached"))
}

/// The addresses that the agent gave a container, IPv4 first.
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

/// From a container of one pod to the container of another, by all its addresses: who it is seen as there.
fn reaches(containerd: &Containerd, container: &str, from: &[IpAddr], to: &[IpAddr]) -> anyhow::Result<()> {
    ensure!(!to.is_empty() && from.len() == to.len(), "{from:?} to {to:?}");
    for (from, to) in from.iter().zip(to) {
        let seen = containerd.cri().exec(container, &[POD, "ask", &to.to_string()])?;
        ensure!(seen == from.to_string(), "{to} was asked by {from}, and saw {seen}");
    }
    Ok(())
}

/// Stops and removes pods, and asserts that nothing is left of them.
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
    ensure!(netns.len() == 1, "namespaces of pods are left, besides the uplink's: {netns:?}");
    Ok(())
}
