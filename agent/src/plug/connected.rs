//! The networks that the node's own interfaces are in.

use std::collections::HashMap;

use ipnet::IpNet;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags},
};

use super::{
    link,
    netlink::{NetlinkError, Socket},
    requests::link_of,
};

/// A network with neighbours of the node: other machines, or pods of another plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    pub net: IpNet,
    pub interface: String,
}

/// The networks of all interfaces with an address. A single address (/32, /128) has no neighbours, nor has
/// the network of a tunnel (point to point): its routes decide.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn networks() -> Result<Vec<Connected>, NetlinkError> {
    let mut host = Socket::open()?;
    let links = host.dump("list the interfaces", RouteNetlinkMessage::GetLink(link::get()))?;
    let links = links.into_iter().filter_map(link_of);
    let links = links.filter(|link| !link.header.flags.contains(LinkFlags::Pointopoint));
    let name = |attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    };
    let links: HashMap<u32, String> =
        links.filter_map(|it| Some((it.header.index, it.attributes.into_iter().find_map(name)?))).collect();
    let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let addresses = host.dump("list the node's addresses", all)?;
    let connected = addresses.into_iter().filter_map(|answer| {
        let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
        let interface = links.get(&message.header.index)?.clone();
        Some(Connected { net: network(&message)?, interface })
    });
    Ok(connected.collect())
}

/// `IFA_ADDRESS` has the prefix; it is the peer's address if there is one.
fn network(message: &AddressMessage) -> Option<IpNet> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    })?;
    let net = IpNet::new(address, message.header.prefix_len).ok()?;
    (net.prefix_len() < net.max_prefix_len()).then(|| net.trunc())
}
