//! The way to another node: directly or by the tunnel. Pure.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use super::{Mode, Node};
use crate::plug::nodes::{
    reach::Hop,
    tunnel::{OVERHEAD_IPV4, OVERHEAD_IPV6},
};

/// How packets get to a node, for one family of its ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Direct {
        gateway: IpAddr,
        ifindex: u32,
        /// Bytes.
        mtu: u32,
    },
    Vxlan {
        remote: IpAddr,
        /// The outer source; `None` if that is left to the kernel.
        source: Option<IpAddr>,
        /// Whether the kernel would choose this source, too.
        is_usual_source: bool,
        /// The interface that carries the tunnel's packets.
        ifindex: u32,
        /// The next hop of these packets; `None` if the kernel spreads them over several, or if that is of
        /// the other family.
        next: Option<IpAddr>,
        /// Bytes, of the inner packets.
        mtu: u32,
    },
}

/// Why there is no way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    #[error("the Node has no usable InternalIP")]
    NoAddress,
    #[error("this node has no route to {0}")]
    Unreachable(IpAddr),
    #[error("this node's route to {0} has a next hop of the other family, which routes to pods cannot have")]
    ForeignNextHop(IpAddr),
    #[error("the Node has no {0} InternalIP, and --node-routes direct permits no tunnel")]
    OtherFamily(&'static str),
    #[error("this Node has no {0} InternalIP, from which alone other nodes accept the tunnel's packets")]
    NoSource(&'static str),
    #[error(
        "no interface of this node has its InternalIP, from which alone other nodes accept the tunnel's packets"
    )]
    SourceElsewhere,
}

/// This node's InternalIPs: receivers accept packets of the tunnel from these only.
#[derive(Debug, Clone, Default)]
pub(super) struct Own {
    /// Those of the Node object, in their order.
    stated: Vec<IpAddr>,
    /// Of these, those that an interface has. Where the network translates others, packets of the tunnel
    /// arrive for an address that no Node object has, and this node drops them.
    present: Vec<IpAddr>,
}

// === impl Way ===

impl Way {
    /// The way to the ranges of one family of a node. `reach` gives the kernel's route to an address.
    ///
    /// # Errors
    /// If the settings and the addresses of both nodes leave none.
    pub(super) fn to(
        node: &Node,
        is_ipv4: bool,
        mode: Mode,
        own: &Own,
        reach: impl Fn(IpAddr) -> Option<Hop>,
    ) -> Result<Self, NoWay> {
        let reached = || node.addresses.iter().filter_map(|address| Some((*address, reach(*address)?)));
        let hop = reached().find(|(address, _)| address.is_ipv4() == is_ipv4);
        match (mode, hop) {
            // A next hop means nothing there, and what is behind the link knows no pods' addresses.
            (Mode::Auto, Some((_, hop))) if !hop.has_neighbours => {}
            (Mode::Auto | Mode::Direct, Some((address, hop))) if hop.gateway.is_none() => {
                return Ok(Self::Direct { gateway: address, ifindex: hop.ifindex, mtu: hop.mtu });
            }
            (Mode::Direct, Some((address, hop))) if hop.is_of_other_family(address) => {
                return Err(NoWay::ForeignNextHop(address));
            }
            (Mode::Direct, Some((_, Hop { ifindex, gateway: Some(gateway), mtu, .. }))) => {
                return Ok(Self::Direct { gateway, ifindex, mtu });
            }
            (Mode::Direct, None) => {
                let of_family = node.addresses.iter().copied().find(|it| it.is_ipv4() == is_ipv4);
                return Err(of_family.map_or(NoWay::OtherFamily(family(is_ipv4)), NoWay::Unreachable));
            }
            _ => {}
        }
        let present = reached().find(|(remote, _)| own.first(remote.is_ipv4()).is_some());
        // A Node without any may get some: a cloud's controller adds them later.
        let best = present.or_else(|| reached().next().filter(|_| own.stated.is_empty()));
        if let Some((remote, hop)) = best {
            return Ok(Self::by_vxlan(remote, &hop, own));
        }
        let is_stated = |remote: IpAddr| own.stated.iter().any(|it| it.is_ipv4() == remote.is_ipv4());
        Err(match (reached().next(), node.addresses.first()) {
            (Some(_), _) if reached().any(|(remote, _)| is_stated(remote)) => NoWay::SourceElsewhere,
            (Some((remote, _)), _) => NoWay::NoSource(family(remote.is_ipv4())),
            (None, Some(first)) => NoWay::Unreachable(*first),
            (None, None) => NoWay::NoAddress,
        })
    }

    fn by_vxlan(remote: IpAddr, hop: &Hop, own: &Own) -> Self {
        let overhead = if remote.is_ipv4() { OVERHEAD_IPV4 } else { OVERHEAD_IPV6 };
        let source = own.source(remote, hop);
        Self::Vxlan {
            remote,
            source,
            is_usual_source: source.is_some() && source == hop.source,
            ifindex: hop.ifindex,
            next: hop.next(remote),
            mtu: hop.mtu.saturating_sub(overhead),
        }
    }

