//! Which agents are meant.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{bail, ensure};

use super::{args::Args, kubectl::Kubectl};
use crate::pod_arg::PodArg;

/// An agent that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agent {
    pub(super) node: String,
    pub(super) pod: String,
}

/// The agents on the chosen nodes.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub(super) agents: Vec<Agent>,
    /// Why chosen nodes have none, one line each.
    pub(super) absent: Vec<String>,
    /// Where kubectl has found the pod that the command is about, if the command does not say.
    pub(super) namespace: Option<String>,
}

/// The pods of agents.
#[derive(Debug, Default)]
struct Agents {
    /// By node: the one that runs.
    running: BTreeMap<String, String>,
    nodes: BTreeSet<String>,
    /// Those that no node has yet.
    unscheduled: Vec<String>,
}

/// Where a pod is.
struct Place {
    node: String,
    namespace: String,
}

const AGENTS: &str = "app.kubernetes.io/name=ferrule-agent";
/// Nodes that a message names.
const NAMED: usize = 5;

/// The agents on the chosen nodes; without a choice, on the node of the pod that the command is about.
///
/// # Errors
/// If kubectl fails, no node has an agent, or nothing chooses among several.
pub(super) fn choose(args: &Args, pod: Option<&PodArg>, kubectl: &Kubectl) -> anyhow::Result<Chosen> {
    let agents = agents(&args.agent_namespace, kubectl)?;
    let mut chosen = Chosen::default();
    let on = args.on.as_ref().map(|pod| PodArg { pod: pod.clone(), namespace: None });
    let nodes = if args.all_nodes {
        chosen.absent.extend(agents.unscheduled.iter().map(|pod| {
            format!(
                "the agent {pod} is on no node yet: see: kubectl -n {} describe pod {pod}",
                args.agent_namespace
            )
        }));
        agents.nodes.iter().cloned().collect()
    } else if !args.nodes.is_empty() {
        args.nodes.clone()
    } else if let Some(selector) = &args.selector {
        let names = "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}";
        let nodes = kubectl.get(&["nodes", "-l", selector, "-o", names])?;
        ensure!(!nodes.is_empty(), "no node has the labels {selector}");
        nodes
    } else if let Some(pod) = &on {
        vec![place_of(pod, kubectl)?.node]
    } else if let Some(pod) = pod {
        let place = place_of(pod, kubectl)?;
        chosen.namespace = (!pod.names_namespace()).then_some(place.namespace);
        vec![place.node]
    } else {
        vec![only(&agents.nodes)?]
    };
    for node in nodes {
        match agents.running.get(&node) {
            Some(pod) => chosen.agents.push(Agent { pod: pod.clone(), node }),
            None => chosen.absent.push(format!(
                "no agent runs on the node {node}: see: kubectl -n {} get pods -o wide --field-selector \
                 spec.nodeName={node}",
                args.agent_namespace
            )),
        }
    }
    Ok(chosen)
}

fn agents(namespace: &str, kubectl: &Kubectl) -> anyhow::Result<Agents> {
    let fields = "jsonpath={range .items[*]}{.spec.nodeName}{\" \"}{.metadata.name}{\" \"}{.status.phase}{\"\\n\"}{end}";
    let lines = kubectl.get(&["pods", "--namespace", namespace, "-l", AGENTS, "-o", fields])?;
    let mut agents = Agents::default();
    for line in &lines {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["", pod, _] => agents.unscheduled.push((*pod).to_owned()),
            [node, pod, phase] => {
                agents.nodes.insert((*node).to_owned());
                if *phase == "Running" {
                    agents.running.insert((*node).to_owned(), (*pod).to_owned());
                }
            }
            _ => bail!("kubectl printed {line:?}, and not the node, name and phase of a pod"),
        }
    }
    ensure!(
        !lines.is_empty(),
        "no agent runs in the namespace {namespace}: name theirs with --agent-namespace, or see: kubectl get pods -A \
         -l {AGENTS}"
    );
    Ok(agents)
}

fn place_of(pod: &PodArg, kubectl: &Kubectl) -> anyhow::Result<Place> {
    let (namespace, name) = pod.resolve()?;
    let mut what = vec!["pod", name.as_str(), "-o", "jsonpath={.spec.nodeName} {.metadata.namespace}"];
    if !namespace.is_empty() {
        what.extend(["--namespace", &namespace]);
    }
    let lines = kubectl.get(&what)?;
    match lines.first().and_then(|it| it.split_once(' ')) {
        Some((node, namespace)) if !node.is_empty() => {
            Ok(Place { node: node.to_owned(), namespace: namespace.to_owned() })
        }
        _ => bail!("the pod {name} is not scheduled to a node yet: see `kubectl describe pod {name}`"),
    }
}

fn only(all: &BTreeSet<String>) -> anyhow::Result<String> {
    let mut nodes = all.iter();
    if let (Some(node), None) = (nodes.next(), nodes.next()) {
        return Ok(node.clone());
    }
    let named: Vec<_> = all.iter().take(NAMED).cloned().collect();
    let more = if all.len() > NAMED { ", …" } else { "" };
    bail!(
        "{} nodes have an agent ({}{more}): choose with --node NODE, --on POD, -l LABELS or --all-nodes, before the \
         command",
        all.len(),
        named.join(", ")
    )
}
