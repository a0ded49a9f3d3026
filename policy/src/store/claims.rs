//! Whose an address is.
//!
//! Events cross: a new pod may get an address before the old one's deletion is seen, and an object may keep
//! an address that its pod has lost. So parties claim addresses, and the owner follows from all claims,
//! whatever their order.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use super::{Kind, Party, PartyId, Store, Uid, Work};
use crate::Addr;

impl Store {
    /// The owner of an address, if it counts as a peer: an endpoint of this node before all others, pods
    /// before nodes, living ones before those that are being deleted, and then the youngest.
    pub(crate) fn owner(&self, addr: Addr) -> Option<&Arc<Party>> {
        let claims = self.claims.range((addr, PartyId::MIN)..=(addr, PartyId::MAX));
        let mut parties =
            claims.filter_map(|(_, id)| self.parties.get(id)).filter(|party| self.is_placed(party));
        let first = parties.next()?;
        let Some(second) = parties.next() else { return Some(first) };
        [first, second].into_iter().chain(parties).min_by_key(|party| {
            let is_local = self.local_addresses(&party.uid).any(|it| it == addr);
            let is_node = party.kind == Kind::Node;
            (!is_local, is_node, party.is_deleting, Reverse(party.created), Reverse(party.uid.clone()))
        })
    }

    /// The addresses that a party claims.
    pub(crate) fn claimed_by(&self, party: &Party) -> BTreeSet<Addr> {
        if party.kind == Kind::Ignored {
            return BTreeSet::new();
        }
        let listed = party.addresses.iter().copied().filter(|_| !party.is_gone);
        listed.chain(self.local_addresses(&party.uid)).collect()
    }

    /// Applies a change that may affect what a party claims, and adds what it claimed and claims to the work.
    pub(super) fn with_claims(&mut self, uid: &Uid, work: &mut Work, change: impl FnOnce(&mut Self)) {
        let claimed = |store: &Self| {
            let (id, party) = store.party_of(uid)?;
            Some((id, store.claimed_by(party)))
        };
        let old = claimed(self);
        change(self);
        let new = claimed(self);
        for (id, addresses) in old.iter() {
            for addr in addresses {
                self.claims.remove(&(*addr, *id));
            }
            work.addresses.extend(addresses);
        }
        for (id, addresses) in new.iter() {
            for addr in addresses {
                self.claims.insert((*addr, *id));
            }
            work.addresses.extend(addresses);
        }
    }

    /// Whether a party's namespace is known; without it, no namespace selector can be judged.
    fn is_placed(&self, party: &Party) -> bool {
        let Some(group) = self.group(party) else { return false };
        group.namespace.as_ref().is_none_or(|it| self.namespaces.contains(it))
    }

    fn local_addresses(&self, uid: &Uid) -> impl Iterator<Item = Addr> {
        self.endpoints_of(uid)
            .filter_map(|id| self.endpoints.get(&id))
            .flat_map(|it| it.addresses.iter().copied())
    }
}
