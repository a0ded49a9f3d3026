//! `VIFS`: the addresses and the MAC that each pod interface may use. An interface without an entry passes
//! nothing.

use agent_common::{VifEntry, VifKey, policy::PackedSubject};
use ferrule_vif::Addresses;

use super::table::{Entry, MapSpec, Table, count_entries};
use crate::registry::Attachment;

pub struct Vifs;

// === impl Vifs ===

impl Table for Vifs {
    const SPEC: MapSpec = MapSpec {
        name: "VIFS",
        setting: "--max-vifs",
        capacity: |capacities| capacities.vifs,
        count: count_entries::<VifKey, VifEntry>,
    };
    type Key = VifKey;
    type Row = VifEntry;

    fn desired(ifindex: u32, attachment: &Attachment) -> impl Iterator<Item = (VifKey, VifEntry)> {
        [(VifKey { ifindex }, row(attachment))].into_iter()
    }

    fn entry(VifKey { ifindex }: VifKey) -> Entry {
        Entry::Vif(ifindex)
    }

    fn keeping(desired: VifEntry, actual: &VifEntry) -> VifEntry {
        let VifEntry { subject, slot, stack_peers, stack_flows, .. } = *actual;
        VifEntry { subject, slot, stack_peers, stack_flows, ..desired }
    }
}

/// The addresses that a row lets an interface use.
pub fn addresses(row: &VifEntry) -> Addresses {
    let has = |flag| row.flags & flag != 0;
    Addresses {
        v4: has(VifEntry::HAS_IPV4).then(|| row.ipv4.into()),
        v6: has(VifEntry::HAS_IPV6).then(|| row.ipv6.into()),
    }
}

fn row(attachment: &Attachment) -> VifEntry {
    let Attachment { key, pod, vif, wishes, .. } = attachment;
    let Addresses { v4, v6 } = vif.addresses;
    let flag = |present: bool, flag| if present { flag } else { 0 };
    let owner = if pod.name.is_empty() { key.container_id.to_string() } else { pod.to_string() };
    VifEntry {
        ipv4: v4.map(|address| address.octets()).unwrap_or_default(),
        flags: flag(v4.is_some(), VifEntry::HAS_IPV4)
            | flag(v6.is_some(), VifEntry::HAS_IPV6)
            | flag(wishes.ingress.is_some(), VifEntry::SHAPED),
        ipv6: v6.map(|address| address.octets()).unwrap_or_default(),
        mac: vif.mac.0,
        mtu: u16::try_from(vif.mtu).unwrap_or(u16::MAX),
        subject: PackedSubject::default(),
        slot: 0,
        stack_flows: 0,
        stack_peers: [0; 32],
        reserved: 0,
        generation: attachment.generation(),
        pod: VifEntry::text(&owner),
        pod_uid: VifEntry::text(&pod.uid),
        ifname: VifEntry::text(key.ifname.as_str()),
    }
}
