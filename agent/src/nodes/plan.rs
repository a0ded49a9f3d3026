//! What the node should have for the other nodes: ways, routes, rules, the tunnel, and the rows of the map
//! `NODES`. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use agent_common::{EndpointKey, NodeEntry, NodeKey, UnderlayEntry, UnderlayKey};
use ipnet::IpNet;

use super::{
    Mode, Nodes, Settings,
    way::{NoWay, Own, Way},
};
use crate::plug::nodes::{
    foreign::Foreign,
    reach::Hop,
    route::{Next, NodeRoute, Routes, Table},
    tunnel::Tunnel,
    uplink_filter::Bare,
};

/// What the kernel says about this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Underlay {
    /// The node's own addresses.
    pub own: BTreeSet<IpAddr>,
    /// The ways to other nodes' addresses.
    pub hops: HashMap<IpAddr, Hop>,
    /// The interfaces of the default routes, and those that have the node's addresses.
    pub uplinks: BTreeSet<u32>,
    /// Whether pods of this node have, or may get, addresses of IPv6.
    pub has_ipv6_pods: bool,
    /// Why packets must not bypass the stack; `None` if they may.
    pub needs_stack: Option<String>,
    pub foreign: Foreign,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    nodes: Arc<Nodes>,
    /// The ways to the IPv4 and IPv6 ranges of each other node, in their order; empty if others route.
    ways: Vec<[Result<Way, NoWay>; 2]>,
    /// `None` if no packet takes the tunnel, and none may come by it.
    pub tunnel: Option<Tunnel>,
    /// Sources whose packets to other nodes' addresses take the tunnel.
    pub sources: BTreeSet<IpNet>,
    /// Why no packet bypasses the stack; `None` if some may.
    pub only_stack: Option<String>,
    foreign: Foreign,
    has_ipv6_pods: bool,
    /// The largest packet, in bytes, that gets to every node's pods; `None` without other nodes.
    pub mtu: Option<u32>,
    /// The interfaces by which the node is reached, but for the tunnel device.
    pub uplinks: BTreeSet<u32>,
    /// Of these, those by which packets to other nodes leave.
    pub sending: BTreeSet<u32>,
    /// The source of the node's own packets to pods, IPv4 and IPv6.
    pub own: (Option<IpAddr>, Option<IpAddr>),
}

/// A range of another node, and the way there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeWay<'a> {
    pub node: &'a str,
    pub range: IpNet,
    pub way: &'a Result<Way, NoWay>,
}

/// The setting that sends all packets through the stack.
const SWITCHED_OFF: &str = "--node-fast-path is off";
/// The least MTU of a link with IPv6 (RFC 8200, 5).
const LEAST_IPV6: u32 = 1280;

// === impl Plan ===

impl Plan {
    pub fn new(settings: Settings, nodes: &Arc<Nodes>, underlay: &Underlay) -> Self {
        let own = nodes.own.as_ref();
        let uplinks = underlay.uplinks.clone();
        let switched_off = (!settings.fast_path).then(|| SWITCHED_OFF.to_owned());
        let only_stack = switched_off.or_else(|| underlay.needs_stack.clone());
        let foreign = underlay.foreign.clone();
        let has_ipv6_pods = underlay.has_ipv6_pods;
        let mut plan =
            Self { nodes: Arc::clone(nodes), uplinks, only_stack, foreign, has_ipv6_pods, ..Self::default() };
        if settings.mode == Mode::Off {
            return plan;
        }
        let addresses = Own::new(own, &underlay.own);
        plan.own = (addresses.first(true), addresses.first(false));
        let reach = |address| underlay.hops.get(&address).copied();
        let way = |node, is_ipv4| Way::to(node, is_ipv4, settings.mode, &addresses, reach);
        let ways = |node| [true, false].map(|is_ipv4| way(node, is_ipv4));
        plan.ways = nodes.others.iter().map(ways).collect();
        plan.sending = plan.ways().map(Way::ifindex).collect();
        plan.uplinks.extend(&plan.sending);
        plan.mtu = plan.ways().map(|way| way.mtu().max(LEAST_IPV6)).min();
        if settings.mode != Mode::Direct && !nodes.others.is_empty() {
            let mtu = plan.ways().filter(|way| way.is_tunnelled()).map(Way::mtu).max().unwrap_or(LEAST_IPV6);
            let addresses = [plan.own.0, plan.own.1].into_iter().flatten().collect();
            plan.tunnel = Some(Tunnel { port: settings.port, mtu: mtu.max(LEAST_IPV6), addresses });
        }
        if plan.has_tunnelled() {
            plan.sources = own.map(|own| own.ranges.iter().copied().collect()).unwrap_or_default();
        }
        plan
    }

