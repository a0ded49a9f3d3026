//! What the agent told us: the pods' interfaces, and the addresses that this node delivers.

use agent_common::{DropReason, Endpoint, EndpointKey, MAX_ENDPOINTS, MAX_VIFS, VifEntry, VifKey};
use aya_ebpf::{bindings::BPF_F_NO_PREALLOC, btf_maps::HashMap, macros::btf_map};

#[btf_map]
static VIFS: HashMap<VifKey, VifEntry, MAX_VIFS, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

#[btf_map]
static ENDPOINTS: HashMap<EndpointKey, Endpoint, MAX_ENDPOINTS, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// The VIF behind a host interface. An interface without one passes nothing.
#[inline(always)]
pub fn vif(ifindex: u32) -> Result<&'static VifEntry, DropReason> {
    // SAFETY: the entry stays readable until the program returns, which is within an RCU read-side section. The
    // agent writes an entry before the interface is up and removes it once the interface is going.
    unsafe { VIFS.get(VifKey { ifindex }) }.ok_or(DropReason::NoVif)
}

/// Whether an address is that of a pod of this node.
#[inline(always)]
pub fn is_endpoint(key: EndpointKey) -> bool {
    ENDPOINTS.get_ptr(key).is_some()
}

/// Where this node delivers an address, if it does.
///
/// # Errors
/// If it is behind an interface that passes nothing.
#[inline(always)]
pub fn endpoint(key: EndpointKey) -> Result<Option<&'static Endpoint>, DropReason> {
    // SAFETY: as for `vif`. One that is replaced while we read it sends this packet to the old or the new
    // interface, as if it had come a moment earlier or later.
    let Some(endpoint) = (unsafe { ENDPOINTS.get(key) }) else {
        return Ok(None);
    };
    vif(endpoint.ifindex)?;
    Ok(Some(endpoint))
}
