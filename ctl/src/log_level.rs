//! `ferrulectl log-level`: the filter of the agent's log.

use std::path::Path;

use anyhow::Context as _;
use ferrule_proto::agent::{SetLogFilterRequest, SetLogFilterResponse};
use serde_json::json;

use crate::{client, output::Output};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Levels, and targets with levels, such as `debug` or `info,ferrule_agent::watch=debug`
    #[arg(conflicts_with = "reset")]
    filter: Option<String>,
    /// Go back to the configured filter
    #[arg(long)]
    reset: bool,
}

pub async fn run(args: &Args, socket: &Path, output: Output) -> anyhow::Result<String> {
    let filter = if args.reset { Some(String::new()) } else { args.filter.clone() };
    let request = SetLogFilterRequest { filter };
    let response = client::connect(socket).await?.set_log_filter(request).await;
    let SetLogFilterResponse { before, now } =
        response.context("cannot show or set the filter of the agent's log")?.into_inner();
    let answer = json!({ "before": before, "now": now });
    if output == Output::Json {
        return Ok(answer.to_string());
    }
    let changed = if before == now { String::new() } else { format!(" (before: {before})") };
    output.show(&answer, |_| format!("{now}{changed}"))
}
