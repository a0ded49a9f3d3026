//! The tunnel device: VXLAN (RFC 7348) whose packets' routes name the other node.
//!
//! One device serves all nodes and both families. The device learns nothing, resolves nothing and has no
//! link-local address: the routes know where packets go, and `from_tunnel` checks where they come from.
//! Without that program, the device delivers nothing: senders address their frames to their own MAC, and the
//! kernel drops frames for other machines.

use std::{collections::BTreeSet, net::IpAddr};

use agent_common::TUNNEL_VNI;
use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::{
    LinkUnspec,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressMessage},
        link::{
            AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVxlan, LinkAttribute,
            LinkFlags, LinkInfo, LinkMessage,
        },
    },
};

use super::{
    super::{
        filter::{self, LinkFilters},
        link,
        netlink::{NetlinkError, Request, Socket},
        reaper::UNSTAMPED,
        requests::{add_address, link_of, set_link},
        sysctl::{self, SysctlError},
    },
    vni,
};

/// The tunnel device as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// UDP port of all nodes' tunnels.
    pub port: u16,
    /// Bytes, of the inner packets.
    pub mtu: u32,
    /// The node's own addresses, one of each family: the sources of packets that the node masquerades into
    /// the tunnel. The kernel would else take the address of any interface.
    pub addresses: BTreeSet<IpAddr>,
}

/// A device that is not as it should be, or cannot be made so.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error("cannot change the tunnel device {NAME}")]
    Netlink(#[from] NetlinkError),
    #[error("cannot change a setting of the tunnel device {NAME}")]
    Sysctl(#[from] SysctlError),
    #[error(
        "an interface {NAME} exists that the agent did not make (it has no alias {ALIAS:?}): rename or delete it"
    )]
    Foreign,
    #[error(
        "UDP port {port}, which the tunnel needs, is taken by {holder}: remove that, or set another --tunnel-port \
             on every node"
    )]
    PortTaken { port: u16, holder: String },
    #[error("the kernel's answer lacks the interface that it created")]
    NoAnswer,
}

pub const NAME: &str = "ferrule-vxlan";
/// Outer headers in bytes: IPv4 or IPv6, UDP (8), VXLAN (8), and the inner Ethernet header (14).
pub const OVERHEAD_IPV4: u32 = 20 + 8 + 8 + 14;
pub const OVERHEAD_IPV6: u32 = 40 + 8 + 8 + 14;
/// Marks the device as the agent's.
const ALIAS: &str = "ferrule:tunnel";
/// Marks a device whose alias is not set yet.
const GROUP: u32 = UNSTAMPED + 1;
const DISABLES_IPV6: &str = "ipv6/conf/ferrule-vxlan/disable_ipv6";
/// Of `rp_filter`: drops sources without any route.
const LOOSE: &str = "2";

/// What the kernel has.
struct Found {
    ifindex: u32,
    is_ours: bool,
    /// Whether the device has its alias, and resolves no neighbours.
    is_marked: bool,
    /// Of these three, only the last can be changed.
    port: Option<u16>,
    is_external: bool,
    /// Whether the device remembers where packets come from.
    learns: bool,
    mtu: u32,
    is_up: bool,
}

// === impl Tunnel ===

impl Tunnel {
    fn networks(&self) -> BTreeSet<IpNet> {
        self.addresses.iter().copied().map(IpNet::from).collect()
    }

    /// Whether the device lacks IPv6 by the node's default for new interfaces, and an address needs it.
    fn needs_ipv6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6) && sysctl::get(DISABLES_IPV6).as_deref() == Some("1")
    }
}

/// Makes the device as it should be, with its programs. Returns its index, and what was
/// changed.
///
/// # Errors
/// If the kernel refuses, or the device's name or port belongs to another program.
pub fn keep(
    host: &mut Socket,
    tunnel: &Tunnel,
    filters: LinkFilters<'_>,
) -> Result<(u32, Vec<&'static str>), TunnelError> {
    let mut changed = Vec::new();
    let present = match find(host)? {
        Some(found) if !found.is_ours => return Err(TunnelError::Foreign),
        Some(found) if found.port == Some(tunnel.port) && found.is_external && !found.learns => Some(found),
        Some(found) => {
            delete(host, found.ifindex)?;
            None
        }
        None => None,
    };
    let ifindex = match &present {
        Some(found) => found.ifindex,
        None => {
            changed.push("created");
            create(host, tunnel)?
        }
    };
    // After a crash, a device may have neither alias nor flags.
    if present.as_ref().is_none_or(|found| !found.is_marked) {
        changed.push("marked");
        mark(host, ifindex)?;
    }
    if !vni::is_permitted(ifindex)? {
        changed.push("the network");
        vni::permit(ifindex)?;
    }
    changed.extend(filter::keep_on_link(host, ifindex, filters)?);
    // Loose: packets from other nodes' own addresses come by the tunnel, and `from_tunnel` checks sources.
    if !is_loose() {
        changed.push("rp_filter");
        sysctl::set(&rp_filter(), LOOSE)?;
    }
    if present.as_ref().is_none_or(|found| found.mtu != tunnel.mtu) {
        changed.push("the MTU");
        let message = LinkUnspec::new_with_index(ifindex).mtu(tunnel.mtu).build();
        host.batch(vec![set_link("set the MTU of the tunnel device", message)])?;
    }
    // With a smaller MTU, the device can have no address of IPv6.
    if tunnel.needs_ipv6() {
        changed.push("IPv6");
        sysctl::set(DISABLES_IPV6, "0")?;
    }
    if set_addresses(host, ifindex, &tunnel.networks())? {
        changed.push("the addresses");
    }
    if present.is_none_or(|found| !found.is_up) {
        changed.push("set up");
        set_up(host, ifindex, tunnel.port)?;
    }
    Ok((ifindex, changed))
}

