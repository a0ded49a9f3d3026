//! A veth pair between host and pod.
//!
//! The order of a plug, and its reasons:
//!
//! 1. One request creates the pair, with the peer in the pod's namespace: moving a device later takes 25 ms.
//!    Names, MACs and MTU are in the request, so udev has nothing to change.
//! 2. The host's end gets its stamp, the qdisc and the filters. From here on the filters drop everything,
//!    because the maps have no entry.
//! 3. One batch configures the pod's end from inside the pod's namespace; the pod's end has no carrier yet.
//!    The plug avoids `/proc/sys` there: a lookup gets slower with the number of namespaces that were looked
//!    up before.
//! 4. The caller writes the map entries.
//! 5. The host's end goes up and gets its routes. It has no address: adding the same address to every
//!    interface gets slower with their number, and the dataplane answers for the gateway. Only now can
//!    packets flow. The pod's end activates its queue at once: the kernel would leave that to a worker, and
//!    drop what the pod sends before. For the same reason the plug waits for the pod's IPv6 local route
//!    ([`usable`]).

use std::{
    collections::BTreeSet, collections::hash_map::RandomState, hash::BuildHasher, net::IpAddr, time::Instant,
};

use agent_common::GATEWAY_MAC;
use ferrule_proto::names::IfName;
use nix::errno::Errno;
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth,
    packet_route::{
        RouteNetlinkMessage,
        link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoVeth, LinkAttribute, LinkMessage},
    },
};

use super::{
    GATEWAY, PlugError,
    filter::{self, Filters},
    host_inventory::HostInventory,
    host_route::host_route,
    link,
    netlink::{NetlinkError, Request, Socket},
    netns::Netns,
    reaper::{self, RETIRED, UNSTAMPED},
    requests::{LEAST_IPV6, add_address, add_neighbour, add_route, link_of, pod_route, route_mtu, set_link},
    shaping,
    stamp::Stamp,
    sysctl, usable,
};
use crate::registry::Wishes;
use ferrule_vif::{Addresses, Mac, Vif};

/// The parameters of a plug.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub netns: &'a Netns,
    pub ifname: &'a IfName,
    pub stamp: &'a Stamp,
    pub vif: &'a Vif,
    /// The largest packet, in bytes, that gets to every other node.
    pub path_mtu: Option<u32>,
    pub wishes: &'a Wishes,
    /// The former name of the host's end, used again if it is free; `None` for a random name.
    pub host_ifname: Option<&'a str>,
}

/// A new pair, complete except for the last step; deleted on drop.
pub struct NewLink<'a> {
    plan: Plan<'a>,
    host: Socket,
    /// A socket in the pod's namespace, once the pod's end is configured.
    pod: Option<Socket>,
    ifname: String,
    ifindex: u32,
    /// Index of the pod's end, in the pod's namespace.
    peer: u32,
    keep: bool,
}

/// The kernel's group for links without an explicit one.
pub const DEFAULT_GROUP: u32 = 0;
/// Of the names of hosts' ends.
pub(super) const PREFIX: &str = "fr";

/// Creates the pair, attaches the filters to the host's end, and configures the pod's end.
///
/// # Errors
/// If a step fails; the pair is then deleted again.
pub fn create<'a>(plan: Plan<'a>, filters: Filters<'_>) -> Result<NewLink<'a>, PlugError> {
    match try_create(plan, filters) {
        // Perhaps that of a retired predecessor of another name, which keeps its routes until it is deleted.
        Err(PlugError::DefaultRouteExists) => {
            reaper::reap_now()?;
            try_create(plan, filters)
        }
        result => result,
    }
}

