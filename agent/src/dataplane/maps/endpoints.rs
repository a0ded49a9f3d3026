//! `ENDPOINTS`: the addresses that this node delivers, and the pod interface behind each of them.

use std::net::{IpAddr, Ipv6Addr};

use agent_common::{Endpoint, EndpointKey};
use ferrule_vif::Addresses;

use super::table::{Entry, MapSpec, Table, count_entries};
use crate::registry::Attachment;

pub struct Endpoints;

// === impl Endpoints ===

impl Table for Endpoints {
    const SPEC: MapSpec = MapSpec {
        name: "ENDPOINTS",
        setting: "--max-endpoints",
        capacity: |capacities| capacities.endpoints,
        count: count_entries::<EndpointKey, Endpoint>,
    };
    type Key = EndpointKey;
    type Row = Endpoint;

    fn desired(ifindex: u32, attachment: &Attachment) -> impl Iterator<Item = (EndpointKey, Endpoint)> {
        let row = Endpoint { ifindex, mac: attachment.vif.mac.0, reserved: [0; 2] };
        keys(attachment.vif.addresses).map(move |key| (key, row))
    }

    fn entry(key: EndpointKey) -> Entry {
        Entry::Endpoint(address(key))
    }
}

pub fn keys(addresses: Addresses) -> impl Iterator<Item = EndpointKey> {
    addresses.iter().map(key)
}

pub fn key(address: IpAddr) -> EndpointKey {
    match address {
        IpAddr::V4(v4) => EndpointKey::ipv4(v4.octets()),
        IpAddr::V6(v6) => EndpointKey::ipv6(v6.octets()),
    }
}

/// The address of a key, with IPv4-mapped addresses as IPv4.
pub fn address(key: EndpointKey) -> IpAddr {
    let address = Ipv6Addr::from(key.address);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}
