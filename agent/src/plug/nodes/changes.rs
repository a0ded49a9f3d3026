//! Notifications about what decides the way to other nodes: addresses, routes of others, rules, the
//! interfaces that lead to nodes, the tunnel's filter of networks, and IPsec's policies.

use std::{
    collections::{BTreeSet, HashSet},
    io,
    net::IpAddr,
};

use super::{
    super::{
        host_route::ROUTE_PROTOCOL,
        message::{find, messages},
        monitor::{
            Monitor, RTM_DELADDR, RTM_DELLINK, RTM_DELQDISC, RTM_DELROUTE, RTM_DELTFILTER, RTM_NEWADDR,
            RTM_NEWLINK, RTM_NEWROUTE, RTM_NEWTFILTER,
        },
        netconf::{self, RTM_NEWNETCONF},
        route_scan::{RT_TABLE_LOCAL, RT_TABLE_MAIN, destination},
    },
    areas::Areas,
    vni, xfrm,
};

/// A subscription in the network namespace of the thread that opened it.
pub struct Changes {
    routes: Monitor,
    /// `None` on a kernel without IPsec, and if the kernel refuses.
    policies: Option<Monitor>,
}

/// What notifications can concern.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Those that lead to nodes.
    pub interfaces: HashSet<u32>,
    /// Of other nodes.
    pub addresses: BTreeSet<IpAddr>,
    /// Where routes of other programs are known.
    pub areas: Areas,
}

/// What a notification is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Concern {
    Nothing,
    /// The ways to other nodes.
    Ways,
    /// The same, and routes of other programs that a pass need not read again otherwise
    /// ([`super::others`]).
    OtherRoutes,
}

/// `RTMGRP_LINK`, `RTMGRP_TC`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV4_RULE`,
/// `RTMGRP_IPV6_IFADDR`, `RTMGRP_IPV6_ROUTE` and `RTNLGRP_IPV6_RULE` in `linux/rtnetlink.h`, and IPv4
/// settings.
const GROUPS: u32 = 0x1 | 0x8 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | netconf::GROUP_IPV4;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTN_UNICAST: u8 = 1;
/// `RTN_BLACKHOLE`, `RTN_UNREACHABLE`, `RTN_PROHIBIT` and `RTN_THROW` in `linux/rtnetlink.h`.
const REFUSALS: [u8; 4] = [6, 7, 8, 9];
/// `NETCONFA_IFINDEX` in `linux/netconf.h`.
const NETCONF_IFINDEX: u16 = 1;

// === impl Changes ===

impl Changes {
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn open() -> io::Result<Self> {
        let policies = xfrm::changes().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot follow the host's policies of IPsec; each pass asks for them");
            None
        });
        let routes = Monitor::open(GROUPS)?;
        // A kernel without the group has no such filter.
        if let Err(error) = routes.join(vni::GROUP) {
            tracing::debug!(%error, "cannot follow the filter of the tunnel device");
        }
        Ok(Self { routes, policies })
    }

    /// Waits for the next notification, of any kind, and leaves it to [`Self::read`]. Cancel safe.
    ///
    /// # Errors
    /// If the runtime cannot poll the socket.
    pub async fn arrival(&self) -> io::Result<()> {
        match &self.policies {
            Some(policies) => tokio::select! {
                arrived = self.routes.arrival() => arrived,
                arrived = policies.arrival() => arrived,
            },
            None => self.routes.arrival().await,
        }
    }

    /// Reads the notifications that have arrived. Returns the most that any concerns.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn read(&mut self, scope: &Scope) -> io::Result<Concern> {
        let mut concern = Concern::Nothing;
        self.routes.read_datagrams(|datagram| {
            // Without a datagram, notifications were lost.
            let found = datagram.map_or(Some(Concern::OtherRoutes), |it| scope.concern(it));
            concern = concern.max(found.unwrap_or(Concern::Nothing));
        })?;
        if let Some(policies) = &mut self.policies {
            let read = policies.read_datagrams(|_| concern = concern.max(Concern::Ways));
            if let Err(error) = read {
                tracing::warn!(%error, "cannot follow the host's policies of IPsec; each pass asks for them");
                (self.policies, concern) = (None, concern.max(Concern::Ways));
            }
        }
        Ok(concern)
    }
}

// === impl Scope ===

impl Scope {
    /// Every plug causes a dozen notifications, and a routing daemon any number; few concern anything here.
    fn concern(&self, datagram: &[u8]) -> Option<Concern> {
        let message = messages(datagram).next()?;
        let body = message.body();
        // `struct ifinfomsg`, `tcmsg` and `tunnel_msg` have the interface's index at the same offset.
        let index = || Some(u32::from_ne_bytes(*body.get(4..)?.first_chunk::<4>()?));
        let if_of =
            |index, concern| if self.interfaces.contains(&index) { concern } else { Concern::Nothing };
        Some(match message.kind {
            // IPv4 routes go with their interface, and with an address, without a notification.
            RTM_NEWLINK | RTM_DELLINK => if_of(index()?, Concern::OtherRoutes),
            RTM_DELADDR => Concern::OtherRoutes,
            RTM_DELQDISC | RTM_NEWTFILTER | RTM_DELTFILTER | vni::NEW_TUNNEL | vni::DELETE_TUNNEL => {
                if_of(index()?, Concern::Ways)
            }
            RTM_NEWADDR | RTM_NEWRULE | RTM_DELRULE => Concern::Ways,
            RTM_NEWROUTE | RTM_DELROUTE => self.concern_of_route(body)?,
            RTM_NEWNETCONF => {
                // `struct netconfmsg`: a family, padded.
                let index = find(body.get(4..)?, &[NETCONF_IFINDEX])?;
                let index = i32::from_ne_bytes(index.try_into().ok()?);
                // The node-wide setting counts for all interfaces.
                if index == netconf::ALL {
                    Concern::Ways
                } else {
                    if_of(index.cast_unsigned(), Concern::Ways)
                }
            }
            _ => Concern::Nothing,
        })
    }

