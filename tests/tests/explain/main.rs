//! What `ferrulectl` says of one pod: whether its packets are carried, and why not.

mod addresses;
mod broken;
mod bundle;
mod measured;
mod story;

use std::process::Command;

use anyhow::Context as _;
use ferrule_tests::dist;
use serde_json::Value;

/// Exit code and standard output of `ferrulectl`.
fn ctl(args: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let output = Command::new(dist::binary("ferrulectl")?).args(args).output()?;
    let text = String::from_utf8(output.stdout)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    Ok((output.status.code(), if text.is_empty() { errors.into_owned() } else { text }))
}

/// The answer as data, whatever the exit code.
fn data(args: &[&str]) -> anyhow::Result<Value> {
    let (_, text) = ctl(&[args, &["-o", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| text)
}

/// The first line that `explain` prints of a pod, and the exit code.
fn verdict(pod: &str) -> anyhow::Result<(Option<i32>, String)> {
    let (code, text) = ctl(&["explain", pod])?;
    Ok((code, text.lines().next().unwrap_or_default().to_owned()))
}
