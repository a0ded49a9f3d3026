//! Whether pods' packets can leave the node: whether the way out that it had is there still.
//!
//! A node need not have one: without a default route, pods reach what the node's other routes lead to. But one that had
//! one, and has it no more, has lost the network, and all its pods with it.

use std::collections::HashMap;

use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
};

use super::{
    forwards_ipv4, get_link,
    netlink::{NetlinkError, Socket},
};
use crate::health::Reporter;

/// Tells of the way out, from one look to the next.
pub struct DefaultRoute {
    health: Reporter,
    /// Whether there are pods of IPv4, and of IPv6.
    families: Box<dyn Fn() -> (bool, bool) + Send + Sync>,
    /// Through which interface each family's default route led when there was one last.
    had: [Option<String>; 2],
}

/// The node's interfaces as far as a way out matters, by index.
#[derive(Debug, Default)]
pub(super) struct Links(HashMap<u32, Link>);

#[derive(Debug)]
struct Link {
    name: String,
    mtu: u32,
    /// Why nothing gets through, if so.
    fault: Option<&'static str>,
    forwards_ipv4: bool,
}

// === impl DefaultRoute ===

impl DefaultRoute {
    /// `families` tells whether there are pods of IPv4, and of IPv6: the way out of the others is no matter.
    pub fn new(health: Reporter, families: impl Fn() -> (bool, bool) + Send + Sync + 'static) -> Self {
        Self { health, families: Box::new(families), had: [None, None] }
    }

    /// Takes in how it is now: the interfaces of the default routes of IPv4 and IPv6.
    pub(super) fn look(&mut self, interfaces: &[Vec<u32>; 2], links: &Links) {
        let (v4, v6) = (self.families)();
        match self.judge([v4, v6], interfaces, links) {
            Ok(why) => self.health.healthy(why),
            Err(why) => self.health.unhealthy(why),
        }
    }

    fn judge(
        &mut self,
        matters: [bool; 2],
        interfaces: &[Vec<u32>; 2],
        links: &Links,
    ) -> Result<String, String> {
        let (mut ways, mut faults) = (Vec::new(), Vec::new());
        let families = ["IPv4", "IPv6"].into_iter().zip(matters).zip(interfaces).zip(&mut self.had);
        for (((family, matters), interfaces), had) in families {
            let listed = || interfaces.iter().filter_map(|ifindex| links.0.get(ifindex));
            let is_ipv4 = family == "IPv4";
            let usable = listed().find(|link| link.fault(is_ipv4).is_none());
            if let Some(link) = usable {
                *had = Some(link.name.clone());
            }
            // Other routes of a family may lead on where its best one does not: one that works is enough.
            let fault = match (usable, listed().next(), &*had) {
                (Some(link), ..) => {
                    ways.push(format!("{family} leaves through {}", link.name));
                    None
                }
                // One that has not worked since the start may not be meant to yet.
                (None, _, None) => None,
                (None, Some(link), Some(_)) => {
                    let why = link.fault(is_ipv4).unwrap_or_default();
                    Some(format!("the {family} default route leads through {}, which {why}", link.name))
                }
                (None, None, Some(name)) => {
                    Some(format!("the {family} default route, which led through {name}, is gone"))
                }
            };
            faults.extend(fault.filter(|_| matters));
        }
        if !faults.is_empty() {
            return Err(format!("{}: pods reach nobody beyond this node", faults.join("; ")));
        }
        if ways.is_empty() {
            ways.push(
                "the node has had no default route since the agent started, and may need none".to_owned(),
            );
        }
        Ok(ways.join(", "))
    }
}

// === impl Links ===

impl Links {
    /// Looks at all interfaces.
    ///
    /// # Errors
    /// If the kernel refuses to tell.
    pub(super) fn list(host: &mut Socket) -> Result<Self, NetlinkError> {
        let links = host.dump("list the interfaces", RouteNetlinkMessage::GetLink(get_link()))?;
        let link = |message| {
            let RouteNetlinkMessage::NewLink(link) = message else { return None };
            Some((link.header.index, Link::of(&link)?))
        };
        Ok(Self(links.into_iter().filter_map(link).collect()))
    }

    /// The MTU of an interface, in bytes.
    pub(super) fn mtu(&self, ifindex: u32) -> Option<u32> {
        self.0.get(&ifindex).map(|link| link.mtu)
    }
}

// === impl Link ===

impl Link {
    /// Answers come in by it: where it does not forward them, no pod gets one. IPv6 goes by the node's setting alone.
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
        Some(Self { name: name?, mtu: mtu?, fault, forwards_ipv4: forwards_ipv4(message) })
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
    fn a_node_that_never_had_a_way_out_is_well() {
        let mut default_route = default_route();
        assert!(default_route.judge(BOTH, &[vec![], vec![]], &links(&[(1, UP)])).is_ok());
        let not_yet = links(&[(1, Some("has no carrier"))]);
        assert!(default_route.judge(BOTH, &[vec![1], vec![]], &not_yet).is_ok(), "it did not work yet");
    }

    #[test]
    fn a_way_out_that_was_there_is_missed_until_it_is_back() {
        let mut default_route = default_route();
        let ok = default_route.judge(BOTH, &[vec![1], vec![]], &links(&[(1, UP)]));
        assert_eq!(ok.unwrap(), "IPv4 leaves through up1");
        let down = default_route.judge(BOTH, &[vec![1], vec![]], &links(&[(1, Some("is down"))]));
        assert!(down.unwrap_err().contains("IPv4 default route leads through up1, which is down"));
        let gone = default_route.judge(BOTH, &[vec![], vec![]], &links(&[(1, UP)]));
        assert!(gone.unwrap_err().contains("which led through up1, is gone"));
        let back = default_route.judge(BOTH, &[vec![2], vec![]], &links(&[(1, UP), (2, UP)]));
        assert_eq!(back.unwrap(), "IPv4 leaves through up2");
    }

    #[test]
    fn a_way_out_that_does_not_forward_what_comes_in_is_none_for_ipv4() {
        let (mut default_route, mut links) = (default_route(), links(&[(1, UP)]));
        assert!(default_route.judge(BOTH, &[vec![1], vec![1]], &links).is_ok());
        links.0.get_mut(&1).unwrap().forwards_ipv4 = false;
        let why = default_route.judge(BOTH, &[vec![1], vec![1]], &links).unwrap_err();
        assert!(why.contains("IPv4 default route leads through up1, which does not forward"), "{why}");
        assert!(!why.contains("IPv6"), "{why}");
    }

    #[test]
    fn one_of_several_ways_is_enough() {
        let mut default_route = default_route();
        let links = links(&[(1, Some("has no carrier")), (2, UP)]);
        assert!(default_route.judge(BOTH, &[vec![1, 2], vec![]], &links).is_ok());
        assert!(default_route.judge(BOTH, &[vec![1], vec![]], &links).is_err());
    }

    #[test]
    fn the_way_of_a_family_that_no_pod_has_is_no_matter() {
        let mut default_route = default_route();
        assert!(default_route.judge(BOTH, &[vec![1], vec![1]], &links(&[(1, UP)])).is_ok());
        assert!(default_route.judge([true, false], &[vec![1], vec![]], &links(&[(1, UP)])).is_ok());
        assert!(default_route.judge(BOTH, &[vec![1], vec![]], &links(&[(1, UP)])).is_err());
    }
}
