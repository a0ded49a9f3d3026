//! Routing rules and routes of other programs that concern packets from this node's pods to other nodes'
//! ranges. Only the stack follows these.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol},
    rule::{RuleAttribute, RuleMessage},
};

use super::super::{
    host_route::ROUTE_PROTOCOL,
    netlink::{NetlinkError, Socket},
    parse,
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Priorities of the first rules that may concern pods' packets, of IPv4 and of IPv6.
    pub rules: [Option<u32>; 2],
    /// Ranges of other nodes, each with a route to a part of it, or to all of it.
    pub routes: BTreeMap<IpNet, IpNet>,
}

/// The priority of the kernel's rule for the main table, which has the agent's routes.
const MAIN: u32 = 32766;
/// `linux/rtnetlink.h`: the node's own addresses.
const RT_TABLE_LOCAL: u8 = 255;

/// `sources` are this node's ranges, `ranges` those of the other nodes.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn find(host: &mut Socket, sources: &[IpNet], ranges: &BTreeSet<IpNet>) -> Result<Foreign, NetlinkError> {
    let mut found = Foreign::default();
    for (family, first) in [AddressFamily::Inet, AddressFamily::Inet6].into_iter().zip(&mut found.rules) {
        let mut message = RuleMessage::default();
        message.header.family = family;
        let rules = match host.dump("list the routing rules", RouteNetlinkMessage::GetRule(message)) {
            // A kernel without policy routing, or without IPv6.
            Err(error) if error.is(Errno::EOPNOTSUPP) || error.is(Errno::EAFNOSUPPORT) => Vec::new(),
            rules => rules?,
        };
        let priorities = rules.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRule(rule) => concerns(&rule, sources),
            _ => None,
        });
        *first = priorities.min();

        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let routes = host.dump("list the routes", RouteNetlinkMessage::GetRoute(message))?;
        found.routes.extend(routes.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => inside(&route, ranges),
            _ => None,
        }));
    }
    Ok(found)
}

/// The priority of a rule of another program that comes before the main table, unless its source is none of
/// `sources`.
fn concerns(rule: &RuleMessage, sources: &[IpNet]) -> Option<u32> {
    let (mut priority, mut source) = (0, None);
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::Priority(it) => priority = *it,
            RuleAttribute::Source(it) => source = IpNet::new(*it, rule.header.src_len).ok(),
            RuleAttribute::Protocol(RouteProtocol::Kernel) => return None,
            RuleAttribute::Protocol(it) if *it == RouteProtocol::Other(ROUTE_PROTOCOL) => return None,
            _ => {}
        }
    }
    let meets = |source: IpNet| sources.iter().any(|it| it.contains(&source) || source.contains(it));
    (priority < MAIN && source.is_none_or(meets)).then_some(priority)
}

/// The range that a route of another program leads into, and the route's destination.
fn inside(route: &RouteMessage, ranges: &BTreeSet<IpNet>) -> Option<(IpNet, IpNet)> {
    if route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL) {
        return None;
    }
    let table = route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    let table = table.unwrap_or_else(|| route.header.table.into());
    if ![RouteHeader::RT_TABLE_MAIN, RT_TABLE_LOCAL].map(u32::from).contains(&table) {
        return None;
    }
    let to = parse::destination(route)?;
    let mut around = (0..=to.prefix_len()).filter_map(|len| Some(IpNet::new(to.addr(), len).ok()?.trunc()));
    around.find(|it| ranges.contains(it)).map(|range| (range, to))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rtnetlink::RouteMessageBuilder;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn rule(source: Option<&str>, priority: u32, protocol: RouteProtocol) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.attributes = vec![RuleAttribute::Priority(priority), RuleAttribute::Protocol(protocol)];
        if let Some(source) = source.map(net) {
            message.header.src_len = source.prefix_len();
            message.attributes.push(RuleAttribute::Source(source.addr()));
        }
        message
    }

    #[test]
    fn a_rule_of_another_program_counts_unless_it_is_behind_the_main_table_or_about_other_sources() {
        let of =
            |source, priority, protocol| concerns(&rule(source, priority, protocol), &[net("10.1.0.0/24")]);
        let boot = RouteProtocol::Boot;
        assert_eq!(of(None, 5270, boot), Some(5270));
        assert_eq!(of(Some("10.0.0.0/8"), 100, boot), Some(100));
        assert_eq!(of(Some("10.1.0.7/32"), 100, boot), Some(100));
        assert_eq!(of(Some("10.2.0.0/24"), 100, boot), None);
        assert_eq!(of(None, 32800, boot), None);
        assert_eq!(of(None, 1000, RouteProtocol::Kernel), None);
        assert_eq!(of(None, 7070, RouteProtocol::Other(ROUTE_PROTOCOL)), None);
    }

    #[test]
    fn a_route_of_another_program_counts_if_it_leads_into_a_range() {
        let of = |to: &str, table: u8, protocol| {
            let IpNet::V4(to) = net(to) else { panic!("{to}") };
            let mut message = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(to.network(), to.prefix_len())
                .protocol(protocol)
                .build();
            message.header.table = table;
            inside(&message, &BTreeSet::from([net("10.2.0.0/24"), net("fd00::/64")]))
        };
        let (main, bird) = (RouteHeader::RT_TABLE_MAIN, RouteProtocol::Bird);
        let range = net("10.2.0.0/24");
        assert_eq!(of("10.2.0.5/32", main, bird), Some((range, net("10.2.0.5/32"))));
        assert_eq!(of("10.2.0.0/24", main, bird), Some((range, range)));
        assert_eq!(
            of("10.2.0.0/32", RT_TABLE_LOCAL, RouteProtocol::Kernel),
            Some((range, net("10.2.0.0/32")))
        );
        for (to, table, protocol) in [
            ("10.0.0.0/8", main, bird),
            ("10.3.0.0/24", main, bird),
            ("10.2.0.5/32", 100, bird),
            ("10.2.0.0/24", main, RouteProtocol::Other(ROUTE_PROTOCOL)),
        ] {
            assert_eq!(of(to, table, protocol), None, "{to}");
        }
    }
}
