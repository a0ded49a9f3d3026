//! Notifications about what decides the way to other nodes: addresses, routes of others, rules, the
//! interfaces that lead to nodes, and IPsec's policies.

use std::{collections::HashSet, io};

use rtnetlink::packet_core::NlasIterator;

use super::{
    super::{
        host_route::ROUTE_PROTOCOL,
        monitor::{
            Monitor, RTM_DELADDR, RTM_DELLINK, RTM_DELQDISC, RTM_DELROUTE, RTM_DELTFILTER, RTM_NEWADDR,
            RTM_NEWLINK, RTM_NEWROUTE, RTM_NEWTFILTER,
        },
        netconf::{self, RTM_NEWNETCONF},
    },
    xfrm,
};

/// A subscription in the network namespace of the thread that opened it.
pub struct Changes {
    routes: Monitor,
    /// `None` on a kernel without IPsec, and if the kernel refuses.
    policies: Option<Monitor>,
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
const RT_TABLE_LOCAL: u8 = 255;
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
        Ok(Self { routes: Monitor::open(GROUPS)?, policies })
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

    /// Reads the notifications that have arrived. Returns whether any concerns the way to another node;
    /// `interfaces` lead to nodes.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn read(&mut self, interfaces: &HashSet<u32>) -> io::Result<bool> {
        let mut concerns = false;
        self.routes.read_datagrams(|datagram| {
            concerns |= datagram.is_none_or(|it| is_relevant(it, interfaces).unwrap_or_default());
        })?;
        if let Some(policies) = &mut self.policies {
            let read = policies.read_datagrams(|_| concerns = true);
            if let Err(error) = read {
                tracing::warn!(%error, "cannot follow the host's policies of IPsec; each pass asks for them");
                (self.policies, concerns) = (None, true);
            }
        }
        Ok(concerns)
    }
}

/// Every plug causes a dozen notifications; none of them is relevant.
fn is_relevant(message: &[u8], interfaces: &HashSet<u32>) -> Option<bool> {
    let (header, body) = message.split_first_chunk::<16>()?;
    // `struct nlmsghdr`: length, type, …
    let [_, _, _, _, a, b, ..] = *header;
    let is_of = |index: u32| interfaces.contains(&index);
    Some(match u16::from_ne_bytes([a, b]) {
        // `struct ifinfomsg` and `struct tcmsg` have the interface's index at the same offset.
        RTM_NEWLINK | RTM_DELLINK | RTM_DELQDISC | RTM_NEWTFILTER | RTM_DELTFILTER => {
            is_of(u32::from_ne_bytes(*body.get(4..)?.first_chunk::<4>()?))
        }
        RTM_NEWADDR | RTM_DELADDR | RTM_NEWRULE | RTM_DELRULE => true,
        RTM_NEWROUTE | RTM_DELROUTE => {
            // `struct rtmsg`: family, lengths of both prefixes, TOS, table, protocol, scope, type, …
            let [family, length, _, _, table, protocol, _, kind] = *body.first_chunk::<8>()?;
            let whole = if family == 2 { 32 } else { 128 };
            let is_of_pod = protocol == ROUTE_PROTOCOL && length == whole;
            let is_refusal = REFUSALS.contains(&kind) && protocol != ROUTE_PROTOCOL;
            (kind == RTN_UNICAST && !is_of_pod || is_refusal) && table != RT_TABLE_LOCAL
        }
        RTM_NEWNETCONF => {
            // `struct netconfmsg`: a family, padded.
            let index =
                NlasIterator::new(body.get(4..)?).flatten().find(|it| it.kind() == NETCONF_IFINDEX)?;
            is_of(u32::from_ne_bytes(index.value().try_into().ok()?))
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        [&[0; 4][..], &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    fn relevant(kind: u16, body: &[u8]) -> Option<bool> {
        is_relevant(&message(kind, body), &HashSet::from([7]))
    }

    #[test]
    fn a_link_is_relevant_if_packets_to_nodes_leave_by_it() {
        let of = |index: u32| [&[0; 4][..], &index.to_ne_bytes(), &[0; 8]].concat();
        assert_eq!(relevant(RTM_NEWLINK, &of(7)), Some(true));
        assert_eq!(relevant(RTM_DELTFILTER, &of(7)), Some(true));
        assert_eq!(relevant(RTM_NEWLINK, &of(8)), Some(false), "a pod's");
        assert_eq!(relevant(RTM_NEWLINK, &[]), None);
    }

    #[test]
    fn a_route_is_relevant_unless_a_plug_or_an_address_caused_it() {
        let route = |length, table, protocol, kind| [2, length, 0, 0, table, protocol, 0, kind];
        assert_eq!(relevant(RTM_NEWROUTE, &route(24, 254, 4, 1)), Some(true));
        assert_eq!(relevant(RTM_DELROUTE, &route(24, 254, ROUTE_PROTOCOL, 1)), Some(true), "to a node");
        assert_eq!(relevant(RTM_DELROUTE, &route(32, 254, ROUTE_PROTOCOL, 1)), Some(false), "to a pod");
        assert_eq!(relevant(RTM_NEWROUTE, &route(8, 255, 2, 1)), Some(false));
        assert_eq!(relevant(RTM_NEWROUTE, &route(8, 254, 2, 5)), Some(false), "multicast");
        assert_eq!(relevant(RTM_NEWROUTE, &route(32, 254, 4, 6)), Some(true), "a blackhole");
        assert_eq!(relevant(RTM_NEWROUTE, &route(24, 254, ROUTE_PROTOCOL, 7)), Some(false), "a range");
    }

    #[test]
    fn a_setting_is_relevant_on_an_interface_that_leads_to_nodes() {
        let of = |index: u32| [&[2, 0, 0, 0, 8, 0, 1, 0][..], &index.to_ne_bytes()].concat();
        assert_eq!(relevant(RTM_NEWNETCONF, &of(7)), Some(true));
        assert_eq!(relevant(RTM_NEWNETCONF, &of(8)), Some(false));
    }
}
