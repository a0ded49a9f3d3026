//! `VIFS`: the pods' interfaces, and the addresses that each may use.

use agent_common::{DropReason, MAX_VIFS, VifEntry, VifKey};
use aya_ebpf::{bindings::BPF_F_NO_PREALLOC, btf_maps::HashMap, macros::btf_map};

#[btf_map]
static VIFS: HashMap<VifKey, VifEntry, MAX_VIFS, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// # Errors
/// `NoVif`, if the host interface has no entry: such an interface passes nothing.
#[inline(always)]
pub fn find(ifindex: u32) -> Result<&'static VifEntry, DropReason> {
    // SAFETY: the entry stays readable until the program returns, which is within an RCU read-side section. The
    // agent inserts an entry before the interface is up, and deletes it only when the interface is being removed.
    unsafe { VIFS.get(VifKey { ifindex }) }.ok_or(DropReason::NoVif)
}