/// Deletes the device, if there is one of the agent's. Returns whether there was.
///
/// # Errors
/// If the kernel refuses.
pub fn remove(host: &mut Socket) -> Result<bool, TunnelError> {
    match find(host)? {
        Some(found) if found.is_ours => delete(host, found.ifindex).map(|()| true),
        _ => Ok(false),
    }
}

/// The index of the agent's device.
///
/// # Errors
/// If the kernel refuses.
pub fn index(host: &mut Socket) -> Result<Option<u32>, TunnelError> {
    Ok(find(host)?.filter(|found| found.is_ours).map(|found| found.ifindex))
}

/// First and last of the UDP ports from which the kernel sends packets of the tunnel; `None` if its setting
/// cannot be read.
pub fn source_ports() -> Option<[u16; 2]> {
    let setting = sysctl::get("ipv4/ip_local_port_range")?;
    let mut ports = setting.split_whitespace().map(str::parse);
    let (Some(Ok(first)), Some(Ok(last))) = (ports.next(), ports.next()) else { return None };
    Some([first, last])
}

/// The first difference of the kernel's device from the wanted one.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn difference(
    host: &mut Socket,
    tunnel: &Tunnel,
    filters: LinkFilters<'_>,
) -> Result<Option<String>, TunnelError> {
    let Some(found) = find(host)? else { return Ok(Some("is missing".to_owned())) };
    let addresses = addresses(host, found.ifindex)?;
    let wanted = tunnel.networks();
    Ok(if !found.is_ours {
        Some("is not the agent's".to_owned())
    } else if found.port != Some(tunnel.port) || !found.is_external {
        Some(format!("is no external VXLAN device at port {}", tunnel.port))
    } else if found.learns {
        Some("learns where packets come from".to_owned())
    } else if !found.is_marked {
        Some(format!("lacks the alias {ALIAS}, or resolves neighbours"))
    } else if !found.is_up {
        Some("is down".to_owned())
    } else if found.mtu != tunnel.mtu {
        Some(format!("has an MTU of {}, expected {}", found.mtu, tunnel.mtu))
    } else if addresses != wanted {
        Some(format!("has the addresses {addresses:?}, expected {wanted:?}"))
    } else if !is_loose() {
        Some(format!("has another net.ipv4.conf.{NAME}.rp_filter than {LOOSE}"))
    } else if !vni::is_permitted(found.ifindex)? {
        Some(format!("does not receive the network {TUNNEL_VNI}"))
    } else {
        let missing = filter::missing_on_link(host, found.ifindex, filters)?;
        (!missing.is_empty()).then(|| format!("lacks {}, or runs another program", missing.join(" and ")))
    })
}

fn rp_filter() -> String {
    format!("ipv4/conf/{NAME}/rp_filter")
}

fn is_loose() -> bool {
    sysctl::get(&rp_filter()).as_deref() == Some(LOOSE)
}

fn create(host: &mut Socket, tunnel: &Tunnel) -> Result<u32, TunnelError> {
    let vxlan = vec![
        InfoVxlan::CollectMetadata(true),
        InfoVxlan::Vnifilter(true),
        InfoVxlan::Port(tunnel.port),
        InfoVxlan::Learning(false),
    ];
    let mut message = LinkUnspec::new_with_name(NAME).mtu(tunnel.mtu).link_group(GROUP).build();
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Vxlan),
        LinkInfo::Data(InfoData::Vxlan(vxlan)),
    ]));
    let request = Request::create(format!("create {NAME}"), RouteNetlinkMessage::NewLink(message));
    host.batch(vec![request])?;
    Ok(find(host)?.ok_or(TunnelError::NoAnswer)?.ifindex)
}

/// Gives the device its alias, and turns off what a device with neighbours would do.
fn mark(host: &mut Socket, ifindex: u32) -> Result<(), NetlinkError> {
    let mut mark = LinkUnspec::new_with_index(ifindex).alias(ALIAS.to_owned()).build();
    mark.header.flags |= LinkFlags::Noarp;
    mark.header.change_mask |= LinkFlags::Noarp;
    if sysctl::has_ipv6() {
        let none = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        mark.attributes.push(LinkAttribute::AfSpecUnspec(vec![none]));
    }
    host.batch(vec![set_link("mark the tunnel device", mark)]).map(drop)
}

