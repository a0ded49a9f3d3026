//! `kubectl ferrule`: runs `ferrulectl` in the agent's pod on the right node.
//!
//! kubectl itself finds the pods and runs the command, so that access is the user's own.

mod answer;
mod args;
mod kubectl;
mod target;
mod wrap;

use std::{
    collections::VecDeque,
    ffi::OsStr,
    io::{self, BufReader, ErrorKind, IsTerminal as _},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Parser as _;

use self::{
    answer::{Answer, End},
    args::Args,
    kubectl::{Kubectl, Out},
    target::{Agent, Chosen},
};
use crate::{
    args::{Args as Inner, Command},
    complain,
    output::Output,
    print,
};

/// How answers name their nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The only one does not.
    Plain,
    Heading,
    Json,
    Yaml,
}

/// Nodes that are asked at a time.
const AT_ONCE: usize = 8;
/// kubectl finds a plugin by this name on the PATH.
const NAME: &str = "kubectl-ferrule";

/// Whether the program was called by kubectl.
pub(crate) fn is_called(program: Option<&OsStr>) -> bool {
    program.and_then(|it| Path::new(it).file_name()).is_some_and(|it| it == NAME)
}

pub(crate) fn main() -> ExitCode {
    let plugin = Args::parse();
    let words = std::iter::once("ferrulectl").chain(plugin.command.iter().map(String::as_str));
    // Here, so that a wrong argument costs no call.
    let inner = Inner::parse_from(words);
    if inner.command.is_local() {
        return crate::run_and_report(&inner);
    }
    match run(&plugin, &inner) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(inner.command.unanswered())
        }
    }
}

/// Returns the exit code of the command; of several nodes, the largest. A node that cannot be asked is named,
/// and the others are asked.
fn run(plugin: &Args, inner: &Inner) -> anyhow::Result<u8> {
    let kubectl = Kubectl::new(plugin.context.as_deref(), plugin.kubeconfig.as_deref());
    let Chosen { agents, absent, namespace } = target::choose(plugin, inner.command.pod(), &kubectl)?;
    let is_one = agents.len() + absent.len() == 1;
    if !is_one && inner.command.is_for_one_node() {
        let nodes: Vec<_> = agents.iter().map(|it| it.node.as_str()).collect();
        bail!(
            "an archive, or output that never ends, is of one node: choose one of {} with --node",
            nodes.join(", ")
        );
    }
    absent.iter().for_each(|why| complain(why));
    let words = with_namespace(&plugin.command, namespace.as_deref());
    let mut worst = if absent.is_empty() { 0 } else { inner.command.unanswered() };
    let form = match inner.command {
        // Not a byte more than the archive.
        Command::SupportBundle(_) => Form::Plain,
        _ => plugin.form(inner.output),
    };
    // A terminal of its own: for `top`, for colours, and so that Ctrl-C ends the command in the pod.
    let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let out = if !is_one || matches!(form, Form::Json | Form::Yaml) {
        Out::Answer
    } else if has_terminal {
        Out::Terminal
    } else {
        Out::Own
    };
    let patience = (!is_one).then(|| Duration::from_secs(plugin.timeout));
    let ask = |Agent { node, pod }| {
        let answer = kubectl.exec(&plugin.agent_namespace, &pod, out, patience, &words);
        (node, answer)
    };
    let mut questions = agents.into_iter().map(ask);
    let mut asked = VecDeque::new();
    loop {
        // Answers wait for their turn, in the order of the nodes.
        asked.extend(questions.by_ref().take(AT_ONCE.saturating_sub(asked.len())));
        let Some((node, answer)) = asked.pop_front() else { return Ok(worst) };
        let failure = match show(form, &node, answer) {
            Ok(End::Code(code)) => {
                worst = worst.max(code);
                continue;
            }
            Ok(End::Silent) => format!(
                "the node {node} has not answered: no output for {} s (--timeout of kubectl ferrule)",
                plugin.timeout
            ),
            Ok(End::Failed) => {
                format!("kubectl itself has failed on the node {node}: this is no answer of ferrulectl")
            }
            // A reader that has read enough.
            Err(error) if is_broken_pipe(&error) => return Ok(worst),
            Err(error) => format!("{error:#}"),
        };
        complain(&failure);
        worst = worst.max(inner.command.unanswered());
    }
}

