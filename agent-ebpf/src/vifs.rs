//! `VIFS`: the pods' interfaces, and the addresses that each may use.

use agent_common::{DropReason, MAX_VIFS, VifEntry, VifKey, policy::PackedSubject};
use aya_ebpf::{bindings::BPF_F_NO_PREALLOC, btf_maps::HashMap, macros::btf_map};

use crate::{address::Address, meta::Family};

#[btf_map]
static VIFS: HashMap<VifKey, VifEntry, MAX_VIFS, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// The pod behind a host interface.
///
/// # Errors
/// `NoVif`, if the host interface has no entry: such an interface passes nothing.
#[inline(always)]
pub fn find(ifindex: u32) -> Result<&'static VifEntry, DropReason> {
    // SAFETY: the entry stays readable until the program returns, which is within an RCU read-side section.
    // The agent inserts an entry before the interface is up, and deletes it only when the interface is being
    // removed.
    unsafe { VIFS.get(&VifKey { ifindex }) }.ok_or(DropReason::NoVif)
}

/// Notes at both pods that the stack translates a flow between them.
#[inline(always)]
pub fn mark_peers(one: u32, other: u32) {
    for (of, peer) in [(one, other), (other, one)] {
        if let Some(vif) = VIFS.get_ptr_mut(&VifKey { ifindex: of }) {
            // SAFETY: in bounds, see `VifEntry::peer`. A byte of its own: no other write is lost.
            unsafe {
                let mark = (&raw mut (*vif).stack_peers).cast::<u8>().add(VifEntry::peer(peer));
                if mark.read_volatile() == 0 {
                    mark.write_volatile(1);
                }
            }
        }
    }
}

/// What judges the pod behind a host interface, to be changed. Valid until the program returns.
#[inline(always)]
pub fn subject(ifindex: u32) -> Option<*mut PackedSubject> {
    // SAFETY: a field of an entry, which stays readable and writable until the program returns.
    VIFS.get_ptr_mut(&VifKey { ifindex }).map(|vif| unsafe { &raw mut (*vif).subject })
}

/// Whether a pod is noted to have flows with another one that the stack translates.
#[inline(always)]
pub fn has_peer(vif: &VifEntry, peer: u32) -> bool {
    // Volatile: the programs write it on other CPUs.
    // SAFETY: in bounds, see `VifEntry::peer`.
    unsafe { (&raw const vif.stack_peers).cast::<u8>().add(VifEntry::peer(peer)).read_volatile() != 0 }
}

/// The number of flows that a pod has begun, to be counted on. Valid until the program returns.
#[inline(always)]
pub fn begun_flows(ifindex: u32) -> Option<*mut u32> {
    // SAFETY: a field of an entry, which stays readable and writable until the program returns.
    VIFS.get_ptr_mut(&VifKey { ifindex }).map(|vif| unsafe { &raw mut (*vif).stack_flows })
}

/// Whether an address is the pod's, other than link-local.
#[inline(always)]
pub fn owns(vif: &VifEntry, family: Family, address: Address) -> bool {
    match family {
        Family::Ipv4 => vif.owns_ipv4(address.to_v4()),
        Family::Ipv6 => vif.owns_ipv6(address.to_v6()),
    }
}

/// Whether an address is the link-local address that the pod's kernel derives from its MAC.
#[inline(always)]
pub fn owns_link_local(vif: &VifEntry, address: Address) -> bool {
    address == Address::v6(vif.link_local())
}
