//! Routing rules of other programs that concern packets from this node's pods. Only the stack follows these,
//! and routes of other programs ([`super::others`]).

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::RouteProtocol,
    rule::{RuleAttribute, RuleMessage},
};

use super::super::{
    host_route::ROUTE_PROTOCOL,
    netlink::{NetlinkError, Socket},
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Priorities of the first rules that may concern pods' packets, of IPv4 and of IPv6.
    pub rules: [Option<u32>; 2],
    /// Ranges of other nodes, each with a route to a part of it, or to all of it.
    pub routes: BTreeMap<IpNet, IpNet>,
}

/// The addresses that pods of this node may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sources {
    Of(Vec<IpNet>),
    /// Any but the node's own.
    AnyBut(Vec<IpAddr>),
}

/// The priority of the kernel's rule for the main table, which has the agent's routes.
const MAIN: u32 = 32766;

/// The priority of the first rule of each family that may concern packets of this node's pods.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn rules(host: &mut Socket, sources: &Sources) -> Result<[Option<u32>; 2], NetlinkError> {
    let mut found = [None; 2];
    for (family, first) in [AddressFamily::Inet, AddressFamily::Inet6].into_iter().zip(&mut found) {
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
    }
    Ok(found)
}

// === impl Sources ===

impl Sources {
    fn meet(&self, net: IpNet) -> bool {
        match self {
            Self::Of(nets) => nets.iter().any(|it| it.contains(&net) || net.contains(it)),
            Self::AnyBut(own) => !own.iter().any(|it| IpNet::from(*it) == net),
        }
    }
}

/// The priority of a rule of another program that comes before the main table, unless its source is no pod's.
fn concerns(rule: &RuleMessage, sources: &Sources) -> Option<u32> {
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
    (priority < MAIN && source.is_none_or(|it| sources.meet(it))).then_some(priority)
}

#[cfg(test)]
mod tests {
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
        let sources = Sources::Of(vec![net("10.1.0.0/24")]);
        let of = |source, priority, protocol| concerns(&rule(source, priority, protocol), &sources);
        let boot = RouteProtocol::Boot;
        assert_eq!(of(None, 5270, boot), Some(5270));
        assert_eq!(of(Some("10.0.0.0/8"), 100, boot), Some(100));
        assert_eq!(of(Some("10.1.0.7/32"), 100, boot), Some(100));
        assert_eq!(of(Some("10.2.0.0/24"), 100, boot), None);
        assert_eq!(of(None, 32800, boot), None);
        assert_eq!(of(None, 1000, RouteProtocol::Kernel), None);
        assert_eq!(of(None, 70, RouteProtocol::Other(ROUTE_PROTOCOL)), None);
    }

    #[test]
    fn where_pods_may_have_any_address_only_a_rule_of_the_nodes_own_does_not_count() {
        let sources = Sources::AnyBut(vec!["192.0.2.1".parse().unwrap()]);
        let of = |source| concerns(&rule(source, 100, RouteProtocol::Boot), &sources);
        assert_eq!(of(Some("192.0.2.1/32")), None);
        assert_eq!(of(Some("192.0.2.0/24")), Some(100));
        assert_eq!(of(Some("10.9.0.7/32")), Some(100));
        assert_eq!(of(None), Some(100));
    }
}