    /// The largest packet that gets to the node, in bytes.
    pub fn mtu(self) -> u32 {
        match self {
            Self::Direct { mtu, .. } | Self::Vxlan { mtu, .. } => mtu,
        }
    }

    pub fn is_tunnelled(self) -> bool {
        matches!(self, Self::Vxlan { .. })
    }

    /// The interface by which packets leave this node, tunnelled or not.
    pub fn ifindex(self) -> u32 {
        match self {
            Self::Direct { ifindex, .. } | Self::Vxlan { ifindex, .. } => ifindex,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct { gateway, .. } => write!(f, "directly to {gateway}"),
            Self::Vxlan { remote, .. } => write!(f, "by VXLAN to {remote}"),
        }
    }
}

// === impl Own ===

impl Own {
    /// `interfaces`: the addresses of the node's interfaces.
    pub fn new(node: Option<&Node>, interfaces: &BTreeSet<IpAddr>) -> Self {
        let stated = node.map(|it| it.addresses.clone()).unwrap_or_default();
        let present = stated.iter().copied().filter(|it| interfaces.contains(it)).collect();
        Self { stated, present }
    }

    /// The first one of a family that an interface has.
    pub fn first(&self, is_ipv4: bool) -> Option<IpAddr> {
        self.present.iter().copied().find(|it| it.is_ipv4() == is_ipv4)
    }

    /// The source of packets to an address. What the kernel chooses fits the interface that they leave by.
    fn source(&self, to: IpAddr, hop: &Hop) -> Option<IpAddr> {
        let usual = hop.source.filter(|it| it.is_ipv4() == to.is_ipv4() && self.present.contains(it));
        usual.or_else(|| self.first(to.is_ipv4()))
    }
}

