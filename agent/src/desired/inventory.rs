//! The actual state of the node: what self-healing and `ferrulectl verify` compare.

use std::collections::HashSet;

use ipnet::IpNet;

use super::presence::netns_exists;
use crate::{
    dataplane::{Dataplane, Entries},
    masquerade::Masquerade,
    plug::{
        host,
        host_inventory::HostInventory,
        netlink::{NetlinkError, Socket},
        range_route::{self, Skipped},
    },
    registry::{Attachment, Key, State},
};

/// The actual state of the node, or of one attachment. The pods' ends are not part of it.
#[derive(Clone, Default)]
pub struct Inventory {
    pub host: HostInventory,
    pub entries: Entries,
    /// IDs of this agent's programs, in the order of [`crate::plug::filter::Hook::ALL`].
    pub programs: [u32; 2],
    /// Attachments without a host interface whose network namespace exists.
    pub lost_links: HashSet<Key>,
    /// Settings by which the node does not forward a required family.
    pub not_forwarded: Vec<&'static str>,
    /// The node permits IPv4 redirects on every interface, and has IPv4 pods.
    pub sends_redirects: bool,
    /// Ranges without their unreachable route.
    pub lost_range_routes: Vec<IpNet>,
    /// Ranges that get no such route, with the reason.
    pub skipped_ranges: Vec<Skipped>,
    /// How the nftables table differs.
    pub masquerade: Option<String>,
    /// How the nftables table of the node's ports differs.
    pub host_ports: Option<String>,
    /// How the routes to other nodes differ.
    pub node_routes: Vec<String>,
    /// How the rows of policies differ.
    pub policy_rows: Vec<String>,
    /// Maps without a pin.
    pub lost_pins: Vec<&'static str>,
}

// === impl Inventory ===

impl Inventory {
    /// Reads the state of all attachments, of the node's `ranges`, and of everything else with a stamp or in
    /// the maps. `families`: whether the node has IPv4 pods, and IPv6 pods.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn all(
        host: &mut Socket,
        dataplane: &Dataplane,
        attachments: &[Attachment],
        (families, ranges): ((bool, bool), &[IpNet]),
        masquerade: &Masquerade,
    ) -> Result<Self, NetlinkError> {
        let (lost_range_routes, skipped_ranges) = range_route::missing(host, ranges)?;
        let indexes = attachments.iter().filter_map(|it| it.host.ifindex()).collect();
        let inventory = Self {
            // First: the kernel changes the node-wide setting before those of the interfaces.
            not_forwarded: host::not_forwarded(families),
            sends_redirects: host::sends_redirects(families),
            lost_range_routes,
            skipped_ranges,
            masquerade: masquerade.difference(),
            host_ports: None,
            node_routes: Vec::new(),
            policy_rows: Vec::new(),
            host: HostInventory::all(host, &indexes)?,
            entries: dataplane.entries(),
            programs: dataplane.program_ids(),
            lost_links: HashSet::new(),
            lost_pins: dataplane.lost_pins(),
        };
        Ok(inventory.with_lost_links(attachments))
    }

    /// Reads the state of one attachment; empty without a host interface.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn one(
        host: &mut Socket,
        dataplane: &Dataplane,
        attachment: &Attachment,
    ) -> Result<Self, NetlinkError> {
        let Some(ifindex) = attachment.host.ifindex() else { return Ok(Self::default()) };
        let inventory = Self {
            not_forwarded: host::not_forwarded((true, false)),
            host: HostInventory::one(host, ifindex)?,
            entries: dataplane.entries_of(ifindex, attachment.vif.addresses),
            programs: dataplane.program_ids(),
            ..Self::default()
        };
        Ok(inventory.with_lost_links(std::slice::from_ref(attachment)))
    }

    fn with_lost_links(mut self, attachments: &[Attachment]) -> Self {
        let links = &self.host.links;
        let has_lost_link = |it: &&Attachment| {
            let is_gone = it.host.ifindex().is_some_and(|ifindex| !links.contains_key(&ifindex));
            is_gone && it.state == State::Attached && netns_exists(it)
        };
        self.lost_links = attachments.iter().filter(has_lost_link).map(|it| it.key.clone()).collect();
        self
    }
}
