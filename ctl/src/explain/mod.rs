//! `ferrulectl explain`: the whole story of a pod.

mod interface;
mod story;
#[cfg(test)]
mod tests;

use std::path::Path;

use ferrule_proto::agent::{ExplainPodRequest, ExplainPodResponse, pod_verdict::Kind};

use crate::{
    client,
    output::{Output, Report},
    pod_arg::PodArg,
    time::now,
};

/// Exit code of a pod that is not carried, or not wholly.
const NOT_CARRIED: u8 = 1;

pub(crate) async fn run(pod: &PodArg, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let (namespace, name) = pod.resolve()?;
    let request = ExplainPodRequest { namespace, name };
    let explained = client::connect(socket).await?.explain_pod(request).await;
    let explained = explained.map_err(|status| client::unanswered(status, "explain"))?.into_inner();
    let text = output.show(&explained, |it| story::tell(it, now()))?;
    Ok(Report { text, code: exit_code(&explained), ..Report::default() })
}

fn exit_code(explained: &ExplainPodResponse) -> u8 {
    match explained.verdict.as_ref().map(|it| it.kind()) {
        Some(Kind::Carried | Kind::NodeNetwork) => 0,
        _ => NOT_CARRIED,
    }
}
