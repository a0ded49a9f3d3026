//! The arguments of `kubectl ferrule`.

use std::path::PathBuf;

use clap::Parser;

/// Run ferrulectl on a node of the cluster
///
/// COMMAND is a command of ferrulectl with its arguments. `explain` and `check` run on the node of their pod.
#[derive(Debug, Parser)]
#[command(name = "kubectl-ferrule", bin_name = "kubectl ferrule", version, about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// On this node; may be repeated
    #[arg(long = "node", value_name = "NODE", group = "where")]
    pub(super) nodes: Vec<String>,
    /// On the node of this pod
    #[arg(long, value_name = "[NAMESPACE/]POD", group = "where")]
    pub(super) on: Option<String>,
    /// On every node with these labels, as `kubectl get nodes -l` takes them
    #[arg(short = 'l', long, value_name = "LABELS", group = "where")]
    pub(super) selector: Option<String>,
    /// On every node
    #[arg(long, group = "where")]
    pub(super) all_nodes: bool,
    /// Namespace of the agents
    #[arg(long, env = "FERRULE_AGENT_NAMESPACE", default_value = "ferrule-system", value_name = "NAMESPACE")]
    pub(super) agent_namespace: String,
    /// Of several nodes, give one up that writes nothing for so long
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) timeout: u64,
    /// As kubectl's own
    #[arg(long, value_name = "CONTEXT")]
    pub(super) context: Option<String>,
    /// As kubectl's own
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// The command, for instance `explain web-0 -n shop`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  kubectl ferrule explain web-0 -n shop
  kubectl ferrule --on shop/web-0 drops -f
  kubectl ferrule -l topology.kubernetes.io/zone=west status";
