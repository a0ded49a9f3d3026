//! The `default-route` health component: whether pods' packets can leave the node.
//!
//! A node does not need a default route: its pods reach the destinations of its other routes. But a node that
//! had a default route and lost it has cut off all its pods.

use std::collections::HashMap;

use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
};

use super::{
    link,
    netlink::{NetlinkError, Socket},
    requests::link_of,
};
use crate::health::Reporter;

/// Reports the state of the default routes, and remembers which families had one.
pub struct DefaultRoute {
    health: Reporter,
    /// Whether the node has IPv4 pods, and IPv6 pods.
    families: Box<dyn Fn() -> (bool, bool) + Send + Sync>,
    /// The interface of the last usable default route of IPv4 and of IPv6.
    last_usable: [Option<String>; 2],
}

/// The node's interfaces, by index.
#[derive(Debug, Default)]
pub(super) struct Links(HashMap<u32, Link>);

#[derive(Debug)]
struct Link {
    name: String,
    mtu: u32,
    /// Why the interface carries no packets, if so.
    fault: Option<&'static str>,
    forwards_ipv4: bool,
}

// === impl DefaultRoute ===

impl DefaultRoute {
    /// `families` returns whether the node has IPv4 pods, and IPv6 pods; the component ignores other
    /// families.
    pub fn new(health: Reporter, families: impl Fn() -> (bool, bool) + Send + Sync + 'static) -> Self {
        Self { health, families: Box::new(families), last_usable: [None, None] }
    }

    /// Reports on the interfaces of the current IPv4 and IPv6 default routes.
    pub(super) fn update(&mut self, interfaces: &[Vec<u32>; 2], links: &Links) {
        let (v4, v6) = (self.families)();
        match self.evaluate([v4, v6], interfaces, links) {
            Ok(why) => self.health.healthy(why),
            Err(why) => self.health.unhealthy(why),
        }
    }

    fn evaluate(
        &mut self,
        has_pods: [bool; 2],
        interfaces: &[Vec<u32>; 2],
        links: &Links,
    ) -> Result<String, String> {
        let (mut routes, mut faults) = (Vec::new(), Vec::new());
        let families = ["IPv4", "IPv6"].into_iter().zip(has_pods).zip(interfaces).zip(&mut self.last_usable);
        for (((family, has_pods), interfaces), last_usable) in families {
            let listed = || interfaces.iter().filter_map(|ifindex| links.0.get(ifindex));
            let is_ipv4 = family == "IPv4";
            let usable = listed().find(|link| link.fault(is_ipv4).is_none());
            if let Some(link) = usable {
                *last_usable = Some(link.name.clone());
            }
            // One usable default route is enough, whatever its priority.
            let fault = match (usable, listed().next(), &*last_usable) {
                (Some(link), ..) => {
                    routes.push(format!("{family} leaves through {}", link.name));
                    None
                }
                // A route that never worked since the start may not be in use yet.
                (None, _, None) => None,
                (None, Some(link), Some(_)) => {
                    let why = link.fault(is_ipv4).unwrap_or_default();
                    Some(format!("the {family} default route leads through {}, which {why}", link.name))
                }
                (None, None, Some(name)) => {
                    Some(format!("the {family} default route through {name} is gone"))
                }
            };
            faults.extend(fault.filter(|_| has_pods));
        }
        if !faults.is_empty() {
            return Err(format!("{}: pods cannot reach destinations beyond this node", faults.join("; ")));
        }
        if routes.is_empty() {
            routes.push("no default route since the agent started; the node may not need one".to_owned());
        }
        Ok(routes.join(", "))
    }
}

// === impl Links ===

impl Links {
    /// # Errors
    /// If the kernel refuses the dump.
    pub(super) fn list(host: &mut Socket) -> Result<Self, NetlinkError> {
        let links = host.dump("list the interfaces", RouteNetlinkMessage::GetLink(link::get()))?;
        let links = links.into_iter().filter_map(link_of);
        Ok(Self(links.filter_map(|it| Some((it.header.index, Link::of(&it)?))).collect()))
    }

    /// Bytes.
    pub(super) fn mtu(&self, ifindex: u32) -> Option<u32> {
        self.0.get(&ifindex).map(|link| link.mtu)
    }
}

// === impl Link ===

