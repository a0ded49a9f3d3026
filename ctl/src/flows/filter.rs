//! What to show: a selection, and its filters.

use std::net::IpAddr;

use anyhow::bail;
use ferrule_proto::flow::{self, FlowFilter};
use jiff::SignedDuration;

/// What to show.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Selection {
    /// Wait for new records, and show each as it comes
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Only records with this pod at either end: `namespace/name`, or the beginning of a name
    ///
    /// With --to: only records from this pod.
    #[arg(long, value_name = "POD")]
    pub(super) pod: Option<String>,
    /// Only records with a pod of this namespace at either end; with --to: from such a pod
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,
    /// Only records to this address, network or pod
    #[arg(long, value_name = "ADDRESS|CIDR|POD")]
    pub(super) to: Option<String>,
    /// Only records with this port at either end
    #[arg(long, value_name = "PORT")]
    pub(super) port: Option<u16>,
    /// Only records that are not older, for instance 5m
    #[arg(long, value_name = "TIME")]
    pub(super) since: Option<SignedDuration>,
    /// At most so many recorded ones, the newest. Default: 20; with --since all; with --follow none
    #[arg(long, value_name = "NUMBER")]
    pub(super) last: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Verdict {
    Dropped,
    Forwarded,
    /// Denied by policies, and passed, because the pod's namespace is audited
    Audit,
}

/// An end of a packet.
#[derive(Debug, Clone, Copy)]
enum End {
    Source,
    Destination,
}

const GROUPS: [&str; 3] = ["224.0.0.0/4", "255.255.255.255", "ff00::/8"];
const EITHER: [End; 2] = [End::Source, End::Destination];

/// One of the filters has to match: one for each combination of ends at which pod and port can be. None: all
/// records match.
pub(super) fn filters(selection: &Selection, verdicts: &[Verdict]) -> anyhow::Result<Vec<FlowFilter>> {
    let mut base = FlowFilter::default();
    base.verdict.extend(verdicts.iter().map(|it| i32::from(flow::Verdict::from(*it))));
    if let Some(to) = &selection.to {
        if is_network(to) {
            base.destination_ip.push(to.clone());
        } else {
            base.destination_pod.push(pattern(to)?);
        }
    }
    let mut filters = vec![base];
    if let Some(pod) = pod(selection)? {
        let ends = if selection.to.is_some() { &[End::Source][..] } else { &EITHER };
        filters = at(&filters, ends, |filter, end| match end {
            End::Source => filter.source_pod.push(pod.clone()),
            End::Destination => filter.destination_pod.push(pod.clone()),
        });
    }
    if let Some(port) = selection.port {
        filters = at(&filters, &EITHER, |filter, end| match end {
            End::Source => filter.source_port.push(port.to_string()),
            End::Destination => filter.destination_port.push(port.to_string()),
        });
    }
    filters.retain(|filter| *filter != FlowFilter::default());
    Ok(filters)
}

/// Dropped packets to groups: Hubble's reason alone could mean another one of ours.
pub(super) fn multicast() -> FlowFilter {
    FlowFilter {
        drop_reason_desc: vec![flow::DropReason::StaleOrUnroutableIp.into()],
        destination_ip: GROUPS.map(str::to_owned).into(),
        ..FlowFilter::default()
    }
}

/// Each filter with a condition at each of these ends.
fn at(filters: &[FlowFilter], ends: &[End], add: impl Fn(&mut FlowFilter, End)) -> Vec<FlowFilter> {
    let with = |filter: &FlowFilter, end: &End| {
        let mut filter = filter.clone();
        add(&mut filter, *end);
        filter
    };
    filters.iter().flat_map(|filter| ends.iter().map(move |end| with(filter, end))).collect()
}

/// The pattern of --pod and --namespace.
fn pod(selection: &Selection) -> anyhow::Result<Option<String>> {
    Ok(match (&selection.namespace, &selection.pod) {
        (None, None) => None,
        (None, Some(pod)) => Some(pattern(pod)?),
        (Some(namespace), None) => Some(format!("{namespace}/")),
        (Some(namespace), Some(pod)) => match pod.split_once('/') {
            None => Some(format!("{namespace}/{pod}")),
            Some((its, _)) if its == namespace => Some(pod.clone()),
            Some((its, _)) => bail!("--pod names the namespace {its}, and --namespace {namespace}"),
        },
    })
}

/// A pod's name without a namespace is one of any namespace.
fn pattern(pod: &str) -> anyhow::Result<String> {
    match pod.matches('/').count() {
        _ if pod.is_empty() => bail!("the name of a pod is empty"),
        0 => Ok(format!("/{pod}")),
        1 => Ok(pod.to_owned()),
        _ => bail!("invalid pod {pod:?}, expected namespace/name"),
    }
}

fn is_network(text: &str) -> bool {
    let (address, length) = text.split_once('/').unwrap_or((text, "0"));
    address.parse::<IpAddr>().is_ok() && length.parse::<u8>().is_ok()
}

// === impl Verdict ===

impl From<Verdict> for flow::Verdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Dropped => Self::Dropped,
            Verdict::Forwarded => Self::Forwarded,
            Verdict::Audit => Self::Audit,
        }
    }
}
