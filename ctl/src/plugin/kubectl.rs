//! Calls of kubectl.

use std::{
    io::{self, ErrorKind, Read, Write},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ChildStdout, Command, Stdio},
    thread,
};

use anyhow::{Context as _, bail};

/// Finds and runs with the user's own access.
pub(super) struct Kubectl {
    common: Vec<String>,
}

/// Where the output of a command in a pod goes.
pub(super) enum Out<'a> {
    /// To the own output.
    Own,
    /// To the own terminal, and the command has its input.
    Terminal,
    To(&'a mut dyn FnMut(ChildStdout) -> anyhow::Result<()>),
}

/// The container of the agent in its pod.
const CONTAINER: &str = "agent";
/// What kubectl says of a command that has ended with another code than 0 (`k8s.io/kubectl/pkg/cmd/exec`).
const TERMINATED: &str = "command terminated with exit code ";
/// Bytes that are kept of standard error: more than that line.
const LAST: usize = 1024;
/// What ends kubectl, as any program in Go, once its output has no reader any more (`signal(7)`, `os/signal`).
const SIGPIPE: i32 = 13;
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

    /// Runs `ferrulectl` in a pod; returns its exit code, `None` if kubectl itself has failed, in its own
    /// words on standard error. A reader that has read enough (`| head -1`) is no failure.
    ///
    /// # Errors
    /// If kubectl cannot be run, or the receiver of the output fails.
    pub(super) fn exec(
        &self,
        namespace: &str,
        pod: &str,
        out: Out<'_>,
        words: &[String],
    ) -> anyhow::Result<Option<u8>> {
        let mut command = self.command();
        command.args(["exec", "--namespace", namespace, pod, "--container", CONTAINER]);
        if matches!(out, Out::Terminal) {
            command.args(["--stdin", "--tty"]);
        }
        command.args(["--", "ferrulectl"]).args(words).stderr(Stdio::piped());
        if matches!(out, Out::To(_)) {
            command.stdout(Stdio::piped());
        }
        let mut running = command.spawn().map_err(unrunnable)?;
        let errors = running.stderr.take();
        let errors = thread::spawn(move || errors.is_some_and(|it| pass_on(it, io::stderr())));
        let received = match (out, running.stdout.take()) {
            (Out::To(receive), Some(stdout)) => receive(stdout),
            _ => Ok(()),
        };
        let ends_with_code = errors.join().unwrap_or_default();
        let status = running.wait().map_err(unrunnable)?;
        received?;
        if status.signal() == Some(SIGPIPE) {
            return Ok(Some(0));
        }
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.filter(|code| *code == 0 || ends_with_code))
    }

    fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.args(&self.common);
        command
    }
}

/// Passes standard error on as it comes. Returns whether the last line tells the command's exit code: after a
/// failure of its own, kubectl also ends with 1, and says something else.
fn pass_on(mut from: impl Read, mut to: impl Write) -> bool {
    let (mut part, mut last) = ([0; 4096], Vec::new());
    loop {
        let length = match from.read(&mut part) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let Some(bytes) = part.get(..length) else { break };
        // A closed standard error is no reason to end the command.
        let _ = to.write_all(bytes);
        last.extend_from_slice(bytes);
        let excess = last.len().saturating_sub(LAST);
        last.drain(..excess);
    }
    String::from_utf8_lossy(&last).trim_end().lines().next_back().is_some_and(|it| it.starts_with(TERMINATED))
}

fn unrunnable(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound => {
            anyhow::anyhow!("found no kubectl on the PATH, which the plugin runs: install it")
        }
        _ => anyhow::Error::new(error).context("cannot run kubectl"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_tells_a_failed_command_from_a_failed_kubectl() {
        for (text, expected) in [
            ("command terminated with exit code 1\n", true),
            ("note\ncommand terminated with exit code 3", true),
            ("", false),
            ("Error from server (Forbidden): no\n", false),
            ("command terminated with exit code 1\nerror: lost connection to pod\n", false),
        ] {
            let mut passed = Vec::new();
            assert_eq!(pass_on(text.as_bytes(), &mut passed), expected, "{text}");
            assert_eq!(passed, text.as_bytes());
        }
        let long = format!("{}\ncommand terminated with exit code 2\n", "x".repeat(100_000));
        let mut passed = Vec::new();
        assert!(pass_on(long.as_bytes(), &mut passed) && passed.len() == long.len());
    }
}