/// Retires an attachment's interface: moves it to the group that the reaper deletes, and deletes its routes.
/// An interface that does not exist or has another stamp stays untouched.
///
/// The interface stays up: setting it down waits for an RCU grace period, and without map entries nothing
/// passes.
///
/// # Errors
/// If the kernel refuses.
pub fn retire(ifindex: u32, stamp: &Stamp, addresses: Addresses) -> Result<(), NetlinkError> {
    let mut host = Socket::open()?;
    if !is_stamped(&mut host, ifindex, stamp)? {
        return Ok(());
    }
    // First, so that after a crash the next start does not mistake an interface without routes for a live
    // one.
    let message = LinkUnspec::new_with_index(ifindex).link_group(RETIRED).build();
    match host.batch(vec![set_link("retire the host interface", message)]) {
        // The kernel deleted the routes with the interface.
        Err(error) if error.is(Errno::ENODEV) => return Ok(()),
        result => drop(result?),
    }
    for address in addresses.iter() {
        let message = RouteNetlinkMessage::DelRoute(host_route(ifindex, address));
        match host.batch(vec![Request::change(format!("delete the route to {address}"), message)]) {
            // The route is gone, alone or with its interface.
            Err(error) if !error.is(Errno::ESRCH) && !error.is(Errno::ENODEV) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Deletes the interfaces of all attachments, and those that a crashed plug has left. Returns their number.
///
/// # Errors
/// If the kernel refuses.
pub fn delete_all() -> Result<usize, NetlinkError> {
    let mut host = Socket::open()?;
    let links = HostInventory::links(&mut host)?.links;
    let stamped: Vec<u32> =
        links.iter().filter(|(_, link)| link.stamp.is_some()).map(|(index, _)| *index).collect();
    for ifindex in &stamped {
        let message = LinkUnspec::new_with_index(*ifindex).link_group(RETIRED).build();
        match host.batch(vec![set_link("retire the host interface", message)]) {
            Err(error) if error.is(Errno::ENODEV) => {}
            result => drop(result?),
        }
    }
    reaper::reap_now()?;
    reaper::delete_group(UNSTAMPED)?;
    Ok(stamped.len())
}

// === impl NewLink ===

impl NewLink<'_> {
    /// Index of the host's end.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Name of the host's end.
    pub fn ifname(&self) -> &str {
        &self.ifname
    }

    /// The last step: packets flow from here on.
    ///
    /// # Errors
    /// If the kernel refuses, or already has a route to an address; the pair is then deleted.
    pub fn bring_up(mut self) -> Result<(), PlugError> {
        let ifindex = self.ifindex;
        let up = LinkUnspec::new_with_index(ifindex).up().build();
        let mut requests = vec![set_link("set the host interface up", up)];
        for address in self.plan.vif.addresses.iter() {
            requests.push(add_route(&format!("to {address}"), host_route(ifindex, address)));
            requests.push(add_neighbour(ifindex, address, self.plan.vif.mac));
        }
        self.host.batch(requests).map_err(|error| {
            // Only a route can exist before.
            if error.is(Errno::EEXIST) { PlugError::AddressInUse(error) } else { error.into() }
        })?;
        if let Some(pod) = &mut self.pod {
            pod.sync_carrier(self.plan.ifname)?;
            if let Some(v6) = self.plan.vif.addresses.v6 {
                usable::until_local(pod, self.plan.netns, v6)?;
            }
        }
        self.keep = true;
        Ok(())
    }
}

impl Drop for NewLink<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // By name, which is random and therefore the agent's own: the index may be unknown yet.
        let by_name = || LinkUnspec::new_with_name(&self.ifname);
        let delete = RouteNetlinkMessage::DelLink(by_name().build());
        match self.host.batch(vec![Request::change("roll back the new pair", delete)]) {
            Ok(_) => {}
            Err(error) if error.is(Errno::ENODEV) => {}
            Err(error) => {
                tracing::error!(ifname = self.ifname, %error, "cannot delete the veth pair of a failed ADD; moving it to the group of retired links");
                let retire = set_link("retire the new pair", by_name().link_group(RETIRED).build());
                // If this fails too, the next start finds the pair by its stamp or group.
                let _ = self.host.batch(vec![retire]);
            }
        }
    }
}

fn try_create<'a>(plan: Plan<'a>, filters: Filters<'_>) -> Result<NewLink<'a>, PlugError> {
    let mut new = create_pair(plan)?;
    let ifindex = new.ifindex;

    let mut requests = vec![set_link("stamp the host interface", stamped(ifindex, &plan))];
    requests.extend(filter::attach(ifindex, filters));
    requests.extend(plan.wishes.ingress.map(|rate| shaping::limit(ifindex, rate)));
    new.host.batch(requests)?;
    if plan.vif.addresses.v6.is_some() {
        sysctl::set(&format!("ipv6/conf/{}/accept_ra", new.ifname), "0")?;
    } else if has_ipv6(plan.vif.mtu) {
        sysctl::set(&format!("ipv6/conf/{}/disable_ipv6", new.ifname), "1")?;
    }

    let mut pod = plan.netns.run(Socket::open)??;
    if plan.vif.addresses.v6.is_some() && disables_ipv6(&mut pod, new.peer)? {
        plan.netns.run(|| sysctl::set(&format!("ipv6/conf/{}/disable_ipv6", plan.ifname), "0"))??;
    }
    match pod.batch(pod_requests(new.peer, plan)) {
        // Only a default route can conflict: everything else is on an interface that did not exist before.
        Err(error) if error.is(Errno::EEXIST) => Err(PlugError::DefaultRouteExists),
        Err(error) => Err(error.into()),
        Ok(_) => {
            new.pod = Some(pod);
            Ok(new)
        }
    }
}