impl Link {
    /// Replies arrive through the uplink, so it must forward them. For IPv6 the kernel takes the node-wide
    /// setting.
    fn fault(&self, is_ipv4: bool) -> Option<&'static str> {
        let not_forwarded = (is_ipv4 && !self.forwards_ipv4).then_some("does not forward (net.ipv4.conf)");
        self.fault.or(not_forwarded)
    }

    fn of(message: &LinkMessage) -> Option<Self> {
        let (mut name, mut mtu) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(it) => name = Some(it.clone()),
                LinkAttribute::Mtu(it) => mtu = Some(*it),
                _ => {}
            }
        }
        let flags = message.header.flags;
        let fault = if !flags.contains(LinkFlags::Up) {
            Some("is down")
        } else if !flags.contains(LinkFlags::Running) {
            Some("has no carrier")
        } else {
            None
        };
        Some(Self { name: name?, mtu: mtu?, fault, forwards_ipv4: link::forwards_ipv4(message) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Health;

    const UP: Option<&str> = None;
    const BOTH: [bool; 2] = [true, true];

    fn links(faults: &[(u32, Option<&'static str>)]) -> Links {
        let link = |(index, fault): &(u32, Option<&'static str>)| {
            (*index, Link { name: format!("up{index}"), mtu: 1500, fault: *fault, forwards_ipv4: true })
        };
        Links(faults.iter().map(link).collect())
    }

    fn default_route() -> DefaultRoute {
        DefaultRoute::new(Health::default().component_of_all_pods("default-route", ""), || (true, true))
    }

    #[test]
    fn a_node_without_a_default_route_since_start_is_healthy() {
        let mut default_route = default_route();
        assert!(default_route.evaluate(BOTH, &[vec![], vec![]], &links(&[(1, UP)])).is_ok());
        let not_yet = links(&[(1, Some("has no carrier"))]);
        assert!(default_route.evaluate(BOTH, &[vec![1], vec![]], &not_yet).is_ok(), "the route never worked");
    }

    #[test]
    fn a_lost_default_route_is_unhealthy_until_it_returns() {
        let mut default_route = default_route();
        let ok = default_route.evaluate(BOTH, &[vec![1], vec![]], &links(&[(1, UP)]));
        assert_eq!(ok.unwrap(), "IPv4 leaves through up1");
        let down = default_route.evaluate(BOTH, &[vec![1], vec![]], &links(&[(1, Some("is down"))]));
        assert!(down.unwrap_err().contains("IPv4 default route leads through up1, which is down"));
        let gone = default_route.evaluate(BOTH, &[vec![], vec![]], &links(&[(1, UP)]));
        assert!(gone.unwrap_err().contains("default route through up1 is gone"));
        let back = default_route.evaluate(BOTH, &[vec![2], vec![]], &links(&[(1, UP), (2, UP)]));
        assert_eq!(back.unwrap(), "IPv4 leaves through up2");
    }

    #[test]
    fn an_uplink_that_does_not_forward_ipv4_is_unhealthy() {
        let (mut default_route, mut links) = (default_route(), links(&[(1, UP)]));
        assert!(default_route.evaluate(BOTH, &[vec![1], vec![1]], &links).is_ok());
        links.0.get_mut(&1).unwrap().forwards_ipv4 = false;
        let why = default_route.evaluate(BOTH, &[vec![1], vec![1]], &links).unwrap_err();
        assert!(why.contains("IPv4 default route leads through up1, which does not forward"), "{why}");
        assert!(!why.contains("IPv6"), "{why}");
    }

    #[test]
    fn one_usable_default_route_is_enough() {
        let mut default_route = default_route();
        let links = links(&[(1, Some("has no carrier")), (2, UP)]);
        assert!(default_route.evaluate(BOTH, &[vec![1, 2], vec![]], &links).is_ok());
        assert!(default_route.evaluate(BOTH, &[vec![1], vec![]], &links).is_err());
    }

    #[test]
    fn a_family_without_pods_is_ignored() {
        let mut default_route = default_route();
        assert!(default_route.evaluate(BOTH, &[vec![1], vec![1]], &links(&[(1, UP)])).is_ok());
        assert!(default_route.evaluate([true, false], &[vec![1], vec![]], &links(&[(1, UP)])).is_ok());
        assert!(default_route.evaluate(BOTH, &[vec![1], vec![]], &links(&[(1, UP)])).is_err());
    }
}
