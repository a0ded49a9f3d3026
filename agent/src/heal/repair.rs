//! Putting right what deviates of one attachment. Whoever calls has its key.

use super::deviation::{Deviation, Kind};
use crate::{
    attach::Engine,
    chain::chain,
    dataplane::Entry,
    plug::{filter, mend::Mend, netlink::Socket},
    registry::{Attachment, HostLink},
};

/// What came of it.
pub(super) struct Repaired {
    /// The attachment as it is now: an interface that was made anew has another index.
    pub attachment: Attachment,
    /// What the kernel or the store refused, in words.
    pub failures: Vec<(Kind, String)>,
}

/// Puts right all of it that can be. In the order of a plug: what polices and what lets pass before what leads there.
pub(super) fn repair(
    engine: &Engine,
    host: &mut Socket,
    attachment: &Attachment,
    found: &[Deviation],
) -> Repaired {
    let mut repaired = Repaired { attachment: attachment.clone(), failures: Vec::new() };
    let Some(HostLink { ifname, ifindex }) = attachment.host.device() else { return repaired };
    let mut kinds: Vec<Kind> = found.iter().map(|it| it.kind).filter(|kind| kind.is_repairable()).collect();
    kinds.sort_by_key(|kind| rank(*kind));
    let is_shared = found.iter().any(|it| matches!(it.kind, Kind::AddressShared(_)));
    let (mut has_filters, mut has_entries) = (false, false);
    for kind in kinds {
        let mut mend = |mend: Mend<'_>| mend.apply(host, *ifindex).map_err(|error| chain(&error));
        let done = match kind {
            Kind::LinkGone if is_shared => Ok(()),
            Kind::LinkGone => {
                engine.restore(attachment).map_err(|error| chain(&error)).map(|it| repaired.attachment = it)
            }
            Kind::LinkGroup => mend(Mend::Group),
            Kind::LinkMaster => mend(Mend::Master),
            Kind::LinkName => mend(Mend::Name(ifname)),
            Kind::LinkMac => mend(Mend::Mac),
            Kind::LinkMtu => mend(Mend::Mtu(attachment.vif.mtu)),
            Kind::LinkDown => mend(Mend::Up),
            Kind::LinkForwarding => mend(Mend::Forwarding),
            Kind::Route(address) => mend(Mend::Route(address)),
            Kind::Neighbour(address) => mend(Mend::Neighbour(address, attachment.vif.mac)),
            // Both at once.
            Kind::Filter(_) if has_filters => Ok(()),
            Kind::Filter(_) => {
                has_filters = true;
                filter::reattach(host, *ifindex, ifname, engine.dataplane.filters())
                    .map_err(|error| chain(&error))
            }
            // All at once; and not where two would take them from each other.
            Kind::Entry(_) if has_entries || is_shared => Ok(()),
            Kind::Entry(_) => {
                has_entries = true;
                engine.dataplane.keep(*ifindex, attachment).map_err(|error| chain(&error))
            }
            // Not ours to change, or of no attachment.
            Kind::LinkStamp | Kind::Qdisc | Kind::AddressShared(_) => Ok(()),
            Kind::StrayLink | Kind::StrayEntry | Kind::NodeForwarding | Kind::Pin => Ok(()),
        };
        if let Err(error) = done {
            repaired.failures.push((kind, error));
        }
    }
    repaired
}

fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::LinkGone => 0,
        Kind::Filter(_) => 1,
        // Where it delivers comes after what may be delivered.
        Kind::Entry(Entry::Vif(_) | Entry::Counters(_)) => 2,
        Kind::Entry(Entry::Endpoint(_)) => 3,
        Kind::LinkGroup
        | Kind::LinkMaster
        | Kind::LinkForwarding
        | Kind::LinkName
        | Kind::LinkMac
        | Kind::LinkMtu => 4,
        Kind::LinkDown => 5,
        _ => 6,
    }
}
