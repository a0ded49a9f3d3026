//! What the kernel tells of pods' interfaces, when nobody else can.
//!
//! Only what the host has is believed of addresses and MACs: the pod's end is the pod's to change.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::LinkAttribute,
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
    nsid::{NsidAttribute, NsidMessage},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol},
};

use super::{
    PlugError, ROUTE_PROTOCOL, alias, get_link,
    netlink::{NetlinkError, Request, Socket},
    netns::Netns,
    reaper::DEAD,
    stamp::Stamp,
};
use ferrule_vif::{Mac, PodRoute};

/// What there is of an interface with a stamp.
#[derive(Debug, Clone)]
pub struct Seen {
    pub ifindex: u32,
    pub ifname: String,
    pub stamp: Stamp,
    /// Bytes.
    pub mtu: u32,
    /// Index of the pod's end, where it is.
    pub peer: Option<u32>,
    /// By which number the host knows the namespace that the pod's end is in.
    pub nsid: Option<i32>,
    /// What our routes lead to it for.
    pub addresses: Vec<IpAddr>,
    /// Of the pod's end, from the permanent neighbour entries.
    pub mac: Option<Mac>,
}

/// A network namespace that was found by what is in it.
#[derive(Debug)]
pub struct Place {
    pub netns: Netns,
    /// A path that lives as long as the runtime lets it. A process's does not: any may end while the pod lives.
    pub path: Option<PathBuf>,
}

/// Where runtimes keep namespaces: containerd, CRI-O and podman; Docker.
const DIRECTORIES: [&str; 4] = ["/run/netns", "/var/run/netns", "/run/docker/netns", "/var/run/docker/netns"];
/// The priority that the kernel gives to a route of IPv6 that has none (`IP6_RT_PRIO_USER` in `linux/ipv6_route.h`).
const IPV6_PRIORITY: u32 = 1024;

/// Looks at all interfaces with a stamp, but for those that are dead.
///
/// # Errors
/// If the kernel refuses to tell.
pub fn survey(host: &mut Socket) -> Result<Vec<Seen>, NetlinkError> {
    let links = host.dump("list the interfaces", RouteNetlinkMessage::GetLink(get_link()))?;
    let mut seen: BTreeMap<u32, Seen> =
        links.into_iter().filter_map(seen).map(|it| (it.ifindex, it)).collect();
    let routes = RouteNetlinkMessage::GetRoute(RouteMessage::default());
    for answer in host.dump("list the routes", routes)? {
        let RouteNetlinkMessage::NewRoute(route) = answer else { continue };
        let is_ours = route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL);
        let device = route.attributes.iter().find_map(|it| match it {
            RouteAttribute::Oif(ifindex) => Some(*ifindex),
            _ => None,
        });
        let it = device.filter(|_| is_ours).and_then(|ifindex| seen.get_mut(&ifindex));
        let destination = destination(&route).filter(|it| it.prefix_len() == it.max_prefix_len());
        if let (Some(it), Some(destination)) = (it, destination) {
            it.addresses.push(destination.addr());
        }
    }
    let neighbours = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    for answer in host.dump("list the neighbours", neighbours)? {
        let RouteNetlinkMessage::NewNeighbour(neighbour) = answer else { continue };
        let it = seen.get_mut(&neighbour.header.ifindex);
        let mac = neighbour.attributes.iter().find_map(|it| match it {
            NeighbourAttribute::LinkLayerAddress(bytes) => Some(Mac(bytes.as_slice().try_into().ok()?)),
            _ => None,
        });
        if let (Some(it), Some(mac), NeighbourState::Permanent) = (it, mac, neighbour.header.state) {
            it.mac = Some(mac);
        }
    }
    Ok(seen.into_values().collect())
}

/// Finds namespaces by the numbers that the host has for them: among those that runtimes keep, then among those that processes are
/// in, as far as they are to be seen. Those that are not found are missing.
pub fn places(host: &mut Socket, mut wanted: BTreeSet<i32>) -> BTreeMap<i32, Place> {
    let mut found = BTreeMap::new();
    let mut looked_at = HashSet::new();
    let kept = DIRECTORIES.iter().flat_map(|directory| entries(Path::new(directory)));
    let of_processes =
        entries(Path::new("/proc")).filter(|path| is_process(path)).map(|it| it.join("ns/net"));
    for (path, stays) in kept.map(|path| (path, true)).chain(of_processes.map(|path| (path, false))) {
        if wanted.is_empty() {
            break;
        }
        // The link's text tells which one it is, and most processes are in the same.
        if !stays && fs::read_link(&path).is_ok_and(|text| !looked_at.insert(text)) {
            continue;
        }
        let Ok(netns) = Netns::open(&path) else { continue };
        let Ok(Some(nsid)) = number(host, &netns) else { continue };
        if wanted.remove(&nsid) {
            found.insert(nsid, Place { netns, path: stays.then_some(path) });
        }
    }
    found
}

