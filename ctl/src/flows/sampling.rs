//! `ferrulectl flows --sampling`: which flows the programs record.

use std::{path::Path, str::FromStr};

use ferrule_proto::agent::SetFlowSamplingRequest;

use super::explain::explain;
use crate::{
    client,
    output::{Output, Report},
};

/// One in so many flows; 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sampling(pub(super) u32);

pub(super) async fn set(Sampling(one_in): Sampling, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let response = client::connect(socket).await?.set_flow_sampling(SetFlowSamplingRequest { one_in }).await;
    let before = response.map_err(explain)?.into_inner().before;
    let answer = serde_json::json!({"one_in": one_in, "before": before});
    let text = match output {
        Output::Json => answer.to_string(),
        _ => output.show(&answer, |_| format!("{} (before: {})", describe(one_in), describe(before)))?,
    };
    Ok(text.into())
}

fn describe(one_in: u32) -> String {
    match one_in {
        0 => "no flow is recorded".to_owned(),
        1 => "every flow is recorded".to_owned(),
        number => format!("one in {number} flows is recorded"),
    }
}

// === impl Sampling ===

impl FromStr for Sampling {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text == "off" => Ok(Self(0)),
            Ok(number) if number > 0 => Ok(Self(number)),
            _ => Err("expected a number from 1, or off"),
        }
    }
}
