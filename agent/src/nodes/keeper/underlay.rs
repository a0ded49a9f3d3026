//! What a pass of the keeper reads from the kernel before it plans.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use super::{
    super::{Nodes, plan::Underlay},
    KeepError, Keeper, State,
};
use crate::plug::{
    host,
    netlink::{NetlinkError, Socket},
    nodes::{
        areas::Areas,
        foreign::{self, Foreign, Sources},
        others::OtherRoutes,
        reach::reach,
        tunnel,
        xfrm::{self, Judge},
    },
};

/// Why packets take the stack on a host with IPsec.
const POLICIES: &str = "the host has xfrm policies (ip xfrm policy shows them)";
const BLOCKING: &str = "xfrm blocks packets without a policy (ip xfrm policy getdefault shows it)";

// === impl Keeper ===

impl Keeper {
    /// What the kernel has on the way to other nodes, and what speaks against the fast path.
    pub(super) fn underlay(
        &self,
        host: &mut Socket,
        nodes: &Nodes,
        other_routes: &OtherRoutes,
    ) -> Result<Underlay, KeepError> {
        let others = nodes.others.iter().flat_map(|node| node.addresses.iter().copied());
        let addresses = host::addresses_by_interface()?;
        let own = nodes.own.as_ref().map(|own| own.addresses.as_slice()).unwrap_or_default();
        let tunnel = tunnel::index(host)?;
        // The loopback interface has the node's address where routing is BGP unnumbered: no packet
        // from or to others passes the interface.
        let is_reached = |ifindex| Some(ifindex) != tunnel && ifindex != host::LOOPBACK;
        let has_own =
            addresses.iter().filter(|(_, address)| own.contains(address)).map(|(ifindex, _)| *ifindex);
        let mut uplinks = other_routes.uplinks.clone();
        uplinks.extend(has_own.filter(|ifindex| is_reached(*ifindex)));
        let own = addresses.iter().filter(|(ifindex, _)| Some(*ifindex) != tunnel);
        let own: BTreeSet<_> = own.map(|(_, address)| *address).collect();
        let ranges = nodes.others.iter().flat_map(|node| node.ranges.iter().copied()).collect();
        let pods = nodes.own.as_ref().map(|own| own.ranges.as_slice()).unwrap_or_default();
        let sources = match (self.outside)(pods) {
            Some(outside) => Sources::Of([pods, &outside].concat()),
            None => Sources::AnyBut(own.iter().copied().collect()),
        };
        let has_ipv6_pods = match &sources {
            Sources::Of(networks) => networks.iter().any(|it| it.addr().is_ipv6()),
            Sources::AnyBut(_) => true,
        };
        let rules = foreign::rules(host, &sources)?;
        let foreign = Foreign { rules, routes: other_routes.into_ranges(&ranges) };
        let needs_stack = match xfrm::find() {
            Ok(None) => None,
            Ok(Some(Judge::Policies)) => Some(POLICIES.to_owned()),
            Ok(Some(Judge::BlockingDefault)) => Some(BLOCKING.to_owned()),
            Err(error) => Some(format!("xfrm policies cannot be read: {error}")),
        };
        let hops = reach(host, others)?;
        Ok(Underlay { own, hops, uplinks, has_ipv6_pods, needs_stack, foreign })
    }

    /// Reads the routes of other programs, if notifications say so or ranges are elsewhere than before.
    pub(super) fn read_other_routes(&self, host: &mut Socket, state: &mut State) -> Result<(), NetlinkError> {
        let areas = Areas::around(state.nodes.others.iter().flat_map(|node| &node.ranges));
        // Before the routes are read: a change during the read causes another one.
        let have_changed = self.others_changed.swap(false, Ordering::Relaxed);
        let is_known = |known: &OtherRoutes| known.areas.contain_all(&areas);
        if have_changed || !state.other_routes.as_ref().is_some_and(is_known) {
            state.other_routes = None;
            state.other_routes = Some(OtherRoutes::read(host, areas)?);
        }
        Ok(())
    }
}
