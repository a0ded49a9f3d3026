//! `ferrulectl drops` and `ferrulectl flows`: dropped packets and flows, recorded ones and as they come.

mod explain;
mod filter;
mod json;
mod row;
mod sampling;
mod show;
#[cfg(test)]
mod tests;

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::bail;
use ferrule_proto::{
    flow::FlowFilter,
    observer::{
        GetFlowsRequest, GetFlowsResponse, ServerStatusRequest, ServerStatusResponse,
        get_flows_response::ResponseTypes, observer_client::ObserverClient,
    },
};
use jiff::SignedDuration;
use tonic::transport::Channel;

use self::{
    explain::explain,
    filter::{Selection, Verdict},
    sampling::Sampling,
    show::Printer,
};
use crate::{
    client, complain,
    output::{Output, Report},
};

#[derive(Debug, clap::Args)]
pub(crate) struct DropsArgs {
    #[command(flatten)]
    selection: Selection,
    /// Also packets to multicast groups, which are not routed
    ///
    /// The kernel of every pod sends some: reports of its groups, and solicitations of routers. Those to a
    /// group that --to names are shown in any case.
    #[arg(long)]
    multicast: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    selection: Selection,
    /// Only records with this verdict
    #[arg(long, value_enum, ignore_case = true)]
    verdict: Option<Verdict>,
    /// Record one in N flows from now on (1: every flow), or none (off), instead of showing records
    #[arg(long, value_name = "N|off", conflicts_with_all = SELECTING)]
    sampling: Option<Sampling>,
}

/// The arguments that choose what to show.
const SELECTING: [&str; 8] = ["follow", "pod", "namespace", "to", "port", "since", "last", "verdict"];
/// Recorded entries that are shown without --since, --last and --follow.
const LAST: u64 = 20;

pub(crate) async fn drops(args: &DropsArgs, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let hidden = (!args.multicast && args.selection.to.is_none()).then(filter::multicast);
    run(&args.selection, &[Verdict::Dropped, Verdict::Audit], hidden, socket, output).await
}

pub(crate) async fn flows(args: &FlowsArgs, socket: &Path, output: Output) -> anyhow::Result<Report> {
    match args.sampling {
        Some(sampling) => sampling::set(sampling, socket, output).await,
        None => run(&args.selection, args.verdict.as_slice(), None, socket, output).await,
    }
}

async fn run(
    selection: &Selection,
    verdicts: &[Verdict],
    hidden: Option<FlowFilter>,
    socket: &Path,
    output: Output,
) -> anyhow::Result<Report> {
    let mut observer = ObserverClient::new(client::channel(socket).await?);
    let mut printer = Printer::new(output, selection.follow)?;
    if selection.follow {
        hint(&mut observer, verdicts, true).await?;
    }
    let request = GetFlowsRequest { blacklist: hidden.into_iter().collect(), ..selection.request(verdicts)? };
    let mut responses = observer.get_flows(request).await.map_err(explain)?.into_inner();
    while let Some(response) = responses.message().await.map_err(explain)? {
        if !show(&response, &mut printer)? {
            return Ok(Report::default());
        }
    }
    if selection.follow {
        bail!("the agent has stopped, and with it the records: repeat the command once the agent runs again");
    }
    if printer.is_empty() {
        hint(&mut observer, verdicts, false).await?;
    }
    Ok(printer.finish())
}

/// The last records as JSON lines, for a support bundle.
pub(crate) async fn recorded(socket: &Path, number: u64) -> anyhow::Result<String> {
    let mut observer = ObserverClient::new(client::channel(socket).await?);
    let request = GetFlowsRequest { number, ..GetFlowsRequest::default() };
    let mut responses = observer.get_flows(request).await.map_err(explain)?.into_inner();
    let json = json::Json::new()?;
    let mut lines = String::new();
    while let Some(response) = responses.message().await.map_err(explain)? {
        lines += &json.line(&response)?;
        lines.push('\n');
    }
    Ok(lines)
}

/// Returns whether anything still reads the output.
fn show(response: &GetFlowsResponse, printer: &mut Printer) -> anyhow::Result<bool> {
    if let Some(ResponseTypes::LostEvents(lost)) = &response.response_types {
        complain(&format!("{} records missed: the output is not read fast enough", lost.num_events_lost));
    }
    printer.show(response)
}

/// Says on standard error why there may be nothing to show.
async fn hint(
    observer: &mut ObserverClient<Channel>,
    verdicts: &[Verdict],
    before: bool,
) -> anyhow::Result<()> {
    let status = observer.server_status(ServerStatusRequest {}).await.map_err(explain)?.into_inner();
    if let Some(hint) = describe(&status, verdicts, before) {
        complain(&hint);
    }
    Ok(())
}

fn describe(status: &ServerStatusResponse, verdicts: &[Verdict], before: bool) -> Option<String> {
    let wants_flows = verdicts.is_empty() || verdicts.contains(&Verdict::Forwarded);
    if status.flow_sampling == 0 && wants_flows {
        return Some(
            "flows are not recorded, only dropped packets; `ferrulectl flows --sampling 1` records every flow, \
             `--sampling 100` one in a hundred"
                .to_owned(),
        );
    }
    let records = status.seen_flows;
    (!before).then(|| match records {
        0 => "nothing was recorded since the agent started".to_owned(),
        _ => format!(
            "no record matches; since the agent started there were {records}, and it keeps the last {}",
            status.max_flows
        ),
    })
}

// === impl DropsArgs ===

impl DropsArgs {
    /// Whether the output ends with an interrupt only.
    pub(crate) fn follows(&self) -> bool {
        self.selection.follow
    }
}

// === impl FlowsArgs ===

impl FlowsArgs {
    /// Whether the output ends with an interrupt only.
    pub(crate) fn follows(&self) -> bool {
        self.selection.follow
    }
}

// === impl Selection ===

impl Selection {
    fn request(&self, verdicts: &[Verdict]) -> anyhow::Result<GetFlowsRequest> {
        let default = if self.follow || self.since.is_some() { 0 } else { LAST };
        Ok(GetFlowsRequest {
            number: self.last.unwrap_or(default),
            follow: self.follow,
            whitelist: filter::filters(self, verdicts)?,
            since: self.since.map(ago),
            ..GetFlowsRequest::default()
        })
    }
}

fn ago(duration: SignedDuration) -> prost_types::Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = now.saturating_sub(duration.unsigned_abs());
    prost_types::Timestamp {
        seconds: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(at.subsec_nanos()).unwrap_or_default(),
    }
}
