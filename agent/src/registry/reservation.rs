//! What ADD reserves.

use std::path::PathBuf;

use ferrule_vif::Vif;

use super::{attachment::NetnsId, key::Key, wishes::Wishes};
use crate::cluster::PodRef;

/// An attachment before its addresses are allocated.
#[derive(Debug, Clone)]
pub struct NewAttachment {
    pub key: Key,
    pub with: Option<Key>,
    pub pod: PodRef,
    pub netns: PathBuf,
    pub netns_id: NetnsId,
    pub allocation: Allocation,
    pub wishes: Wishes,
}

/// Where the addresses of a new attachment come from.
#[derive(Debug, Clone)]
pub enum Allocation {
    /// The next free addresses of the agent's own IPAM, for a veth pair with an MTU in bytes.
    FromIpam { mtu: u32 },
    /// A VIF that a source decided.
    Fixed(Vif),
}