/// The kernel opens the UDP port when the device is set up.
fn set_up(host: &mut Socket, ifindex: u32, port: u16) -> Result<(), TunnelError> {
    let message = LinkUnspec::new_with_index(ifindex).up().build();
    match host.batch(vec![set_link("set the tunnel device up", message)]) {
        Err(error) if error.is(Errno::EADDRINUSE) => {
            Err(TunnelError::PortTaken { port, holder: holder(host, port)? })
        }
        result => Ok(result.map(drop)?),
    }
}

fn holder(host: &mut Socket, port: u16) -> Result<String, NetlinkError> {
    let links = host.dump("list the interfaces", RouteNetlinkMessage::GetLink(link::get()))?;
    let other = links.into_iter().filter_map(link_of).find_map(|link| {
        let name = link.attributes.iter().find_map(|it| match it {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })?;
        let vxlan = vxlan(&link)?;
        (name != NAME && vxlan.contains(&InfoVxlan::Port(port))).then_some(name)
    });
    Ok(match other {
        Some(name) => format!("the VXLAN device {name}"),
        None => "a process (ss -ulnp shows it)".to_owned(),
    })
}

fn delete(host: &mut Socket, ifindex: u32) -> Result<(), TunnelError> {
    let message = LinkUnspec::new_with_index(ifindex).build();
    match host.batch(vec![Request::change("delete the tunnel device", RouteNetlinkMessage::DelLink(message))])
    {
        Err(error) if error.is(Errno::ENODEV) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Makes the device's addresses the wanted ones. The kernel adds a link-local one each time the MTU becomes
/// large enough for IPv6. Returns whether anything was changed.
fn set_addresses(host: &mut Socket, ifindex: u32, wanted: &BTreeSet<IpNet>) -> Result<bool, NetlinkError> {
    let present = addresses(host, ifindex)?;
    for address in wanted.difference(&present) {
        host.batch(vec![add_address(ifindex, address.addr(), address.prefix_len())])?;
    }
    for address in present.difference(wanted) {
        let mut message = AddressMessage::default();
        message.header.family =
            if address.addr().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.index = ifindex;
        message.header.prefix_len = address.prefix_len();
        message.attributes.push(AddressAttribute::Local(address.addr()));
        let what = format!("delete the address {address} of the tunnel device");
        match host.batch(vec![Request::change(what, RouteNetlinkMessage::DelAddress(message))]) {
            Err(error) if error.is(Errno::EADDRNOTAVAIL) => {}
            result => drop(result?),
        }
    }
    Ok(present != *wanted)
}

fn addresses(host: &mut Socket, ifindex: u32) -> Result<BTreeSet<IpNet>, NetlinkError> {
    let mut message = AddressMessage::default();
    message.header.index = ifindex;
    let answers =
        host.dump("list the tunnel device's addresses", RouteNetlinkMessage::GetAddress(message))?;
    let address = |answer| {
        let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
        let (mut local, mut address) = (None, None);
        for attribute in message.attributes {
            match attribute {
                AddressAttribute::Local(it) => local = Some(it),
                AddressAttribute::Address(it) => address = Some(it),
                _ => {}
            }
        }
        // IPv6 has no local one without a peer.
        let address = IpNet::new(local.or(address)?, message.header.prefix_len).ok()?;
        (message.header.index == ifindex).then_some(address)
    };
    Ok(answers.into_iter().filter_map(address).collect())
}

fn find(host: &mut Socket) -> Result<Option<Found>, NetlinkError> {
    let Some(link) = link::by_name(host, NAME)? else { return Ok(None) };
    let mut found = Found {
        ifindex: link.header.index,
        is_ours: link::alias(&link) == Some(ALIAS),
        is_marked: link::alias(&link) == Some(ALIAS) && link.header.flags.contains(LinkFlags::Noarp),
        port: None,
        is_external: false,
        learns: false,
        mtu: 0,
        is_up: link.header.flags.contains(LinkFlags::Up),
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => found.mtu = *mtu,
            LinkAttribute::Group(group) => found.is_ours |= *group == GROUP,
            _ => {}
        }
    }
    for value in vxlan(&link).unwrap_or_default() {
        match value {
            InfoVxlan::Port(port) => found.port = Some(*port),
            InfoVxlan::CollectMetadata(on) => found.is_external = *on,
            InfoVxlan::Learning(on) => found.learns = *on,
            _ => {}
        }
    }
    Ok(Some(found))
}

fn vxlan(link: &LinkMessage) -> Option<&[InfoVxlan]> {
    let infos = link.attributes.iter().find_map(|it| match it {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    })?;
    infos.iter().find_map(|it| match it {
        LinkInfo::Data(InfoData::Vxlan(values)) => Some(values.as_slice()),
        _ => None,
    })
}