fn create_pair(mut plan: Plan<'_>) -> Result<NewLink<'_>, PlugError> {
    let name_is_taken = |error: &_| matches!(error, PlugError::Netlink(error) if error.is(Errno::EEXIST));
    match try_create_pair(plan) {
        Err(error) if name_is_taken(&error) => {}
        result => return result,
    }
    // Either the pod's name is taken, by a retired predecessor or a foreign interface; or the host's, and a
    // retry picks another random one.
    if has_link(plan.netns, plan.ifname)? {
        reaper::reap_now()?;
    } else {
        plan.host_ifname = None;
    }
    match try_create_pair(plan) {
        Err(error) if name_is_taken(&error) => Err(PlugError::InterfaceExists(plan.ifname.clone())),
        result => result,
    }
}

fn try_create_pair(plan: Plan<'_>) -> Result<NewLink<'_>, PlugError> {
    let host = Socket::open()?;
    let ifname = plan.host_ifname.map_or_else(host_ifname, str::to_owned);
    let peer = one_queue(LinkUnspec::new_with_name(plan.ifname.as_str()))
        .mtu(plan.vif.mtu)
        .address(plan.vif.mac.0.to_vec())
        .setns_by_fd(plan.netns.raw_fd())
        .build();
    let pair = one_queue(LinkMessageBuilder::<LinkVeth>::new(&ifname, plan.ifname.as_str()))
        .mtu(plan.vif.mtu)
        .address(GATEWAY_MAC.to_vec())
        .link_group(UNSTAMPED)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .build();
    let mut get = link::get();
    get.attributes.push(LinkAttribute::IfName(ifname.clone()));
    let what = format!("create {ifname} with its peer {} in the pod", plan.ifname);
    let requests = vec![
        Request::create(what, RouteNetlinkMessage::NewLink(pair)),
        Request::change("read the new interface", RouteNetlinkMessage::GetLink(get)),
    ];
    // From here on there may be a pair to roll back, whatever the kernel answers, and also without an answer.
    let mut new = NewLink { plan, host, pod: None, ifname, ifindex: 0, peer: 0, keep: false };
    let answers = new.host.batch(requests).inspect_err(|error| {
        // Not after `EEXIST`: the name belongs to a foreign interface. A name that is not random may belong
        // to one, too.
        new.keep = error.is(Errno::EEXIST) || plan.host_ifname.is_some();
    })?;
    let link = answers.into_iter().find_map(link_of).ok_or(PlugError::NoAnswer)?;
    new.ifindex = link.header.index;
    let peer = |attribute: &_| if let LinkAttribute::Link(peer) = attribute { Some(*peer) } else { None };
    new.peer = link.attributes.iter().find_map(peer).ok_or(PlugError::NoAnswer)?;
    Ok(new)
}

/// One queue for each direction, which is all that veth uses. By default the driver allocates one for each
/// CPU, frees the rest, and waits for an RCU grace period for each end under RTNL.
fn one_queue<T>(link: LinkMessageBuilder<T>) -> LinkMessageBuilder<T> {
    link.append_extra_attribute(LinkAttribute::NumTxQueues(1))
        .append_extra_attribute(LinkAttribute::NumRxQueues(1))
}

/// A random name for the host's end, so that no other program can occupy it beforehand.
fn host_ifname() -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bits = RandomState::new().hash_one(Instant::now());
    let mut name = PREFIX.to_owned();
    for _ in 0..11 {
        let digit = DIGITS.get((bits & 31) as usize).copied().unwrap_or(b'a');
        name.push(char::from(digit));
        bits >>= 5;
    }
    name
}

fn has_link(netns: &Netns, ifname: &IfName) -> Result<bool, PlugError> {
    Ok(link::by_name(&mut netns.run(Socket::open)??, ifname.as_str())?.is_some())
}

/// Whether there is a host interface at an index and it carries a stamp.
///
/// # Errors
/// If the kernel refuses the request.
pub fn is_stamped(host: &mut Socket, ifindex: u32, stamp: &Stamp) -> Result<bool, NetlinkError> {
    let link = link::by_index(host, ifindex)?;
    Ok(link.is_some_and(|link| link::alias(&link).and_then(Stamp::parse).as_ref() == Some(stamp)))
}

/// The host's end: stamp, group, and settings. Reverse path filtering is loose because the dataplane checks
/// the source strictly. A pod has one next hop, so a redirect could only mislead it. Loopback addresses pass
/// for the node's ports only: the dataplane drops what the pod sends from or to them.
fn stamped(ifindex: u32, plan: &Plan<'_>) -> LinkMessage {
    let localnet = (link::ROUTE_LOCALNET, u32::from(plan.wishes.has_host_ports()));
    let settings = [(link::FORWARDING, 1), (link::RP_FILTER, 2), (link::SEND_REDIRECTS, 0), localnet];
    let mut families = vec![link::set_ipv4(&settings)];
    families.extend(no_link_local_address(plan.vif.mtu));
    LinkUnspec::new_with_index(ifindex)
        .alias(plan.stamp.to_string())
        .link_group(DEFAULT_GROUP)
        .append_extra_attribute(LinkAttribute::AfSpecUnspec(families))
        .build()
}

/// Turns off the kernel's own link-local address, which is unusable during a second of duplicate address
/// detection. No duplicate is possible on the link, so the plug adds the address that the pod needs.
fn no_link_local_address(mtu: u32) -> Option<AfSpecUnspec> {
    has_ipv6(mtu).then(|| AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]))
}

