//! `ferrulectl policy`: network policies, of a running agent or of files.

mod ends;
mod files;
mod show;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use ferrule_policy::{Counted, shown};
use ferrule_proto::agent::{
    ExplainPoliciesRequest, ExplainPoliciesResponse, ListPoliciesRequest, ListPoliciesResponse,
    TracePoliciesRequest, TracePoliciesResponse,
};
use tonic::{Code, Status};

use self::{
    ends::{End, PodName, Traffic},
    files::Loaded,
};
use crate::{
    client,
    output::{Output, Report},
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List policies: tier, rules, the pods that each selects, and what was not understood
    ///
    /// Pods are those of this node or, with --file, of the files. Exit code 1: a file is invalid, or the
    /// agent cannot be reached.
    List(Source),
    /// List the policies and rules that judge a pod, in the order of judgement
    ///
    /// Exit code 1: the pod is not known, a file is invalid, or the agent cannot be reached.
    Explain {
        #[command(flatten)]
        source: Source,
        /// The pod
        #[arg(value_name = "NAMESPACE/POD")]
        pod: PodName,
    },
    /// Judge the first packet of a flow, and name the rule that decides at each end
    ///
    /// An agent is asked twice: the policies that it knows, and the rows of the eBPF maps. Rows exist for
    /// pods of the agent's node only. Exit code 0: allowed. 1: denied. 2: there is no answer, for instance
    /// because a pod is not known. 3: the rows decide otherwise than the policies, which is a defect.
    Trace(TraceArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// File of policies, pods, namespaces, nodes and Services in YAML or JSON, as `kubectl get -o yaml`
    /// prints them; may be repeated; - for standard input. No agent is asked
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    source: Source,
    /// Who sends: NAMESPACE/POD, an address, or `node` for the node of the other end
    #[arg(long, value_name = "END")]
    from: End,
    /// Who receives
    #[arg(long, value_name = "END")]
    to: End,
    /// The destination port, for instance 80, udp/53 or sctp/9; or icmp, or icmpv6
    #[arg(long, value_name = "[PROTOCOL/]PORT")]
    port: Traffic,
}

/// Exit codes of `trace`.
const DENIED: u8 = 1;
const DISAGREE: u8 = 3;

pub(crate) async fn run(command: &Command, socket: &Path, output: Output) -> anyhow::Result<Report> {
    match command {
        Command::List(source) => list(source, socket, output).await,
        Command::Explain { source, pod } => explain(source, pod, socket, output).await,
        Command::Trace(args) => trace(args, socket, output).await,
    }
}

async fn list(source: &Source, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let (list, notes) = match source.load()? {
        Some(Loaded { compiler, notes, .. }) => {
            (ListPoliciesResponse { state: None, policies: shown::list(&compiler, Counted::All) }, notes)
        }
        None => {
            let list = client::connect(socket).await?.list_policies(ListPoliciesRequest {}).await;
            (list.map_err(unanswered)?.into_inner(), Vec::new())
        }
    };
    Ok(Report { text: output.show(&list, show::list)?, notes, ..Report::default() })
}

async fn explain(source: &Source, pod: &PodName, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let PodName { namespace, name } = pod.clone();
    let (explained, notes): (ExplainPoliciesResponse, _) = match source.load()? {
        Some(Loaded { compiler, notes, .. }) => {
            let explained = shown::explain(&compiler, &namespace, &name);
            (explained.ok_or_else(|| anyhow!("found no pod {pod} in the files"))?, notes)
        }
        None => {
            let request = ExplainPoliciesRequest { namespace, name };
            let explained = client::connect(socket).await?.explain_policies(request).await;
            (explained.map_err(unanswered)?.into_inner(), Vec::new())
        }
    };
    let text = output.show(&explained, |it| show::explanation(pod, it))?;
    Ok(Report { text, notes, ..Report::default() })
}

async fn trace(args: &TraceArgs, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let TraceArgs { source, from, to, port } = args;
    if let (End::Node, End::Node) = (from, to) {
        bail!("found `node` at both ends, expected a pod or an address at one of them");
    }
    let (traced, notes): (TracePoliciesResponse, _) = match source.load()? {
        Some(Loaded { compiler, mut notes, problems }) => {
            let trace = compiler.trace(&from.party(), &to.party(), port.protocol, port.port);
            notes.extend(problems);
            (shown::trace(&compiler, &trace.map_err(|error| anyhow!("{error}"))?), notes)
        }
        None => {
            let request = TracePoliciesRequest {
                from: Some(from.shown()),
                to: Some(to.shown()),
                protocol: port.protocol.into(),
                port: port.port.into(),
            };
            let traced = client::connect(socket).await?.trace_policies(request).await;
            (traced.map_err(unanswered)?.into_inner(), Vec::new())
        }
    };
    let text = output.show(&traced, |it| show::trace(port, it))?;
    let notes = notes.into_iter().chain(show::disagreement(&traced)).collect();
    Ok(Report { text, notes, code: exit_code(&traced), failures: Vec::new() })
}

fn exit_code(traced: &TracePoliciesResponse) -> u8 {
    match traced {
        TracePoliciesResponse { disagree: true, .. } => DISAGREE,
        TracePoliciesResponse { allowed: false, .. } => DENIED,
        _ => 0,
    }
}

/// The agent's message, without the code.
fn unanswered(status: Status) -> anyhow::Error {
    match status.code() {
        Code::Unimplemented => anyhow!("the agent knows no policies: it is older than this ferrulectl"),
        Code::NotFound | Code::InvalidArgument => anyhow!("{}", status.message()),
        _ => anyhow::Error::new(status).context("the agent does not answer as expected"),
    }
}

// === impl Command ===

impl Command {
    /// Whether no agent is asked.
    pub(crate) fn is_of_files(&self) -> bool {
        let (Self::List(source) | Self::Explain { source, .. } | Self::Trace(TraceArgs { source, .. })) =
            self;
        !source.files.is_empty()
    }
}

// === impl Source ===

impl Source {
    /// The files; `None` if the agent is to be asked.
    fn load(&self) -> anyhow::Result<Option<Loaded>> {
        if self.files.is_empty() {
            return Ok(None);
        }
        files::load(&self.files).map(Some).context("cannot use the files")
    }
}