// === impl Args ===

impl Args {
    /// Whether the nodes are chosen so that there may be several: then each answer names its own.
    fn may_be_several(&self) -> bool {
        self.all_nodes || self.selector.is_some() || self.nodes.len() > 1
    }

    fn form(&self, output: Output) -> Form {
        match output {
            _ if !self.may_be_several() => Form::Plain,
            Output::Table | Output::Wide => Form::Heading,
            Output::Json => Form::Json,
            Output::Yaml => Form::Yaml,
        }
    }
}

/// The words of a command, and before a `--` the namespace of its pod: an agent does not know kubectl's own.
fn with_namespace(command: &[String], namespace: Option<&str>) -> Vec<String> {
    let end = command.iter().position(|it| it == "--").unwrap_or(command.len());
    let (words, rest) = command.split_at(end);
    let namespace = namespace.into_iter().flat_map(|it| ["--namespace".to_owned(), it.to_owned()]);
    words.iter().cloned().chain(namespace).chain(rest.iter().cloned()).collect()
}

/// Writes the answer of a node to the own output.
///
/// # Errors
/// If the node could not be asked, answers in another format, or the own output cannot be written.
fn show(form: Form, node: &str, answer: anyhow::Result<Answer>) -> anyhow::Result<End> {
    if form == Form::Heading {
        print(&format!("node {node}"))?;
    }
    let mut answer = answer?;
    let (from, mut out) = (BufReader::new(&mut answer), io::stdout().lock());
    let shown = match form {
        Form::Plain | Form::Heading => copy(from, &mut out),
        Form::Json => wrap::json(node, from, &mut out),
        Form::Yaml => wrap::yaml(node, from, &mut out),
    };
    // Silence makes any answer incomplete.
    if !answer.is_silent() {
        shown?;
    }
    Ok(answer.end()?)
}

fn copy(mut from: impl io::Read, mut to: impl io::Write) -> anyhow::Result<()> {
    let copied = io::copy(&mut from, &mut to);
    to.flush().and(copied).context("cannot write the output")?;
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|it| it.downcast_ref::<io::Error>());
    causes.any(|it| it.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_plugin_is_known_by_its_name() {
        for (program, expected) in [
            ("kubectl-ferrule", true),
            ("/usr/local/bin/kubectl-ferrule", true),
            ("ferrulectl", false),
            ("/kubectl-ferrule/ferrulectl", false),
        ] {
            assert_eq!(is_called(Some(OsStr::new(program))), expected, "{program}");
        }
        assert!(!is_called(None));
    }

    #[test]
    fn arguments_after_the_command_are_the_commands() {
        Args::command().debug_assert();
        let args =
            Args::try_parse_from(["kubectl-ferrule", "--node", "a", "drops", "-f", "--to", "b/c"]).unwrap();
        assert_eq!(
            (args.nodes, args.command),
            (vec!["a".to_owned()], ["drops", "-f", "--to", "b/c"].map(str::to_owned).into())
        );
        assert!(Args::try_parse_from(["kubectl-ferrule", "--node", "a", "--all-nodes", "status"]).is_err());
        assert!(Args::try_parse_from(["kubectl-ferrule"]).is_err());
    }

    #[test]
    fn every_command_in_the_documents_is_one_of_ours() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let shown = crate::shown::commands(&root, "kubectl ferrule").unwrap();
        assert!(shown.len() > 3, "{shown:?}");
        for crate::shown::Shown { place, words } in shown {
            let args =
                Args::try_parse_from(words.get(1..).unwrap()).unwrap_or_else(|it| panic!("{place}: {it}"));
            let inner = std::iter::once("ferrulectl".to_owned()).chain(args.command);
            let inner = Inner::try_parse_from(inner);
            assert!(inner.is_ok(), "{place}: {}", inner.unwrap_err());
        }
    }
}
