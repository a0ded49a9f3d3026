//! The attachments in memory, and the addresses that are allocated for them. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use ferrule_vif::{Addresses, Vif, VifKind};

use super::{
    attachment::{Attachment, State},
    error::RegistryError,
    key::Key,
    left::LeftAddresses,
    owners::Owners,
    reservation::Allocation,
    store::{Kept, Released},
};
use crate::ipam::{COOLDOWN, Ipam, PodCidrs};

/// The in-memory half of the registry.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Changed by [`Table::put`] and [`Table::take`] only, which keep `owners` in step.
    pub(super) attachments: BTreeMap<Key, Attachment>,
    pub(super) owners: Owners,
    /// Addresses of attachments whose record is being made durable.
    pub(super) allocated: BTreeMap<Key, Addresses>,
    /// Addresses of interfaces without a record.
    pub(super) left: Vec<LeftAddresses>,
    /// The released addresses of each key, earliest first. Ended cooldowns are forgotten late.
    cooldown: BTreeMap<Key, Vec<Released>>,
    /// The keys with a cooldown that no file has yet: the next audit writes it.
    unsaved: BTreeSet<Key>,
    pub(super) ipam: Ipam,
}

// === impl Table ===

impl Table {
    pub(super) fn new(records: Vec<(Key, Kept)>) -> Self {
        let mut table = Self::default();
        for (key, kept) in records {
            table.keep(key, kept);
        }
        table
    }

    /// Replaces what is kept of a key.
    pub(super) fn keep(&mut self, key: Key, Kept { attachment, cooldown }: Kept) {
        self.unsaved.remove(&key);
        if cooldown.is_empty() {
            self.cooldown.remove(&key);
        } else {
            self.cooldown.insert(key.clone(), cooldown);
        }
        match attachment {
            Some(attachment) => drop(self.put(attachment)),
            None => drop(self.take(&key)),
        }
    }

    /// Replaces the attachment of its key, and returns the one before.
    pub(super) fn put(&mut self, attachment: Attachment) -> Option<Attachment> {
        let before = self.take(&attachment.key);
        self.owners.add(&attachment);
        self.attachments.insert(attachment.key.clone(), attachment);
        before
    }

    fn take(&mut self, key: &Key) -> Option<Attachment> {
        let taken = self.attachments.remove(key);
        taken.inspect(|it| self.owners.remove(it))
    }

    /// The keys of which anything is kept.
    pub(super) fn keys(&self) -> Vec<Key> {
        let unattached = self.cooldown.keys().filter(|key| !self.attachments.contains_key(key));
        self.attachments.keys().chain(unattached).cloned().collect()
    }

    /// All that is kept, in states that are durable.
    pub(super) fn durable(&self, now: Duration) -> Vec<(Key, Kept)> {
        let durable = |it: &Attachment| {
            let state = match it.state {
                State::Reserved | State::Plugged => State::Reserved,
                State::Attached | State::Unplugging => State::Attached,
            };
            Attachment { state, ..it.clone() }
        };
        let kept = |key: Key| {
            let attachment = self.attachments.get(&key).map(durable);
            let cooldown = self.cooling(&key, now);
            (key, Kept { attachment, cooldown })
        };
        self.keys().into_iter().map(kept).collect()
    }

    /// The addresses of a key that are in cooldown.
    pub(super) fn cooling(&self, key: &Key, now: Duration) -> Vec<Released> {
        let released = self.cooldown.get(key).into_iter().flatten();
        released.filter(|it| now < it.at() + COOLDOWN).copied().collect()
    }

    /// Whether the agent itself has changed what is kept of a key since it wrote the file: a cooldown has
    /// begun or ended.
    pub(super) fn has_outdated_file(&self, key: &Key, kept: &Kept) -> bool {
        let written = self.cooldown.get(key).map_or(0, Vec::len);
        self.unsaved.contains(key) || written != kept.cooldown.len()
    }

    /// Each released address with the time of its last release, earliest first.
    pub(super) fn cooldown(&self) -> Vec<(IpAddr, Duration)> {
        let mut last = BTreeMap::new();
        for released in self.cooldown.values().flatten() {
            let at: &mut Duration = last.entry(released.address).or_default();
            *at = released.at().max(*at);
        }
        let mut all: Vec<_> = last.into_iter().collect();
        all.sort_by_key(|(_, at)| *at);
        all
    }

