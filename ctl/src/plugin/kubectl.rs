//! Calls of kubectl.

use std::{
    io::ErrorKind,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

/// Finds and runs with the user's own access.
pub(super) struct Kubectl {
    common: Vec<String>,
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

    /// Runs `ferrulectl` in a pod; returns its exit code, `None` after a signal.
    ///
    /// # Errors
    /// If kubectl cannot be run.
    pub(super) fn exec(
        &self,
        namespace: &str,
        pod: &str,
        tty: bool,
        words: &[String],
    ) -> anyhow::Result<Option<u8>> {
        let mut command = self.command();
        command.args(["exec", "--namespace", namespace, pod, "--container", CONTAINER]);
        if tty {
            command.args(["--stdin", "--tty"]);
        }
        let status = command.args(["--", "ferrulectl"]).args(words).status().map_err(unrunnable)?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()))
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
