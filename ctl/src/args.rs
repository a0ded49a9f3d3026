//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use ferrule_proto::DEFAULT_SOCKET;

use crate::{
    bench, bundle, filter::Filter, flows, gc, log_level, nodes, output::Output, pod_arg::PodArg, policy, top,
    vif,
};

/// Show the state of the Ferrule agent of this node
#[derive(Debug, Parser)]
#[command(name = "ferrulectl", version, about, after_long_help = EXIT_CODES)]
pub(crate) struct Args {
    /// Path of the agent's socket
    #[arg(long, global = true, env = "FERRULE_SOCKET", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(crate) output: Output,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List attachments: pod, container, interface, addresses, state and packet counters with drops
    ///
    /// With `-o wide`, also bytes, MAC, MTU, age, the pod's UID and its network namespace.
    Attachments(Filter),
    /// Tell the whole story of a pod: whether its packets are carried, why not, and what to do
    ///
    /// Then what that rests on: the VIF and where it came from, both ends, map rows, counters, the times of
    /// the ADD, drift, failed ADDs, policies, the last drops, and what is wrong with the node. One call to
    /// the agent, none to the API server. Exit code 0: carried. 1: not carried, or not wholly. 2: there is
    /// no answer.
    Explain(PodArg),
    /// Check a pod as the runtime's CHECK does, without a runtime, and the pod's inside too
    ///
    /// The node sends the pod the first packet of a TCP connection, which the pod refuses: the verdict of all
    /// firewalls in between. Exit code 0: no check failed. 1: a check failed. 2: there is no answer.
    Check(PodArg),
    /// Show the node's ranges, and which address is used, by whom, or rests until when
    ///
    /// Exit code 1: no address of a family is free, or the ranges are not known, or the agent cannot be
    /// reached. A chosen pod or namespace leaves its own addresses.
    Ipam(Filter),
    /// Show whether the agent is ready, and the state of each of its components
    ///
    /// Exit code 0: ready. 1: not ready, or running pods may lack connectivity, or the agent cannot be
    /// reached.
    Status,
    /// Show the nodes of the cluster, the way to each of their ranges, and what is refused
    ///
    /// Exit code 1: the agent does not know the nodes yet, or none of that name, or cannot be reached; with
    /// --ask, a range has not answered.
    Nodes(nodes::Args),
    /// Compare the kernel and the eBPF maps with the desired state, and list every deviation
    ///
    /// Read-only. Exit code 0: no deviations. 1: deviations found. 2: the agent cannot be reached. A chosen
    /// pod or namespace leaves its own deviations, and those of the node.
    Verify(Filter),
    /// Show dropped packets: when, from which pod to which, and why
    ///
    /// With `-o json`, one object a line, as `hubble observe -o json` prints; with `-o yaml`, one document
    /// each. Times are UTC. Exit code 1: the agent cannot be reached, refuses the request, or stops while
    /// --follow waits.
    Drops(flows::DropsArgs),
    /// Show dropped packets and flows, or choose with --sampling which flows are recorded
    ///
    /// The output is that of `drops`. A flow has a record when it begins, at most one a minute while packets
    /// pass, and one when TCP closes it.
    Flows(flows::FlowsArgs),
    /// Show what each pod sends, receives and loses in a second, live and sorted
    ///
    /// Without a terminal, with --once and with `-o json` or `-o yaml`: one table after one interval.
    Top(top::Args),
    /// Measure this node: what ADDs took, how long pods take to answer, and what the programs cost
    #[command(subcommand)]
    Bench(bench::Command),
    /// Explain garbage collection: which attachments may be orphaned, the proofs for and against, and the
    /// agent's verdict
    Gc(gc::Args),
    /// Collect what a bug report needs in one archive: the agent's answers, its configuration, metrics and
    /// last log lines, failed ADDs, the last records, interfaces, routes, facts about the kernel
    ///
    /// Bounded, and without secrets: passwords and tokens in URLs are removed, kubeconfigs and the
    /// environment are not read. The names and addresses of pods, nodes and policies are in it. Parts that
    /// the agent does not deliver are named in missing.txt.
    SupportBundle(bundle::Args),
    /// Show or set the filter of the agent's log, until the agent's next start
    LogLevel(log_level::Args),
    /// Show network policies, and which of them judge a pod or a packet; of a running agent, or of files
    #[command(subcommand)]
    Policy(policy::Command),
    /// Decode VIFs in manifests, without an agent
    #[command(subcommand)]
    Vif(vif::Command),
    /// Print a completion script, for instance: ferrulectl completion bash >/etc/bash_completion.d/ferrulectl
    Completion {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write a man page for each command to a directory
    Man {
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

const EXIT_CODES: &str = "\
Exit codes:
  0  the answer is a good one
  1  the answer is a bad one (the help of each command says which), or there is none
  2  the arguments are invalid; verify, explain, check and policy trace: there is no
     answer
  3  policy trace: the rows in the kernel decide otherwise than the policies

Colours appear on a terminal only, and not if NO_COLOR is set.";

/// Exit code of commands whose answer can be unwelcome, if there is none.
const UNKNOWN: u8 = 2;
const FAILURE: u8 = 1;

// === impl Command ===

impl Command {
    /// The exit code of a bad answer.
    pub(crate) fn failed(&self) -> u8 {
        match self {
            Self::Policy(policy::Command::Trace(_)) => UNKNOWN,
            _ => FAILURE,
        }
    }

    /// The pod that the command is about.
    pub(crate) fn pod(&self) -> Option<&PodArg> {
        match self {
            Self::Explain(pod) | Self::Check(pod) => Some(pod),
            _ => None,
        }
    }

    /// Whether the command needs no agent.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Vif(_) | Self::Completion { .. } | Self::Man { .. } => true,
            Self::Policy(policy) => policy.is_of_files(),
            _ => false,
        }
    }

    /// Whether the command makes sense on one node at a time: its output is no text, or never ends.
    pub(crate) fn is_for_one_node(&self) -> bool {
        match self {
            Self::SupportBundle(_) => true,
            Self::Drops(drops) => drops.follows(),
            Self::Flows(flows) => flows.follows(),
            _ => false,
        }
    }

    /// The exit code if there is no answer.
    pub(crate) fn unanswered(&self) -> u8 {
        match self {
            Self::Verify(_) | Self::Explain(_) | Self::Check(_) => UNKNOWN,
            command => command.failed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory as _;

    use super::*;
    use crate::shown;

    #[test]
    fn every_command_in_the_documents_is_one_of_ours() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let shown = shown::commands(&root, "ferrulectl").unwrap();
        assert!(shown.len() > 30, "{shown:?}");
        for shown::Shown { place, words } in shown {
            assert!(
                Args::try_parse_from(&words).is_ok(),
                "{place}: {}",
                Args::try_parse_from(&words).unwrap_err()
            );
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn an_answer_that_is_missing_differs_from_a_bad_one() {
        let code = |args: &[&str]| {
            let args = Args::try_parse_from(args).unwrap();
            (args.command.failed(), args.command.unanswered())
        };
        assert_eq!(code(&["ferrulectl", "verify"]), (1, 2));
        assert_eq!(code(&["ferrulectl", "status", "-o", "yaml"]), (1, 1));
        let trace = ["ferrulectl", "policy", "trace", "--from", "a/b", "--to", "node", "--port", "80"];
        assert_eq!(code(&trace), (2, 2));
    }
}