    /// Allocates from these ranges from now on, except the node's own addresses, those in use and those in
    /// cooldown.
    pub(super) fn set_ranges(&mut self, ranges: &PodCidrs, own: &[IpAddr]) {
        let mut ipam = Ipam::new(ranges);
        for (address, released) in self.cooldown() {
            ipam.resume_cooldown(address, released);
        }
        for (_, addresses) in self.addresses() {
            ipam.claim(addresses);
        }
        ipam.exclude(own);
        self.ipam = ipam;
    }

    /// Starts the cooldown of addresses that were in use.
    fn release(&mut self, key: &Key, addresses: Addresses, now: Duration) {
        self.ipam.release(addresses, now);
        self.unsaved.insert(key.clone());
        let cooldown = self.cooldown.entry(key.clone()).or_default();
        cooldown.extend(addresses.iter().map(|address| Released::new(address, now)));
    }

    /// Allocates the addresses of a new attachment.
    ///
    /// # Errors
    /// If the key or an address is in use, or the IPAM is exhausted.
    pub(super) fn allocate(
        &mut self,
        key: &Key,
        allocation: Allocation,
        now: Duration,
    ) -> Result<Vif, RegistryError> {
        if self.attachments.contains_key(key) || self.allocated.contains_key(key) {
            return Err(RegistryError::KeyTaken(key.ifname.clone()));
        }
        let vif = match allocation {
            Allocation::FromIpam { mtu } => {
                let addresses = self.ipam.allocate(now)?;
                Vif {
                    kind: VifKind::Veth,
                    mac: addresses.mac(),
                    mtu,
                    addresses,
                    is_ipv6_first: self.ipam.is_ipv6_first(),
                    gateways: Addresses::default(),
                    is_default: true,
                    routes: Vec::new(),
                }
            }
            Allocation::Fixed(vif) => {
                for address in vif.addresses.iter() {
                    let has =
                        |(_, addresses): &(&Key, Addresses)| addresses.iter().any(|other| other == address);
                    if let Some((by, _)) = self.addresses().find(has) {
                        return Err(RegistryError::InUse { address, by: by.clone() });
                    }
                }
                self.ipam.claim(vif.addresses);
                vif
            }
        };
        self.allocated.insert(key.clone(), vif.addresses);
        Ok(vif)
    }

    /// Puts rebuilt attachments in the place of the records under their keys, and removes the superseded
    /// ones.
    pub(super) fn adopt(&mut self, attachments: Vec<Attachment>, superseded: &[Attachment], now: Duration) {
        for Attachment { key, vif, .. } in superseded {
            self.take(key);
            self.release(key, vif.addresses, now);
        }
        // Every release before any claim: a rebuilt attachment may own an address that another record had.
        let claimed: Vec<_> = attachments.iter().map(|it| it.vif.addresses).collect();
        for attachment in attachments {
            if let Some(before) = self.put(attachment) {
                self.release(&before.key, before.vif.addresses, now);
            }
        }
        claimed.into_iter().for_each(|addresses| self.ipam.claim(addresses));
    }

    /// Claims the addresses of interfaces without a record, again after an attachment with the same address
    /// freed it.
    pub(super) fn claim_left(&mut self) {
        let Self { left, ipam, .. } = self;
        left.iter().for_each(|it| ipam.claim(it.addresses));
    }

    /// Frees the addresses of an interface without a record, except for those that an attachment has too.
    pub(super) fn free_left(&mut self, ifindex: u32, now: Duration) {
        let gone: Vec<_> = self.left.extract_if(.., |it| it.ifindex == ifindex).collect();
        gone.into_iter().for_each(|it| self.release(&it.key, it.addresses, now));
        let in_use: Vec<_> = self.addresses().map(|(_, addresses)| addresses).collect();
        in_use.into_iter().for_each(|addresses| self.ipam.claim(addresses));
    }

    /// All addresses in use, with their attachments.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (&Key, Addresses)> {
        let attached = self.attachments.iter().map(|(key, it)| (key, it.vif.addresses));
        let allocated = self.allocated.iter().map(|(key, addresses)| (key, *addresses));
        attached.chain(allocated).chain(self.left.iter().map(|it| (&it.key, it.addresses)))
    }
}
