//! The CNI contract from a runtime's perspective: successes, refusals, and refusals without side effects.

mod agents;
mod refusals;
mod repeated_add;
mod verbs;

use std::{fs, net::IpAddr, path::PathBuf, process::Command, thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, map_delete, on_node, with_agent, with_agent_without_healing},
    pod::Pod,
    runtime::Runtime,
    sys,
};
use serde_json::{Value, json};

/// CNI error codes; ours start at 100.
const INCOMPATIBLE_VERSION: u64 = 1;
const INVALID_ENVIRONMENT: u64 = 4;
const DECODING_FAILURE: u64 = 6;
const INVALID_CONFIG: u64 = 7;
const INVALID_NETNS: u64 = 8;
const TRY_AGAIN_LATER: u64 = 11;
const INTERFACE_EXISTS: u64 = 102;
const ROUTE_EXISTS: u64 = 103;

/// Requires a CNI error of this code, with kernel, maps and IPAM unchanged.
fn refused(node: &Node, code: u64, call: impl FnOnce() -> anyhow::Result<Value>) -> anyhow::Result<()> {
    let state = || anyhow::Ok((node.kernel_state()?, uncounted(node)?));
    let before = state()?;
    let error = match call() {
        Ok(result) => anyhow::bail!("the call succeeded: {result}"),
        Err(error) => error,
    };
    let cni = error.downcast_ref::<ferrule_tests::runtime::CniError>().context("not a CNI error")?;
    ensure!(cni.code == code, "expected code {code}, found {cni}");
    ensure!(!cni.msg.is_empty() && cni.msg.len() < 1000 && !cni.msg.contains('\n'), "{cni}");
    ensure!(state()? == before, "the refused call had side effects: {cni}");
    Ok(())
}

/// The attachments without counters, which change at any time.
fn uncounted(node: &Node) -> anyhow::Result<Vec<Value>> {
    let mut attachments = node.attachments()?;
    attachments.iter_mut().filter_map(Value::as_object_mut).for_each(|it| drop(it.remove("counters")));
    Ok(attachments)
}

/// Requires, on a node without attachments, that no address is allocated.
fn nothing_was_taken(node: &Node) -> anyhow::Result<()> {
    let first = node.attach("first")?;
    let expected = "10.244.0.2".parse()?;
    ensure!(first.addresses.first() == Some(&expected), "{:?}", first.addresses);
    Ok(())
}

fn with_env(runtime: &Runtime, pod: &Pod, key: &str, value: Option<&str>) -> anyhow::Result<Value> {
    let mut environment = runtime.environment("ADD", pod);
    environment.retain(|(name, _)| name != key);
    environment.extend(value.map(|value| (key.to_owned(), value.to_owned())));
    runtime.call_with(&environment, runtime.config().to_string().as_bytes())?.into_result()
}

fn with_stdin(runtime: &Runtime, pod: &Pod, stdin: &[u8]) -> anyhow::Result<Value> {
    runtime.call_with(&runtime.environment("ADD", pod), stdin)?.into_result()
}
