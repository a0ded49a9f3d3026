//! `ENDPOINTS`: the addresses that this node delivers.

use core::num::NonZeroU32;

use agent_common::{DropReason, Endpoint, EndpointKey, MAX_ENDPOINTS, VifEntry};
use aya_ebpf::{bindings::BPF_F_NO_PREALLOC, btf_maps::HashMap, macros::btf_map};

use crate::{address::Address, meta::Meta, vifs};

#[btf_map]
static ENDPOINTS: HashMap<EndpointKey, Endpoint, MAX_ENDPOINTS, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// The host interface of the pod of this node that has an address.
#[inline(always)]
pub fn interface(address: Address) -> Option<NonZeroU32> {
    // SAFETY: as for `find`.
    unsafe { ENDPOINTS.get(address.key()) }.and_then(|endpoint| NonZeroU32::new(endpoint.ifindex))
}

/// Where this node delivers a packet's destination, if it does: the endpoint, and the pod behind it.
///
/// # Errors
/// `NoVif`, if the interface to deliver to has no entry in `VIFS`, and so passes nothing; `NotForPod`, if the
/// address is not that pod's.
#[inline(always)]
pub fn find(meta: &Meta) -> Result<Option<(&'static Endpoint, &'static VifEntry)>, DropReason> {
    // SAFETY: as for `vifs::find`. If the agent replaces the entry meanwhile, this packet goes to the old or
    // the new interface.
    let Some(endpoint) = (unsafe { ENDPOINTS.get(meta.destination.key()) }) else {
        return Ok(None);
    };
    let vif = vifs::find(endpoint.ifindex)?;
    if vifs::owns(vif, meta.family, meta.destination) {
        Ok(Some((endpoint, vif)))
    } else {
        Err(DropReason::NotForPod)
    }
}