fn family(is_ipv4: bool) -> &'static str {
    if is_ipv4 { "IPv4" } else { "IPv6" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn node(addresses: &[&str]) -> Node {
        Node {
            uid: "b".into(),
            name: "b".into(),
            zone: None,
            addresses: addresses.iter().map(|it| ip(it)).collect(),
            ranges: Vec::new(),
        }
    }

    /// 10.0.0.0/24 and fd00::/64 are on eth0 (2), 10.0.1.0/24 behind a router, 10.0.3.0/24 and fd03::/64 on
    /// WireGuard; nothing else has a route.
    fn reach(to: IpAddr) -> Option<Hop> {
        let hop = |gateway: Option<&str>| {
            let gateway = gateway.map(ip);
            let (source, is_spread) = (None, false);
            Some(Hop { ifindex: 2, gateway, source, mtu: 1500, is_spread, has_neighbours: true })
        };
        match to.to_string() {
            to if to.starts_with("10.0.0.") || to.starts_with("fd00:") => hop(None),
            to if to.starts_with("10.0.1.") => hop(Some("10.0.0.254")),
            // Through a next hop of the other family.
            to if to.starts_with("10.0.2.") => hop(Some(&to)),
            to if to.starts_with("10.0.3.") || to.starts_with("fd03:") => {
                hop(None).map(|hop| Hop { has_neighbours: false, ..hop })
            }
            _ => None,
        }
    }

    fn way(addresses: &[&str], is_ipv4: bool, mode: Mode) -> Result<Way, NoWay> {
        Way::to(&node(addresses), is_ipv4, mode, &Own::default(), reach)
    }

    fn direct(gateway: &str) -> Result<Way, NoWay> {
        Ok(Way::Direct { gateway: ip(gateway), ifindex: 2, mtu: 1500 })
    }

    fn vxlan(remote: &str, mtu: u32) -> Result<Way, NoWay> {
        let next = match remote {
            to if to.starts_with("10.0.1.") => Some(ip("10.0.0.254")),
            // No host of that network would answer for the node's own address.
            to if to.starts_with("10.0.2.") => None,
            to => Some(ip(to)),
        };
        let (remote, source, is_usual_source) = (ip(remote), None, false);
        Ok(Way::Vxlan { remote, source, is_usual_source, ifindex: 2, next, mtu })
    }

    #[test]
    fn auto_goes_directly_on_the_same_network_and_else_by_vxlan_for_each_family() {
        assert_eq!(way(&["10.0.0.2"], true, Mode::Auto), direct("10.0.0.2"));
        assert_eq!(way(&["10.0.1.2"], true, Mode::Auto), vxlan("10.0.1.2", 1450));
        assert_eq!(way(&["10.0.0.2"], false, Mode::Auto), vxlan("10.0.0.2", 1450), "IPv6 over IPv4");
        assert_eq!(way(&["10.0.1.2", "fd00::2"], false, Mode::Auto), direct("fd00::2"));
        assert_eq!(way(&["fd00::2"], true, Mode::Auto), vxlan("fd00::2", 1430), "IPv4 over IPv6");
    }

    #[test]
    fn direct_follows_the_way_to_the_nodes_address_and_vxlan_never_does() {
        assert_eq!(way(&["10.0.0.2"], true, Mode::Direct), direct("10.0.0.2"));
        assert_eq!(way(&["10.0.1.2"], true, Mode::Direct), direct("10.0.0.254"));
        assert_eq!(way(&["10.0.1.2"], false, Mode::Direct), Err(NoWay::OtherFamily("IPv6")));
        assert_eq!(way(&["10.0.0.2"], true, Mode::Vxlan), vxlan("10.0.0.2", 1450));
        assert_eq!(way(&["10.0.2.2"], true, Mode::Direct), Err(NoWay::ForeignNextHop(ip("10.0.2.2"))));
        assert_eq!(way(&["10.0.2.2"], true, Mode::Auto), vxlan("10.0.2.2", 1450));
    }

    #[test]
    fn auto_goes_by_vxlan_over_a_link_without_neighbours_and_direct_never_does() {
        assert_eq!(way(&["10.0.3.2"], true, Mode::Auto), vxlan("10.0.3.2", 1450));
        assert_eq!(way(&["10.0.3.2"], false, Mode::Auto), vxlan("10.0.3.2", 1450));
        assert_eq!(way(&["fd03::2"], false, Mode::Auto), vxlan("fd03::2", 1430));
        assert_eq!(way(&["10.0.3.2", "fd00::2"], false, Mode::Auto), direct("fd00::2"));
        assert_eq!(way(&["10.0.3.2"], true, Mode::Direct), direct("10.0.3.2"));
    }

    #[test]
    fn an_address_without_a_route_is_passed_over_and_named_if_it_is_the_last() {
        assert_eq!(way(&["192.0.2.1", "10.0.1.2"], true, Mode::Auto), vxlan("10.0.1.2", 1450));
        assert_eq!(way(&["192.0.2.1"], true, Mode::Auto), Err(NoWay::Unreachable(ip("192.0.2.1"))));
        assert_eq!(way(&["192.0.2.1"], true, Mode::Direct), Err(NoWay::Unreachable(ip("192.0.2.1"))));
        assert_eq!(way(&[], true, Mode::Auto), Err(NoWay::NoAddress));
    }

    #[test]
    fn the_first_address_of_the_family_that_has_a_route_is_taken() {
        assert_eq!(way(&["192.0.2.1", "10.0.1.2", "10.0.0.2"], true, Mode::Direct), direct("10.0.0.254"));
        for mode in [Mode::Auto, Mode::Direct] {
            assert_eq!(way(&["192.0.2.1", "fd00::2", "10.0.0.2"], true, mode), direct("10.0.0.2"));
        }
        let unreachable = Err(NoWay::Unreachable(ip("192.0.2.1")));
        assert_eq!(way(&["fd00::2", "192.0.2.1", "192.0.2.2"], true, Mode::Direct), unreachable);
    }

    #[test]
    fn vxlan_takes_a_family_in_which_receivers_accept_this_node() {
        // Addresses of the Node object, and of interfaces.
        let way = |stated: &[&str], interfaces: &[&str], remotes: &[&str]| {
            let (this, interfaces) = (node(stated), interfaces.iter().map(|it| ip(it)).collect());
            let own = Own::new(Some(&this), &interfaces);
            let way = Way::to(&node(remotes), true, Mode::Vxlan, &own, reach);
            way.map(|it| if let Way::Vxlan { remote, .. } = it { remote.to_string() } else { panic!("{it}") })
        };
        let (v4, v6, both) = (["10.0.0.1"], ["fd00::1"], ["10.0.0.1", "fd00::1"]);
        let remotes = ["10.0.0.2", "fd00::2"];
        let to = |remote: &str| Ok(remote.to_owned());
        assert_eq!(way(&both, &both, &remotes), to("10.0.0.2"));
        assert_eq!(way(&v6, &both, &remotes), to("fd00::2"), "the Node object has no IPv4");
        assert_eq!(way(&both, &v6, &remotes), to("fd00::2"), "no interface has the IPv4");
        assert_eq!(way(&v4, &[], &remotes), Err(NoWay::SourceElsewhere), "the network translates");
        assert_eq!(way(&both, &v6, &["10.0.0.2"]), Err(NoWay::SourceElsewhere), "the family of the receiver");
        assert_eq!(way(&v6, &both, &v4), Err(NoWay::NoSource("IPv4")));
        assert_eq!(way(&[], &both, &remotes), to("10.0.0.2"), "the Node object has none yet");
        assert_eq!(way(&v6, &both, &["192.0.2.1"]), Err(NoWay::Unreachable(ip("192.0.2.1"))));
        let unknown = Own::new(None, &both.map(ip).into());
        let way = Way::to(&node(&remotes), true, Mode::Vxlan, &unknown, reach);
        assert_eq!(way, vxlan("10.0.0.2", 1450), "this node's object is not known");
    }
}