/// Whether the kernel has IPv6 on a link of this MTU, and settings of it. On a shorter one, it makes no
/// `inet6_dev` (`addrconf_notify` in `net/ipv6/addrconf.c`), refuses settings by netlink (`EAFNOSUPPORT`) and
/// has none below `/proc/sys`. Such a VIF has no IPv6 address.
fn has_ipv6(mtu: u32) -> bool {
    mtu >= LEAST_IPV6 && sysctl::has_ipv6()
}

/// Whether the pod's namespace disables IPv6 on new interfaces.
fn disables_ipv6(pod: &mut Socket, ifindex: u32) -> Result<bool, PlugError> {
    let link = link::by_index(pod, ifindex)?.ok_or(PlugError::NoAnswer)?;
    Ok(link::disables_ipv6(&link))
}

fn pod_requests(ifindex: u32, Plan { vif, path_mtu, wishes, .. }: Plan<'_>) -> Vec<Request> {
    let change = || LinkUnspec::new_with_index(ifindex);
    let mut requests = Vec::new();
    if let Some(setting) = no_link_local_address(vif.mtu) {
        let families = LinkAttribute::AfSpecUnspec(vec![setting]);
        let change = change().append_extra_attribute(families).build();
        requests.push(set_link("turn off link-local addresses on the pod's interface", change));
    }
    requests.extend(wishes.egress.map(|rate| shaping::limit(ifindex, rate)));
    requests.push(set_link("set the pod's interface up", change().up().build()));
    if vif.addresses.v6.is_some() {
        requests.push(add_address(ifindex, vif.mac.link_local().into(), 64));
    }
    for address in vif.addresses.iter() {
        requests.push(add_address(ifindex, address, if address.is_ipv4() { 32 } else { 128 }));
    }
    let routes = vif.all_routes(GATEWAY);
    // The host's end receives the packets for every next hop.
    let next_hops: BTreeSet<IpAddr> = routes.iter().map(|route| route.gateway).collect();
    requests.extend(next_hops.into_iter().map(|gateway| add_neighbour(ifindex, gateway, Mac(GATEWAY_MAC))));
    requests.extend(routes.into_iter().map(|mut route| {
        route.mtu = route.mtu.or_else(|| route_mtu(vif, path_mtu, route.dst.addr().is_ipv4()));
        add_route(&format!("to {} through {}", route.dst, route.gateway), pod_route(ifindex, &route))
    }));
    requests
}