    /// Each range of each other node; empty if others route.
    pub fn ranges(&self) -> impl Iterator<Item = RangeWay<'_>> {
        self.nodes.others.iter().zip(&self.ways).flat_map(|(node, [v4, v6])| {
            let way = move |range: &IpNet| if range.addr().is_ipv4() { v4 } else { v6 };
            node.ranges.iter().map(move |range| RangeWay { node: &node.name, range: *range, way: way(range) })
        })
    }

    /// The routes, those by the tunnel only if there is a tunnel device.
    pub fn routes(&self, tunnel: Option<u32>) -> Routes {
        let ranges = self.ranges().filter_map(|it| Some((Table::Main, it.range, *it.way.as_ref().ok()?)));
        let addresses = self.tunnelled().map(|(it, way)| (Table::OfPods, IpNet::from(it), way));
        let route = |(table, to, way): (Table, IpNet, Way)| {
            let source = if to.addr().is_ipv4() { self.own.0 } else { self.own.1 };
            let (ifindex, next) = match way {
                Way::Direct { gateway, ifindex, .. } => (ifindex, Next::Gateway(gateway)),
                Way::Vxlan { remote, source, .. } => (tunnel?, Next::Tunnel { remote, source }),
            };
            Some(((table, to), NodeRoute { ifindex, next, mtu: way.mtu(), source }))
        };
        ranges.chain(addresses).filter_map(route).collect()
    }

    /// The rows of the map `NODES`.
    pub fn rows(&self, tunnel: Option<u32>, bare: &Bare) -> BTreeMap<NodeKey, NodeEntry> {
        let mut rows = entries(&self.nodes);
        for it in self.ranges() {
            let (Ok(way), Some(row)) = (it.way, rows.get_mut(&key(it.range))) else { continue };
            let is_fast = self.slow_because(it.range, *way, tunnel, bare).is_none();
            let (ifindex, next) = match way {
                Way::Direct { gateway, ifindex, .. } => (*ifindex, *gateway),
                Way::Vxlan { remote, .. } => {
                    row.flags |= NodeEntry::VXLAN;
                    (tunnel.unwrap_or_default(), *remote)
                }
            };
            row.address = key_of(next).address;
            if is_fast {
                row.flags |= NodeEntry::FAST;
                (row.ifindex, row.mtu) = (ifindex, way.mtu());
            }
        }
        rows
    }

    /// The rows of the map `UNDERLAY`, given those of `NODES`: for each node with a range that packets reach
    /// by the tunnel past the stack. The uplink's filters receive what the other node sends likewise.
    pub fn underlay(
        &self,
        rows: &BTreeMap<NodeKey, NodeEntry>,
        bare: &Bare,
    ) -> BTreeMap<UnderlayKey, UnderlayEntry> {
        let row = |it: RangeWay<'_>| {
            let node = rows.get(&key(it.range)).filter(|row| row.is_fast())?;
            let way = *it.way.as_ref().ok()?;
            let [next, source, remote] = self.outer(way, bare).ok()?.map(|it| it.octets());
            let way = UnderlayEntry { ifindex: way.ifindex(), next, source, remote, device: node.ifindex };
            Some((UnderlayKey { node: node.id }, way))
        };
        self.ranges().filter_map(row).collect()
    }

    /// Next hop, source and destination of the tunnel's packets on the way, if these bypass the stack of the
    /// uplink.
    ///
    /// # Errors
    /// Why they do not.
    pub fn outer(&self, way: Way, bare: &Bare) -> Result<[Ipv4Addr; 3], String> {
        let Way::Vxlan { remote, source, ifindex, next, .. } = way else {
            return Err("no packet of the tunnel takes a direct way".to_owned());
        };
        // Packets of IPv6, too, leave inside of packets of IPv4, which the rule may concern.
        if let [Some(priority), _] = self.foreign.rules {
            return Err(other_rule(priority));
        }
        if let Some(why) = bare.get(&ifindex) {
            return Err(why.clone());
        }
        match (next, source, remote) {
            (Some(IpAddr::V4(next)), Some(IpAddr::V4(source)), IpAddr::V4(remote)) => {
                Ok([next, source, remote])
            }
            (.., IpAddr::V6(_)) => Err("the tunnel's packets are IPv6".to_owned()),
            (_, None, _) => Err("no interface has an InternalIP of this Node".to_owned()),
            _ => Err(format!("the kernel's route to {remote} has several next hops, or one of IPv6")),
        }
    }

    /// The uplinks that follow router advertisements although the node forwards IPv6. None without pods that
    /// need this: forwarding is not the agent's doing then.
    pub fn listening(&self) -> BTreeSet<u32> {
        if self.has_ipv6_pods { self.uplinks.clone() } else { BTreeSet::new() }
    }

    /// The ranges of this node.
    pub fn own_ranges(&self) -> &[IpNet] {
        self.nodes.own.as_ref().map(|own| own.ranges.as_slice()).unwrap_or_default()
    }

    /// The ranges whose packets went through the stack by the rows `before`, and bypass it now.
    pub fn faster(
        &self,
        before: &BTreeMap<NodeKey, NodeEntry>,
        now: &BTreeMap<NodeKey, NodeEntry>,
    ) -> BTreeSet<IpNet> {
        let is_faster = |range: &IpNet| {
            let fast = [before, now].map(|rows| rows.get(&key(*range)).map(NodeEntry::is_fast));
            fast == [Some(false), Some(true)]
        };
        self.ranges().map(|it| it.range.trunc()).filter(is_faster).collect()
    }

    /// Why packets between pods of this node and others go through the stack; `None` if they bypass it.
    pub fn slow_because(&self, range: IpNet, way: Way, tunnel: Option<u32>, bare: &Bare) -> Option<String> {
        if self.only_stack.is_some() {
            return self.only_stack.clone();
        }
        // Only the stack follows what others tell the kernel.
        let [v4, v6] = self.foreign.rules;
        if let Some(priority) = if range.addr().is_ipv4() { v4 } else { v6 } {
            return Some(other_rule(priority));
        }
        if let Some(to) = self.foreign.routes.get(&range) {
            return Some(format!(
                "another program has a route to {to}, which packets follow: ip route show {to}"
            ));
        }
        match way {
            Way::Direct { ifindex, .. } => bare.get(&ifindex).cloned(),
            Way::Vxlan { .. } if tunnel.is_none() => Some("there is no tunnel".to_owned()),
            // Receivers accept packets from the addresses of Node objects only. The routes name the source,
            // and the fast path leaves it to the kernel.
            Way::Vxlan { is_usual_source, .. } => (!is_usual_source).then(|| {
                "packets to the node leave from another address than this Node's InternalIP".to_owned()
            }),
        }
    }

    /// Whether packets to any node take the tunnel.
    pub fn has_tunnelled(&self) -> bool {
        self.ways().any(Way::is_tunnelled) || self.tunnelled().next().is_some()
    }

    fn ways(&self) -> impl Iterator<Item = Way> {
        self.ranges().filter_map(|it| it.way.as_ref().ok().copied())
    }

    /// The addresses of other nodes that pods reach by the tunnel. Also those of a node without ranges: pods
    /// call its kubelet, and the API server there.
    fn tunnelled(&self) -> impl Iterator<Item = (IpAddr, Way)> {
        self.nodes.others.iter().zip(&self.ways).flat_map(|(node, [v4, v6])| {
            let way = move |it: IpAddr| if it.is_ipv4() { v4 } else { v6 }.as_ref().ok().copied();
            let ways = node.addresses.iter().filter_map(move |it| Some((*it, way(*it)?)));
            ways.filter(|(_, way)| way.is_tunnelled())
        })
    }
}

