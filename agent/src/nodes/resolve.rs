//! Resolves the conflicts between what nodes claim, as a pure function over all of them.
//!
//! Nodes claim addresses and ranges in the order of their creation, and the first one keeps what it got: an
//! address in an older node's range is refused, and so is a range around an older node's address. When the
//! old owner of a range goes, the next resolution gives the range to the node that has waited, whichever
//! event came first.
//!
//! An address that several nodes have goes to the oldest one that the control plane hears from: a machine
//! that was registered again under another name works, although its old Node object is left. To refuse such
//! an address to all of them would let any node cut off any other. Which one gets it decides about no range:
//! ranges stay where they are while a node is lost and found again.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{Node, Nodes, Refused, claims::Claims};
use crate::{
    cluster::{self, MAX_STATED, Stated},
    ipam::{is_unicast, is_unicast_range, overlap},
};

/// The result for this node, and for its reports.
pub(super) struct Resolved {
    pub nodes: Nodes,
    /// What all nodes refuse alike, as far as this node has a part in it: they refuse something of it, or
    /// because of it.
    pub own_part: Vec<Refused>,
}

/// One view of all nodes.
struct View<'a> {
    /// Who claims earlier comes first.
    order: Vec<&'a cluster::Node>,
    services: &'a [IpNet],
    claims: Claims,
    refused: Vec<Refused>,
}

/// A refusal's reason, with the other claimant's number.
type Reason = (String, Option<usize>);

/// Shorter prefixes take too much of the address space for one node.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 16;

/// Resolves all conflicts. To this node, whatever it has itself comes before all others, so that nothing can
/// shadow its pods. Nodes without ranges or addresses are fine.
pub(super) fn resolve(known: &[Arc<cluster::Node>], own: &str, services: &[IpNet]) -> Resolved {
    let mut order: Vec<&cluster::Node> = known.iter().map(|node| &**node).collect();
    order.sort_unstable_by_key(|node| (node.created, &node.uid, &node.key));
    let at = order.iter().position(|node| node.name() == own);
    if let Some(at) = at {
        let own = order.remove(at);
        order.insert(0, own);
    }
    let has_own = at.is_some();
    let mut view = View::new(order, services);
    let own_node = if has_own { view.accept_own() } else { None };
    let mut others = view.accept(usize::from(has_own));
    others.sort_unstable_by(|one, other| (&one.name, &one.uid).cmp(&(&other.name, &other.uid)));

    let View { order, mut refused, .. } = view;
    let own_part = if has_own { own_part(order, own, services, refused.is_empty()) } else { Vec::new() };
    refused.extend(own_part.iter().filter(|it| it.node == own).cloned());
    refused.sort();
    let nodes = Nodes { is_synced: true, own: own_node, others, refused };
    Resolved { nodes, own_part }
}

/// What all nodes refuse of this node, which comes first, or because of it.
fn own_part(
    mut order: Vec<&cluster::Node>,
    own: &str,
    services: &[IpNet],
    is_free_of_conflicts: bool,
) -> Vec<Refused> {
    if is_free_of_conflicts {
        // Then all nodes agree, except about what is wrong with this one by itself.
        order.truncate(1);
    }
    order.sort_unstable_by_key(|node| (node.created, &node.uid, &node.key));
    let mut shared = View::new(order, services);
    shared.accept(0);
    shared.refused.retain(|it| it.node == own || it.claimant.as_deref() == Some(own));
    shared.refused
}

// === impl View ===

impl<'a> View<'a> {
    fn new(order: Vec<&'a cluster::Node>, services: &'a [IpNet]) -> Self {
        Self { order, services, claims: Claims::default(), refused: Vec::new() }
    }

    /// Accepts all that the first node has and can use.
    fn accept_own(&mut self) -> Option<Node> {
        let own = *self.order.first()?;
        let ranges = own.pod_cidrs().ok().flatten().map(|it| it.nets().to_vec()).unwrap_or_default();
        let mut addresses = Vec::new();
        for stated in own.addresses.iter().take(MAX_STATED) {
            if let Stated::Read(address) = stated
                && is_unicast(*address)
                && !addresses.contains(address)
            {
                addresses.push(*address);
                self.claims.add_address(*address, 0);
                self.claims.hold(*address, 0);
            }
        }
        ranges.iter().for_each(|range| self.claims.add_range(*range, 0));
        Some(node(own, addresses, ranges))
    }

