//! A veth pair between host and pod.
//!
//! Order of a plug, and why:
//!
//! 1. One request creates the pair, with the peer born in the pod's namespace: to move a device later costs 25 ms.
//!    Names, MACs and MTU are in the request, so that udev finds nothing to change.
//! 2. The host's end gets its stamp, the qdisc and the filters. From here on it passes nothing: the filters are there
//!    and the maps have no entry.
//! 3. The pod's end is configured in one batch from inside, and has no carrier yet. No setting below `/proc/sys` is made
//!    there: to find one takes the longer the more namespaces were asked for theirs.
//! 4. The caller writes the maps' entries.
//! 5. The host's end goes up, and its routes are set. It gets no address: what adds the same one to every interface takes
//!    the longer the more there are. The dataplane answers for the gateway. Only now a packet can flow. The pod's end, which has got its carrier by
//!    that, takes it up at once: the kernel would leave that to a worker, and lose what the pod sends before.

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
        link::{
            AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InetDevConf, InfoData, InfoVeth,
            LinkAttribute, LinkMessage,
        },
    },
};

use super::{
    GATEWAY, PlugError, alias,
    filter::{self, Filters},
    get_link,
    netlink::{NetlinkError, Request, Socket},
    netns::Netns,
    reaper::{self, DEAD, UNBORN},
    requests::{add_address, add_neighbour, add_route, host_route, link_of, pod_route, set_link},
    stamp::Stamp,
    sysctl,
};
use ferrule_vif::{Addresses, Vif};

/// What is to be plugged.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub netns: &'a Netns,
    pub ifname: &'a IfName,
    pub stamp: &'a Stamp,
    pub vif: &'a Vif,
    /// The name of the host's end, if it had one before and nobody else has it now; else a new one.
    pub host_ifname: Option<&'a str>,
}

/// A pair that is configured but for its last step. Dropped, it is deleted again.
pub struct Pending<'a> {
    plan: Plan<'a>,
    host: Socket,
    /// Once the pod's end is configured.
    pod: Option<Socket>,
    ifname: String,
    ifindex: u32,
    /// Index of the pod's end, in the pod.
    peer: u32,
    keep: bool,
}

/// The link group of interfaces that are in none.
const DEFAULT_GROUP: u32 = 0;

/// Makes the pair, with filters on the host's end, and configures the pod's end.
///
/// # Errors
/// If anything fails; then nothing is left of it.
pub fn create<'a>(plan: Plan<'a>, filters: Filters<'_>) -> Result<Pending<'a>, PlugError> {
    let mut pending = create_pair(plan)?;
    let ifindex = pending.ifindex;

    let mut requests = vec![set_link("mark the host's interface", mark(ifindex, plan.stamp))];
    requests.extend(filter::attach(ifindex, filters));
    pending.host.batch(requests)?;
    if plan.vif.addresses.v6.is_some() {
        sysctl::set(&format!("ipv6/conf/{}/accept_ra", pending.ifname), "0")?;
    } else {
        sysctl::set(&format!("ipv6/conf/{}/disable_ipv6", pending.ifname), "1")?;
    }

    let mut pod = plan.netns.run(Socket::open)??;
    if plan.vif.addresses.v6.is_some() && is_without_ipv6(&mut pod, pending.peer)? {
        plan.netns.run(|| sysctl::set(&format!("ipv6/conf/{}/disable_ipv6", plan.ifname), "0"))??;
    }
    match pod.batch(pod_requests(pending.peer, plan.vif)) {
        // All but the default routes is on an interface that has just been made, where nothing else can be.
        Err(error) if error.is(Errno::EEXIST) => Err(PlugError::DefaultRouteExists),
        Err(error) => Err(error.into()),
        Ok(_) => {
            pending.pod = Some(pod);
            Ok(pending)
        }
    }
}

