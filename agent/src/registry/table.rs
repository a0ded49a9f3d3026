//! The attachments in memory, and the addresses that are allocated for them. No I/O.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use ferrule_vif::{Addresses, Vif, VifKind};

use super::{
    attachment::Attachment, clock::since_boot, error::RegistryError, key::Key, left::LeftAddresses,
    reservation::Allocation,
};
use crate::ipam::{COOLDOWN, Ipam, PodCidrs};

/// The in-memory half of the registry.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) attachments: BTreeMap<Key, Attachment>,
    /// Addresses of attachments whose record is being made durable.
    pub(super) allocated: BTreeMap<Key, Addresses>,
    /// Addresses of interfaces without a record.
    pub(super) left: Vec<LeftAddresses>,
    /// The addresses in cooldown, in whatever range, earliest release first.
    cooldown: VecDeque<(IpAddr, Duration)>,
    pub(super) ipam: Ipam,
}

// === impl Table ===

impl Table {
    pub(super) fn new(
        attachments: Vec<Attachment>,
        cooldown: Vec<(IpAddr, Duration)>,
        now: Duration,
    ) -> Self {
        let attachments = attachments.into_iter().map(|it| (it.key.clone(), it)).collect();
        // A release in the future dates from before a reboot, which ended the cooldown.
        let cooldown = cooldown.into_iter().filter(|(_, released)| *released <= now).collect();
        Self { attachments, cooldown, ..Self::default() }
    }

    /// Allocates from these ranges from now on, except the node's own addresses, those in use and those in
    /// cooldown.
    pub(super) fn set_ranges(&mut self, ranges: &PodCidrs, own: &[IpAddr]) {
        let mut ipam = Ipam::new(ranges);
        for (address, released) in &self.cooldown {
            ipam.resume_cooldown(*address, *released);
        }
        for (_, addresses) in self.addresses() {
            ipam.claim(addresses);
        }
        ipam.exclude(own);
        self.ipam = ipam;
    }

    /// Starts the cooldown of addresses that were in use.
    pub(super) fn release(&mut self, addresses: Addresses, now: Duration) {
        self.ipam.release(addresses, now);
        while self.cooldown.pop_front_if(|(_, since)| now.saturating_sub(*since) >= COOLDOWN).is_some() {}
        self.cooldown.extend(addresses.iter().map(|address| (address, now)));
    }

    /// Allocates the addresses of a new attachment.
    ///
    /// # Errors
    /// If the key or an address is in use, or the IPAM is exhausted.
    pub(super) fn allocate(&mut self, key: &Key, allocation: Allocation) -> Result<Vif, RegistryError> {
        if self.attachments.contains_key(key) || self.allocated.contains_key(key) {
            return Err(RegistryError::KeyTaken(key.ifname.clone()));
        }
        let vif = match allocation {
            Allocation::FromIpam { mtu } => {
                let addresses = self.ipam.allocate(since_boot())?;
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
            self.attachments.remove(key);
            self.release(vif.addresses, now);
        }
        // Every release before any claim: a rebuilt attachment may own an address that another record had.
        let claimed: Vec<_> = attachments.iter().map(|it| it.vif.addresses).collect();
        for attachment in attachments {
            if let Some(before) = self.attachments.insert(attachment.key.clone(), attachment) {
                self.release(before.vif.addresses, now);
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
        gone.into_iter().for_each(|it| self.release(it.addresses, now));
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