    /// Accepts what the nodes from a number on may have.
    fn accept(&mut self, from: usize) -> Vec<Node> {
        let order = self.order.clone();
        let mut accepted = Vec::with_capacity(order.len());
        for (at, stated) in order.iter().enumerate().skip(from) {
            let addresses = self.judge(at, "address", &stated.addresses, Self::place_address);
            let ranges = self.judge(at, "range", &stated.ranges, Self::place_range);
            accepted.push((at, node(stated, addresses, ranges)));
        }
        let is_lost = |at: usize| order.get(at).is_some_and(|it| it.is_unreachable);
        let (lost, heard): (Vec<_>, Vec<_>) = accepted.iter_mut().partition(|(at, _)| is_lost(*at));
        for (at, node) in heard.into_iter().chain(lost) {
            self.hold(*at, &mut node.addresses);
        }
        accepted.into_iter().map(|(_, node)| node).collect()
    }

    /// Accepts or refuses each part of a node's list.
    fn judge<T: Copy + PartialEq + ToString>(
        &mut self,
        at: usize,
        what: &str,
        stated: &[Stated<T>],
        judge: impl Fn(&mut Self, T, usize) -> Result<(), Reason>,
    ) -> Vec<T> {
        let mut accepted = Vec::with_capacity(stated.len().min(MAX_STATED));
        for (number, part) in stated.iter().enumerate() {
            let judged = match part {
                _ if number >= MAX_STATED => Err((
                    format!("{MAX_STATED} of a node count, and neither this one nor any after it"),
                    None,
                )),
                Stated::Read(value) if accepted.contains(value) => continue,
                Stated::Read(value) => judge(self, *value, at).map(|()| *value),
                Stated::Unreadable(_) => Err(("it cannot be read: correct the Node object".to_owned(), None)),
            };
            match judged {
                Ok(value) => accepted.push(value),
                Err(reason) => self.refuse(at, format!("the {what} {}", text(part)), reason),
            }
        }
        accepted
    }

    fn place_address(&mut self, address: IpAddr, at: usize) -> Result<(), Reason> {
        if !is_unicast(address) {
            return Err(("no node can be reached there: it is not a unicast address".to_owned(), None));
        }
        if let Some((range, owner)) = self.claims.overlapping(address.into()) {
            let why = format!("it is in the range {range} of the node {}", self.name(owner));
            return Err((why, Some(owner)));
        }
        self.claims.add_address(address, at);
        Ok(())
    }

    /// Gives a node its addresses, but for those that others have got.
    fn hold(&mut self, at: usize, addresses: &mut Vec<IpAddr>) {
        addresses.retain(|address| {
            let holder = self.claims.hold(*address, at);
            if holder != at {
                let why = format!(
                    "the node {} has this address too, and keeps it: delete the Node that does not exist any more",
                    self.name(holder)
                );
                self.refuse(at, format!("the address {address}"), (why, Some(holder)));
            }
            holder == at
        });
    }

    fn place_range(&mut self, range: IpNet, at: usize) -> Result<(), Reason> {
        let shortest = if range.addr().is_ipv4() { SHORTEST_V4 } else { SHORTEST_V6 };
        if range.prefix_len() < shortest {
            return Err((format!("it is wider than /{shortest}"), None));
        }
        if !is_unicast_range(&range) {
            return Err(("it has addresses that are not unicast".to_owned(), None));
        }
        if let Some(service) = self.services.iter().find(|service| overlap(service, &range)) {
            return Err((format!("it overlaps the range {service} of Services"), None));
        }
        if let Some((address, owner)) = self.claims.address_in(range) {
            let why = format!("it contains {address}, the address of the node {}", self.name(owner));
            return Err((why, Some(owner)));
        }
        if let Some((other, owner)) = self.claims.overlapping(range) {
            let why = format!(
                "it overlaps {other} of the node {}, which keeps it: give one of the nodes another range, by \
                 deleting its Node object and registering it again",
                self.name(owner)
            );
            return Err((why, Some(owner)));
        }
        self.claims.add_range(range, at);
        Ok(())
    }

    fn refuse(&mut self, at: usize, what: String, (why, claimant): Reason) {
        let Some(node) = self.order.get(at) else { return };
        let claimant = claimant.filter(|owner| *owner != at).map(|owner| self.name(owner).to_owned());
        let (node, uid) = (node.name().to_owned(), Arc::clone(&node.uid));
        self.refused.push(Refused { node, uid, what, why, claimant });
    }

    fn name(&self, at: usize) -> &'a str {
        self.order.get(at).map(|node| node.name()).unwrap_or_default()
    }
}

fn node(stated: &cluster::Node, mut addresses: Vec<IpAddr>, mut ranges: Vec<IpNet>) -> Node {
    addresses.shrink_to_fit();
    ranges.shrink_to_fit();
    Node {
        uid: Arc::clone(&stated.uid),
        name: stated.key.text(),
        zone: stated.zone.as_deref().map(str::to_owned),
        addresses,
        ranges,
    }
}

fn text<T: ToString>(stated: &Stated<T>) -> String {
    match stated {
        Stated::Read(value) => value.to_string(),
        Stated::Unreadable(text) => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests;