/// Takes an attachment's interface out of service: it goes into the group that the reaper deletes, and its routes are
/// deleted. One that is gone, or not ours, is left as it is.
///
/// It is not set down: that waits for an RCU grace period, and nothing passes that has no entry in the maps.
///
/// # Errors
/// If the kernel refuses.
pub fn retire(ifindex: u32, stamp: &Stamp, addresses: Addresses) -> Result<(), NetlinkError> {
    let mut host = Socket::open()?;
    if !is_stamped(&mut host, ifindex, stamp)? {
        return Ok(());
    }
    // First, so that an agent that starts after a crash does not take an interface without routes for one that lives.
    let message = LinkUnspec::new_with_index(ifindex).link_group(DEAD).build();
    match host.batch(vec![set_link("take the host's interface out of service", message)]) {
        // And its routes went with it.
        Err(error) if error.is(Errno::ENODEV) => return Ok(()),
        result => drop(result?),
    }
    for address in addresses.iter() {
        let message = RouteNetlinkMessage::DelRoute(host_route(ifindex, address));
        match host.batch(vec![Request::change(format!("delete the route to {address}"), message)]) {
            // Somebody has deleted it, or the interface with it.
            Err(error) if !error.is(Errno::ESRCH) && !error.is(Errno::ENODEV) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

// === impl Pending ===

impl Pending<'_> {
    /// Index of the host's end.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Name of the host's end.
    pub fn ifname(&self) -> &str {
        &self.ifname
    }

    /// The last step: from here on, packets flow.
    ///
    /// # Errors
    /// If the kernel refuses, or has a route to an address already; then the pair is deleted.
    pub fn bring_up(mut self) -> Result<(), PlugError> {
        let ifindex = self.ifindex;
        let up = LinkUnspec::new_with_index(ifindex).up().build();
        let mut requests = vec![set_link("set the host's interface up", up)];
        for address in self.plan.vif.addresses.iter() {
            requests.push(add_route(&format!("to {address}"), host_route(ifindex, address)));
            requests.push(add_neighbour(ifindex, address, self.plan.vif.mac.0));
        }
        self.host.batch(requests).map_err(|error| {
            // Of all this, only a route can be there before.
            if error.is(Errno::EEXIST) { PlugError::AddressInUse(error) } else { error.into() }
        })?;
        if let Some(pod) = &self.pod {
            pod.settle_carrier(self.plan.ifname)?;
        }
        self.keep = true;
        Ok(())
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // By name, which is random and so ours alone: the index may not be known yet.
        let by_name = || LinkUnspec::new_with_name(&self.ifname);
        let delete = RouteNetlinkMessage::DelLink(by_name().build());
        match self.host.batch(vec![Request::change("delete the half-made pair", delete)]) {
            Ok(_) => {}
            Err(error) if error.is(Errno::ENODEV) => {}
            Err(error) => {
                tracing::error!(ifname = self.ifname, %error, "a half-made pair is left to the reaper");
                let bury = set_link("leave it to the reaper", by_name().link_group(DEAD).build());
                // If this fails too, the kernel is beyond our help; the next start finds the stamp or the group.
                let _ = self.host.batch(vec![bury]);
            }
        }
    }
}

fn create_pair(mut plan: Plan<'_>) -> Result<Pending<'_>, PlugError> {
    let name_is_taken = |error: &_| matches!(error, PlugError::Netlink(error) if error.is(Errno::EEXIST));
    match try_create_pair(plan) {
        Err(error) if name_is_taken(&error) => {}
        result => return result,
    }
    // The pod's, by its predecessor that is on its way out, or by a stranger; or the host's, which is random, so that
    // another try has another one.
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

fn try_create_pair(plan: Plan<'_>) -> Result<Pending<'_>, PlugError> {
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
        .link_group(UNBORN)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .build();
    let mut get = get_link();
    get.attributes.push(LinkAttribute::IfName(ifname.clone()));
    let what = format!("create {ifname} with its peer {} in the pod", plan.ifname);
    let requests = vec![
        Request::create(what, RouteNetlinkMessage::NewLink(pair)),
        Request::change("read the new interface", RouteNetlinkMessage::GetLink(get)),
    ];
    // From here on there may be something to undo, whatever the kernel's answer, and also without one.
    let mut pending = Pending { plan, host, pod: None, ifname, ifindex: 0, peer: 0, keep: false };
    let answers = pending.host.batch(requests).inspect_err(|error| {
        // But for this one: the interface of that name is somebody else's. And one whose name can be known may be.
        pending.keep = error.is(Errno::EEXIST) || plan.host_ifname.is_some();
    })?;
    let link = answers.into_iter().find_map(link_of).ok_or(PlugError::NoAnswer)?;
    pending.ifindex = link.header.index;
    let peer = |attribute: &_| if let LinkAttribute::Link(peer) = attribute { Some(*peer) } else { None };
    pending.peer = link.attributes.iter().find_map(peer).ok_or(PlugError::NoAnswer)?;
    Ok(pending)
}

/// One queue for each direction, which is what veth uses. Left to itself, the driver makes one for each CPU and takes
/// them away again, and waits for an RCU grace period for each end, holding the lock over network configuration.
fn one_queue<T>(link: LinkMessageBuilder<T>) -> LinkMessageBuilder<T> {
    link.append_extra_attribute(LinkAttribute::NumTxQueues(1))
        .append_extra_attribute(LinkAttribute::NumRxQueues(1))
}

/// A name for the host's end that nobody can know beforehand, and so not take.
fn host_ifname() -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bits = RandomState::new().hash_one(Instant::now());
    let mut name = String::from("fr");
    for _ in 0..11 {
        let digit = DIGITS.get((bits & 31) as usize).copied().unwrap_or(b'a');
        name.push(char::from(digit));
        bits >>= 5;
    }
    name
}

fn has_link(netns: &Netns, ifname: &IfName) -> Result<bool, PlugError> {
    let mut pod = netns.run(Socket::open)??;
    let mut get = get_link();
    get.attributes.push(LinkAttribute::IfName(ifname.as_str().to_owned()));
    match pod.batch(vec![Request::change("look for the interface", RouteNetlinkMessage::GetLink(get))]) {
        Ok(_) => Ok(true),
        Err(error) if error.is(Errno::ENODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the host's interface at an index is there and carries a stamp.
///
/// # Errors
/// If the kernel refuses to tell.
pub fn is_stamped(host: &mut Socket, ifindex: u32, stamp: &Stamp) -> Result<bool, NetlinkError> {
    let mut get = get_link();
    get.header.index = ifindex;
    match host.batch(vec![Request::change("read the host's interface", RouteNetlinkMessage::GetLink(get))]) {
        Ok(answers) => Ok(answers
            .into_iter()
            .filter_map(link_of)
            .any(|link| alias(&link).and_then(Stamp::parse).as_ref() == Some(stamp))),
        Err(error) if error.is(Errno::ENODEV) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The host's end: whose it is, and what its stack does with it. Reverse path filtering is loose because the
/// dataplane has checked the source already, strictly.
fn mark(ifindex: u32, stamp: &Stamp) -> LinkMessage {
    let mut ipv4 = InetDevConf::default();
    ipv4.forwarding = 1;
    ipv4.rp_filter = 2;
    let mut families = vec![AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(ipv4)])];
    families.extend(no_address_of_its_own());
    LinkUnspec::new_with_index(ifindex)
        .alias(stamp.to_string())
        .link_group(DEFAULT_GROUP)
        .append_extra_attribute(LinkAttribute::AfSpecUnspec(families))
        .build()
}

/// The kernel would make a link-local address when the interface goes up, and let nobody use it until a second has passed in
/// which no duplicate was heard of. There is no one on the link to have one: who is to have the address is given it.
fn no_address_of_its_own() -> Option<AfSpecUnspec> {
    sysctl::has_ipv6().then(|| AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]))
}

/// Whether new interfaces of the pod are without IPv6: a namespace can be made so.
fn is_without_ipv6(pod: &mut Socket, ifindex: u32) -> Result<bool, PlugError> {
    let mut get = get_link();
    get.header.index = ifindex;
    let request = Request::change("read the pod's interface", RouteNetlinkMessage::GetLink(get));
    let link = pod.batch(vec![request])?.into_iter().find_map(link_of).ok_or(PlugError::NoAnswer)?;
    let families = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::AfSpecUnspec(families) => Some(families),
        _ => None,
    });
    let settings = families.flatten().filter_map(|family| match family {
        AfSpecUnspec::Inet6(settings) => Some(settings),
        _ => None,
    });
    Ok(settings.flatten().any(|it| matches!(it, AfSpecInet6::DevConf(conf) if conf.disable_ipv6 != 0)))
}

fn pod_requests(ifindex: u32, vif: &Vif) -> Vec<Request> {
    let change = || LinkUnspec::new_with_index(ifindex);
    let mut requests = Vec::new();
    if let Some(setting) = no_address_of_its_own() {
        let families = LinkAttribute::AfSpecUnspec(vec![setting]);
        let change = change().append_extra_attribute(families).build();
        requests.push(set_link("keep the pod's interface from making an address", change));
    }
    requests.push(set_link("set the pod's interface up", change().up().build()));
    if vif.addresses.v6.is_some() {
        requests.push(add_address(ifindex, vif.mac.link_local().into(), 64));
    }
    for address in vif.addresses.iter() {
        requests.push(add_address(ifindex, address, if address.is_ipv4() { 32 } else { 128 }));
    }
    let routes = vif.all_routes(GATEWAY);
    // Whatever the next hop's address, it is the host that takes the packet.
    let next_hops: BTreeSet<IpAddr> = routes.iter().map(|route| route.gateway).collect();
    requests.extend(next_hops.into_iter().map(|gateway| add_neighbour(ifindex, gateway, GATEWAY_MAC)));
    requests.extend(routes.iter().map(|route| {
        add_route(&format!("to {} through {}", route.dst, route.gateway), pod_route(ifindex, route))
    }));
    requests
}
