//! Which agents are meant.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};

use super::{Args, kubectl::Kubectl};
use crate::pod_arg::PodArg;

/// An agent that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agent {
    pub(super) node: String,
    pub(super) pod: String,
}

const AGENTS: &str = "app.kubernetes.io/name=ferrule-agent";
/// Nodes that a message names.
const NAMED: usize = 5;

/// The agents on the chosen nodes; without a choice, on the node of the pod that the command is about.
///
/// # Errors
/// If kubectl fails, no agent runs on a node, or nothing chooses among several.
pub(super) fn choose(args: &Args, pod: Option<&PodArg>, kubectl: &Kubectl) -> anyhow::Result<Vec<Agent>> {
    let agents = agents(&args.agent_namespace, kubectl)?;
    let on = args.on.as_ref().map(|pod| PodArg { pod: pod.clone(), namespace: None });
    let nodes = if args.all_nodes {
        agents.keys().cloned().collect()
    } else if !args.nodes.is_empty() {
        args.nodes.clone()
    } else if let Some(selector) = &args.selector {
        let names = "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}";
        let nodes = kubectl.get(&["nodes", "-l", selector, "-o", names])?;
        ensure!(!nodes.is_empty(), "no node has the labels {selector}");
        nodes
    } else if let Some(pod) = on.as_ref().or(pod) {
        vec![node_of(pod, kubectl)?]
    } else {
        vec![only(&agents)?]
    };
    nodes.into_iter().map(|node| agent_on(&agents, node, args)).collect()
}

/// The agents that run, by node.
fn agents(namespace: &str, kubectl: &Kubectl) -> anyhow::Result<BTreeMap<String, String>> {
    let fields = "jsonpath={range .items[*]}{.spec.nodeName}{\" \"}{.metadata.name}{\" \"}{.status.phase}{\"\\n\"}{end}";
    let lines = kubectl.get(&["pods", "--namespace", namespace, "-l", AGENTS, "-o", fields])?;
    let agent = |line: &String| match line.split(' ').collect::<Vec<_>>().as_slice() {
        [node, pod, "Running"] => Some(((*node).to_owned(), (*pod).to_owned())),
        _ => None,
    };
    let agents: BTreeMap<_, _> = lines.iter().filter_map(agent).collect();
    ensure!(
        !agents.is_empty(),
        "no agent runs in the namespace {namespace}: name theirs with --agent-namespace, or see: kubectl get pods -A \
         -l {AGENTS}"
    );
    Ok(agents)
}

fn node_of(pod: &PodArg, kubectl: &Kubectl) -> anyhow::Result<String> {
    let (namespace, name) = pod.resolve()?;
    let mut what = vec!["pod", name.as_str(), "-o", "jsonpath={.spec.nodeName}"];
    if !namespace.is_empty() {
        what.extend(["--namespace", &namespace]);
    }
    match kubectl.get(&what)?.as_slice() {
        [node] => Ok(node.clone()),
        _ => bail!("the pod {name} is not scheduled to a node yet: see `kubectl describe pod {name}`"),
    }
}

fn only(agents: &BTreeMap<String, String>) -> anyhow::Result<String> {
    let mut nodes = agents.keys();
    if let (Some(node), None) = (nodes.next(), nodes.next()) {
        return Ok(node.clone());
    }
    let named: Vec<_> = agents.keys().take(NAMED).cloned().collect();
    let more = if agents.len() > NAMED { ", …" } else { "" };
    bail!(
        "{} nodes have an agent ({}{more}): choose with --node NODE, --on POD, -l LABELS or --all-nodes, before the \
         command",
        agents.len(),
        named.join(", ")
    )
}

fn agent_on(agents: &BTreeMap<String, String>, node: String, args: &Args) -> anyhow::Result<Agent> {
    match agents.get(&node) {
        Some(pod) => Ok(Agent { pod: pod.clone(), node }),
        None => bail!(
            "no agent runs on the node {node}: see: kubectl -n {} get pods -o wide --field-selector spec.nodeName={node}",
            args.agent_namespace
        ),
    }
}