/// Whether the other end of a host's interface is in a namespace.
///
/// # Errors
/// If the kernel refuses to tell.
pub fn is_end_in(host: &mut Socket, ifindex: u32, netns: &Netns) -> Result<bool, NetlinkError> {
    let of = number(host, netns)?;
    let links = host.dump("list the interfaces", RouteNetlinkMessage::GetLink(get_link()))?;
    let link = links.into_iter().filter_map(seen).find(|link| link.ifindex == ifindex);
    Ok(of.is_some() && link.and_then(|link| link.nsid) == of)
}

/// The routes that a plug made in a pod through an interface, as they are now.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel refuses to tell.
pub fn routes_of_pod(netns: &Netns, ifindex: u32) -> Result<Vec<PodRoute>, PlugError> {
    let mut pod = netns.run(Socket::open)??;
    let answers =
        pod.dump("list the pod's routes", RouteNetlinkMessage::GetRoute(RouteMessage::default()))?;
    let route = |answer| if let RouteNetlinkMessage::NewRoute(route) = answer { Some(route) } else { None };
    Ok(answers.into_iter().filter_map(route).filter_map(|route| route_of_pod(&route, ifindex)).collect())
}

fn seen(answer: RouteNetlinkMessage) -> Option<Seen> {
    let RouteNetlinkMessage::NewLink(link) = answer else { return None };
    let stamp = alias(&link).and_then(Stamp::parse)?;
    if link.attributes.contains(&LinkAttribute::Group(DEAD)) {
        return None;
    }
    let mut seen = Seen {
        ifindex: link.header.index,
        ifname: String::new(),
        stamp,
        mtu: 0,
        peer: None,
        nsid: None,
        addresses: Vec::new(),
        mac: None,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => seen.ifname.clone_from(name),
            LinkAttribute::Mtu(mtu) => seen.mtu = *mtu,
            LinkAttribute::Link(peer) => seen.peer = Some(*peer),
            LinkAttribute::LinkNetNsId(nsid) => seen.nsid = Some(*nsid).filter(|it| *it >= 0),
            _ => {}
        }
    }
    Some(seen)
}

/// The number that the host has for a namespace; `None` if it has none, as nothing of it leads there.
fn number(host: &mut Socket, netns: &Netns) -> Result<Option<i32>, NetlinkError> {
    let mut message = NsidMessage::default();
    message.attributes.push(NsidAttribute::Fd(netns.raw_fd().cast_unsigned()));
    let request = Request::change("ask for the number of a namespace", RouteNetlinkMessage::GetNsId(message));
    let answers = host.batch(vec![request])?;
    let number = |answer| {
        let RouteNetlinkMessage::NewNsId(message) = answer else { return None };
        message.attributes.iter().find_map(|it| if let NsidAttribute::Id(id) = it { Some(*id) } else { None })
    };
    Ok(answers.into_iter().find_map(number).filter(|it| *it >= 0))
}

fn route_of_pod(route: &RouteMessage, ifindex: u32) -> Option<PodRoute> {
    let header = &route.header;
    let is_static = header.protocol == RouteProtocol::Static && header.table == RouteHeader::RT_TABLE_MAIN;
    if !is_static || !route.attributes.contains(&RouteAttribute::Oif(ifindex)) {
        return None;
    }
    let mut found = PodRoute {
        dst: destination(route)?,
        gateway: IpAddr::from([0; 4]),
        mtu: None,
        advmss: None,
        priority: None,
    };
    let mut gateway = None;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Gateway(address) => gateway = address_of(address),
            RouteAttribute::Priority(priority) => found.priority = Some(*priority),
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(mtu) => found.mtu = Some(*mtu),
                        RouteMetric::Advmss(advmss) => found.advmss = Some(*advmss),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    found.gateway = gateway.filter(|it| it.is_ipv4() == found.dst.addr().is_ipv4())?;
    if found.gateway.is_ipv6() {
        found.priority = found.priority.filter(|it| *it != IPV6_PRIORITY);
    }
    Some(found)
}

/// Where a route leads. A default route is told without it.
fn destination(route: &RouteMessage) -> Option<IpNet> {
    let found = route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Destination(address) => address_of(address),
        _ => None,
    });
    let any = || match route.header.address_family {
        rtnetlink::packet_route::AddressFamily::Inet6 => IpAddr::from([0_u8; 16]),
        _ => IpAddr::from([0_u8; 4]),
    };
    IpNet::new(found.unwrap_or_else(any), route.header.destination_prefix_length).ok()
}

fn address_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn is_process(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
}
