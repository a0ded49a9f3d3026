//! What the maps have of an attachment: an entry that lets its packets pass, and one for each of its addresses.

use std::net::{IpAddr, Ipv6Addr};

use agent_common::{Endpoint, EndpointKey, VifEntry, VifKey};

use crate::registry::Attachment;
use ferrule_vif::Addresses;

/// Where packets are counted that belong to no attachment.
pub(super) const UNKNOWN: VifKey = VifKey { ifindex: 0 };

pub(super) fn vif_entry(attachment: &Attachment) -> VifEntry {
    let Attachment { key, pod, vif, .. } = attachment;
    let Addresses { v4, v6 } = vif.addresses;
    let flag = |present: bool, flag| if present { flag } else { 0 };
    let who = if pod.name.is_empty() { key.container_id.to_string() } else { pod.to_string() };
    VifEntry {
        ipv4: v4.map(|address| address.octets()).unwrap_or_default(),
        flags: flag(v4.is_some(), VifEntry::HAS_IPV4) | flag(v6.is_some(), VifEntry::HAS_IPV6),
        ipv6: v6.map(|address| address.octets()).unwrap_or_default(),
        mac: vif.mac.0,
        reserved: [0; 2],
        pod: VifEntry::text(&who),
        pod_uid: VifEntry::text(&pod.uid),
        ifname: VifEntry::text(key.ifname.as_str()),
    }
}

/// The addresses that an entry lets an interface use.
pub(super) fn addresses(entry: &VifEntry) -> Addresses {
    let has = |flag| entry.flags & flag != 0;
    Addresses {
        v4: has(VifEntry::HAS_IPV4).then(|| entry.ipv4.into()),
        v6: has(VifEntry::HAS_IPV6).then(|| entry.ipv6.into()),
    }
}

pub(super) fn endpoint(ifindex: u32, attachment: &Attachment) -> Endpoint {
    Endpoint { ifindex, mac: attachment.vif.mac.0, reserved: [0; 2] }
}

pub(super) fn endpoint_keys(addresses: Addresses) -> impl Iterator<Item = EndpointKey> {
    let v4 = addresses.v4.map(|address| EndpointKey::ipv4(address.octets()));
    v4.into_iter().chain(addresses.v6.map(|address| EndpointKey::ipv6(address.octets())))
}

pub(super) fn endpoint_key(address: IpAddr) -> EndpointKey {
    match address {
        IpAddr::V4(v4) => EndpointKey::ipv4(v4.octets()),
        IpAddr::V6(v6) => EndpointKey::ipv6(v6.octets()),
    }
}

/// As it is shown: IPv4 by itself.
pub(super) fn ip(key: EndpointKey) -> IpAddr {
    let address = Ipv6Addr::from(key.address);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}