fn entries(nodes: &Nodes) -> BTreeMap<NodeKey, NodeEntry> {
    let mut entries = BTreeMap::new();
    let mut ids = BTreeSet::new();
    let own = nodes.own.iter().map(|node| (node, NodeEntry::OWN));
    for (node, flags) in own.chain(nodes.others.iter().map(|node| (node, 0))) {
        let id = id(&node.uid, &mut ids);
        let entry = |flags| NodeEntry { id, flags, ..NodeEntry::default() };
        entries.extend(node.ranges.iter().map(|range| (key(*range), entry(flags))));
        let address = |it: &IpAddr| (key(IpNet::from(*it)), entry(flags | NodeEntry::ADDRESS));
        entries.extend(node.addresses.iter().map(address));
    }
    entries
}

/// The number of a node in the map: the same after a restart, so that no packet meets old and new numbers.
fn id(uid: &str, taken: &mut BTreeSet<u32>) -> u32 {
    // FNV-1a: any even spread serves.
    let mut id =
        uid.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    while id == 0 || !taken.insert(id) {
        id = id.wrapping_add(1);
    }
    id
}

fn other_rule(priority: u32) -> String {
    format!("another program has the routing rule {priority}")
}

fn key(net: IpNet) -> NodeKey {
    NodeKey::new(net.network(), net.prefix_len())
}

fn key_of(address: IpAddr) -> EndpointKey {
    match address {
        IpAddr::V4(v4) => EndpointKey::ipv4(v4.octets()),
        IpAddr::V6(v6) => EndpointKey::ipv6(v6.octets()),
    }
}

#[cfg(test)]
mod tests;