    fn concern_of_route(&self, body: &[u8]) -> Option<Concern> {
        // `struct rtmsg`: family, lengths of both prefixes, TOS, table, protocol, scope, type, …
        let [_, _, _, _, table, protocol, _, kind] = *body.first_chunk::<8>()?;
        let to = destination(body)?;
        if protocol == ROUTE_PROTOCOL {
            // To single addresses, the agent has routes of pods and of other nodes.
            let is_to_node = to.prefix_len() < to.max_prefix_len() || self.addresses.contains(&to.addr());
            let is_relevant = kind == RTN_UNICAST && is_to_node;
            return Some(if is_relevant { Concern::Ways } else { Concern::Nothing });
        }
        let is_known = table == RT_TABLE_MAIN || table == RT_TABLE_LOCAL;
        if is_known && (to.prefix_len() == 0 || self.areas.contain(&to)) {
            return Some(Concern::OtherRoutes);
        }
        let leads_to_node = || self.addresses.range(to.network()..=to.broadcast()).next().is_some();
        let is_route = (kind == RTN_UNICAST || REFUSALS.contains(&kind)) && table != RT_TABLE_LOCAL;
        Some(if is_route && leads_to_node() { Concern::Ways } else { Concern::Nothing })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::message::encode, *};

    fn concern(kind: u16, body: &[u8]) -> Option<Concern> {
        let scope = Scope {
            interfaces: HashSet::from([7]),
            addresses: BTreeSet::from(["192.0.2.2".parse().unwrap()]),
            areas: Areas::around(&["10.244.1.0/24".parse().unwrap()]),
        };
        scope.concern(&encode((kind, 0, 0), body))
    }

    #[test]
    fn a_link_is_relevant_if_packets_to_nodes_leave_by_it() {
        let of = |index: u32| [&[0; 4][..], &index.to_ne_bytes(), &[0; 8]].concat();
        assert_eq!(concern(RTM_NEWLINK, &of(7)), Some(Concern::OtherRoutes));
        assert_eq!(concern(RTM_DELTFILTER, &of(7)), Some(Concern::Ways));
        assert_eq!(concern(vni::DELETE_TUNNEL, &of(7)), Some(Concern::Ways));
        assert_eq!(concern(RTM_NEWLINK, &of(8)), Some(Concern::Nothing), "a pod's");
        assert_eq!(concern(RTM_NEWLINK, &[]), None);
    }

    #[test]
    fn a_route_is_relevant_if_it_leads_to_a_node_or_into_an_area_unless_a_plug_or_an_address_caused_it() {
        use Concern::{Nothing, OtherRoutes, Ways};
        let of = |to: &str, table, protocol, kind| {
            let (address, length) = to.split_once('/').unwrap();
            let address: std::net::Ipv4Addr = address.parse().unwrap();
            let header = [2, length.parse().unwrap(), 0, 0, table, protocol, 0, kind, 0, 0, 0, 0];
            let body = [&header[..], &[8, 0, 1, 0], &address.octets()].concat();
            let found = concern(RTM_NEWROUTE, &body);
            assert_eq!(concern(RTM_DELROUTE, &body), found);
            found
        };
        for (to, table, protocol, kind, expected) in [
            ("192.0.2.0/24", 254, 4, 1, Ways),
            ("192.0.2.2/32", 254, 4, 6, Ways),
            ("192.0.2.2/32", 100, 4, 1, Ways),
            ("198.51.100.0/24", 254, 4, 1, Nothing),
            ("192.0.2.0/31", 254, 4, 1, Nothing),
            ("10.244.9.0/24", 254, 4, 1, OtherRoutes),
            ("10.244.1.7/32", 255, 2, 2, OtherRoutes),
            ("10.244.9.0/24", 100, 4, 1, Nothing),
            ("0.0.0.0/0", 254, 4, 1, OtherRoutes),
            ("10.244.9.0/24", 254, ROUTE_PROTOCOL, 1, Ways),
            ("192.0.2.2/32", 252, ROUTE_PROTOCOL, 1, Ways),
            ("10.244.1.7/32", 254, ROUTE_PROTOCOL, 1, Nothing),
            ("10.244.1.0/24", 254, ROUTE_PROTOCOL, 7, Nothing),
            ("192.0.2.2/32", 255, 2, 2, Nothing),
            ("192.0.2.0/24", 254, 2, 5, Nothing),
        ] {
            assert_eq!(of(to, table, protocol, kind), Some(expected), "{to} {table} {protocol} {kind}");
        }
    }

    #[test]
    fn a_setting_is_relevant_on_an_interface_that_leads_to_nodes_and_node_wide() {
        let of = |index: i32| [&[2, 0, 0, 0, 8, 0, 1, 0][..], &index.to_ne_bytes()].concat();
        assert_eq!(concern(RTM_NEWNETCONF, &of(7)), Some(Concern::Ways));
        assert_eq!(concern(RTM_NEWNETCONF, &of(8)), Some(Concern::Nothing));
        assert_eq!(concern(RTM_NEWNETCONF, &of(-1)), Some(Concern::Ways), "the node-wide one");
        assert_eq!(concern(RTM_NEWNETCONF, &of(-2)), Some(Concern::Nothing), "that of new interfaces");
    }
}
