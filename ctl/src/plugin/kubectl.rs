//! Calls of kubectl.

use std::{
    io::ErrorKind,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};

use super::answer::Answer;

/// Finds and runs with the user's own access.
pub(super) struct Kubectl {
    common: Vec<String>,
}

/// Where the output of a command in a pod goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    /// To the own output.
    Own,
    /// To the own terminal, and the command has its input.
    Terminal,
    /// To the reader of the answer.
    Answer,
}

/// The container of the agent in its pod.
const CONTAINER: &str = "agent";
/// For questions; the command itself may take as long as it likes.
const TIMEOUT: &str = "--request-timeout=20s";

// === impl Kubectl ===

impl Kubectl {
    pub(super) fn new(context: Option<&str>, kubeconfig: Option<&Path>) -> Self {
        let context = context.map(|it| format!("--context={it}"));
        let kubeconfig = kubeconfig.map(|it| format!("--kubeconfig={}", it.display()));
        Self { common: context.into_iter().chain(kubeconfig).collect() }
    }

    /// The lines that `kubectl get` prints, without empty ones.
    ///
    /// # Errors
    /// If kubectl cannot be run, or fails: with its own words.
    pub(super) fn get(&self, what: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut command = self.command();
        let output = command.args(["get", TIMEOUT]).args(what).stdin(Stdio::null()).output();
        let output = output.map_err(unrunnable)?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("`kubectl get {}` failed: {}", what.join(" "), why.trim());
        }
        let text = String::from_utf8(output.stdout).context("kubectl printed no text")?;
        Ok(text.lines().map(str::to_owned).filter(|it| !it.is_empty()).collect())
    }

    /// Begins `ferrulectl` in a pod, which may be silent for `patience`.
    ///
    /// # Errors
    /// If kubectl cannot be run.
    pub(super) fn exec(
        &self,
        namespace: &str,
        pod: &str,
        out: Out,
        patience: Option<Duration>,
        words: &[String],
    ) -> anyhow::Result<Answer> {
        let mut command = self.command();
        command.args(["exec", "--namespace", namespace, pod, "--container", CONTAINER]);
        if out == Out::Terminal {
            command.args(["--stdin", "--tty"]);
        }
        command.args(["--", "ferrulectl"]).args(words).stderr(Stdio::piped());
        if out == Out::Answer {
            command.stdin(Stdio::null()).stdout(Stdio::piped());
        }
        Ok(Answer::of(command.spawn().map_err(unrunnable)?, patience))
    }

    fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.args(&self.common);
        command
    }
}

fn unrunnable(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound => {
            anyhow::anyhow!("found no kubectl on the PATH, which the plugin runs: install it")
        }
        _ => anyhow::Error::new(error).context("cannot run kubectl"),
    }
}
