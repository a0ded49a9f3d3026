//! The last dropped packets of a pod, in words.

use agent_common::DropReason;
use ferrule_proto::agent::DroppedPacket;

use super::{
    history::{CAPACITY, History},
    seen::{Direction, Pod, Seen, Verdict},
    show,
};
use crate::registry::Key;

/// The last dropped packets with one of these attachments at an end, the newest first; without those to
/// multicast groups, which the kernel of every pod sends.
pub fn drops(history: &History, of: &[Key], most: usize) -> Vec<DroppedPacket> {
    let is_its = |seen: &Seen| {
        let ends = [&seen.source, &seen.destination];
        ends.into_iter().flatten().filter_map(Pod::own).any(|owner| of.contains(&owner.key))
    };
    let entries = history.read(0, CAPACITY).entries;
    let all = entries.iter().rev().filter(|it| is_its(it)).filter_map(|it| shown(it));
    all.filter(|it| it.reason != DropReason::Multicast.name()).take(most).collect()
}

#[expect(deprecated, reason = "the summary is a field that clients of Hubble show")]
fn shown(seen: &Seen) -> Option<DroppedPacket> {
    let Verdict::Dropped { is_audited, .. } = seen.verdict else { return None };
    let flow = show::flow(seen, "");
    let (source, destination) = flow
        .ip
        .map(|ip| (ip.source, ip.destination))
        .or_else(|| {
            let macs = flow.ethernet?;
            Some((macs.source, macs.destination))
        })
        .unwrap_or_default();
    let named = |pod: Option<&Pod>, address: String| match pod {
        Some(pod) if pod.namespace().is_empty() => format!("{} ({address})", pod.name()),
        Some(pod) => format!("{}/{} ({address})", pod.namespace(), pod.name()),
        None => address,
    };
    Some(DroppedPacket {
        time_ms: seen.time / 1_000_000,
        direction: direction(seen.direction).to_owned(),
        source: named(seen.source.as_ref(), source),
        destination: named(seen.destination.as_ref(), destination),
        summary: flow.summary,
        reason: flow.ferrule.map(|it| it.reason).unwrap_or_default(),
        audited: is_audited,
    })
}

/// The pod's.
fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
        Direction::Link => "link",
        Direction::Unknown => "unknown",
    }
}
