//! The repair of one attachment. The caller holds the key's lock.

use crate::{
    chain::chain,
    dataplane::{Dataplane, Entry},
    desired::{Deviation, Kind},
    plug::{filter, netlink::Socket, repair::Repair},
    registry::{Attachment, HostLink},
};

pub(super) struct Repaired {
    /// The current attachment: a recreated interface has another index.
    pub attachment: Attachment,
    /// Failed repairs, with the error of the kernel or the store.
    pub failures: Vec<(Kind, String)>,
}

/// Repairs all repairable deviations in the order of a plug: filters, then map entries, then what leads
/// packets there. `restore` recreates a lost interface.
pub(super) fn repair(
    dataplane: &Dataplane,
    restore: impl Fn(&Attachment) -> Result<Attachment, String>,
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
        let mut set = |repair: Repair<'_>| repair.apply(host, *ifindex).map_err(|error| chain(&error));
        let done = match kind {
            Kind::LinkGone if is_shared => Ok(()),
            Kind::LinkGone => restore(attachment).map(|it| repaired.attachment = it),
            Kind::LinkGroup => set(Repair::Group),
            Kind::LinkMaster => set(Repair::Master),
            Kind::LinkName => set(Repair::Name(ifname)),
            Kind::LinkMac => set(Repair::Mac),
            Kind::LinkMtu => set(Repair::Mtu(attachment.vif.mtu)),
            Kind::LinkDown => set(Repair::Up),
            Kind::LinkForwarding => set(Repair::Forwarding),
            Kind::LinkRedirects => set(Repair::Redirects),
            Kind::LinkLocalnet => set(Repair::Localnet),
            Kind::LinkRate => attachment.wishes.ingress.map_or(Ok(()), |rate| set(Repair::Rate(rate))),
            Kind::Route(address) => set(Repair::Route(address)),
            Kind::Neighbour(address) => set(Repair::Neighbour(address, attachment.vif.mac)),
            // The first one attached both.
            Kind::Filter(_) if has_filters => Ok(()),
            Kind::Filter(_) => {
                has_filters = true;
                filter::reattach(host, *ifindex, ifname, dataplane.filters()).map_err(|error| chain(&error))
            }
            // The first one wrote all; and two attachments must not overwrite each other's entries in turn.
            Kind::Entry(_) if has_entries || is_shared => Ok(()),
            Kind::Entry(_) => {
                has_entries = true;
                dataplane.keep(*ifindex, attachment).map_err(|error| chain(&error))
            }
            // Not repairable, or not of an attachment.
            Kind::LinkStamp
            | Kind::Qdisc
            | Kind::AddressShared(_)
            | Kind::PodLink
            | Kind::PodMac
            | Kind::PodMtu
            | Kind::PodRate
            | Kind::PodAddress(_)
            | Kind::PodRoute(_)
            | Kind::PodNeighbour(_)
            | Kind::StrayLink
            | Kind::StrayEntry
            | Kind::NodeForwarding
            | Kind::NodeRedirects
            | Kind::RangeRoute
            | Kind::Masquerade
            | Kind::HostPorts
            | Kind::NodeRoutes
            | Kind::PolicyRows
            | Kind::Pin => Ok(()),
        };
        if let Err(error) = done {
            repaired.failures.push((kind, error));
        }
    }
    repaired
}

/// The order of repairs, the lowest first: nothing may pass unchecked, so that the filters precede the
/// entries, and these the link.
fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::LinkGone => 0,
        Kind::Filter(_) => 1,
        // The permission to send comes before delivery.
        Kind::Entry(Entry::Vif(_) | Entry::Counters(_)) => 2,
        Kind::Entry(Entry::Endpoint(_)) => 3,
        Kind::LinkGroup
        | Kind::LinkMaster
        | Kind::LinkForwarding
        | Kind::LinkRedirects
        | Kind::LinkLocalnet
        | Kind::LinkRate
        | Kind::LinkName
        | Kind::LinkMac
        | Kind::LinkMtu => 4,
        Kind::LinkDown => 5,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::plug::filter::Hook;

    #[test]
    fn nothing_passes_before_the_filters_and_nothing_is_delivered_before_the_permission_to_send() {
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        let order = [
            &[Kind::LinkGone][..],
            &[Kind::Filter(Hook::FromPod), Kind::Filter(Hook::ToPod)],
            &[Kind::Entry(Entry::Vif(7)), Kind::Entry(Entry::Counters(7))],
            &[Kind::Entry(Entry::Endpoint(address))],
            &[Kind::LinkGroup, Kind::LinkMaster, Kind::LinkForwarding, Kind::LinkName, Kind::LinkMac],
            &[Kind::LinkDown],
            // The kernel deletes these of a link that is down.
            &[Kind::Route(address), Kind::Neighbour(address)],
        ];
        for (place, kinds) in (0..).zip(order) {
            for kind in kinds {
                assert_eq!(rank(*kind), place, "{kind:?}");
            }
        }
        assert_eq!(rank(Kind::LinkMtu), 4);
    }
}
