//! The rules by which pods' packets to other nodes' addresses take the tunnel. The node's own packets to
//! those addresses, which carry the tunnel's, do not.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::RouteProtocol,
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use super::{
    super::{
        host_route::ROUTE_PROTOCOL,
        netlink::{NetlinkError, Request, Socket},
    },
    route::TABLE_OF_PODS,
};

/// A rule of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Addresses of pods, whose packets look into the agent's table.
    source: IpNet,
    priority: u32,
}

/// Behind the local table (0), and before what others have: Tailscale's rule for all packets (5270) leads to
/// tables with routes to single nodes, as the agent's table does. Earlier agents had 7070.
const PRIORITY: u32 = 70;

// === impl Rule ===

impl Rule {
    fn of(source: IpNet) -> Self {
        Self { source, priority: PRIORITY }
    }

    fn message(self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = match self.source {
            IpNet::V4(_) => AddressFamily::Inet,
            IpNet::V6(_) => AddressFamily::Inet6,
        };
        message.header.src_len = self.source.prefix_len();
        message.header.action = RuleAction::ToTable;
        message.attributes = vec![
            RuleAttribute::Source(self.source.network()),
            RuleAttribute::Priority(self.priority),
            RuleAttribute::Table(TABLE_OF_PODS),
            RuleAttribute::Protocol(RouteProtocol::Other(ROUTE_PROTOCOL)),
        ];
        message
    }

    /// `None` if the rule is another program's.
    fn from_message(rule: &RuleMessage) -> Option<Self> {
        let (mut source, mut table, mut is_ours, mut priority) = (None::<IpAddr>, None, false, 0);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Source(it) => source = Some(*it),
                RuleAttribute::Table(it) => table = Some(*it),
                RuleAttribute::Protocol(it) => is_ours = *it == RouteProtocol::Other(ROUTE_PROTOCOL),
                RuleAttribute::Priority(it) => priority = *it,
                _ => {}
            }
        }
        let source = IpNet::new(source?, rule.header.src_len).ok()?;
        (is_ours && table == Some(TABLE_OF_PODS)).then_some(Self { source, priority })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with the priority {}", self.source, self.priority)
    }
}

/// The agent's rules, of earlier agents too.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn list(host: &mut Socket) -> Result<BTreeSet<Rule>, NetlinkError> {
    let mut found = BTreeSet::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RuleMessage::default();
        message.header.family = family;
        let rules = match host.dump("list the routing rules", RouteNetlinkMessage::GetRule(message)) {
            // A kernel without policy routing, or without IPv6.
            Err(error) if error.is(Errno::EOPNOTSUPP) || error.is(Errno::EAFNOSUPPORT) => continue,
            rules => rules?,
        };
        found.extend(rules.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRule(rule) => Rule::from_message(&rule),
            _ => None,
        }));
    }
    Ok(found)
}

/// Makes the rules those of `sources`, new ones before old ones go. Returns whether anything was changed.
///
/// # Errors
/// The first request that the kernel refuses, after all others were tried.
pub fn keep(host: &mut Socket, sources: &BTreeSet<IpNet>) -> Result<bool, NetlinkError> {
    let wanted = wanted(sources);
    let present = list(host)?;
    let mut done = Ok(());
    for rule in wanted.difference(&present) {
        let what = format!("add the routing rule of {rule}");
        let request = Request::create(what, RouteNetlinkMessage::NewRule(rule.message()));
        done = done.and(tolerate(host.batch(vec![request]), Errno::EEXIST));
    }
    for rule in present.difference(&wanted) {
        let what = format!("delete the routing rule of {rule}");
        let request = Request::change(what, RouteNetlinkMessage::DelRule(rule.message()));
        done = done.and(tolerate(host.batch(vec![request]), Errno::ENOENT));
    }
    done.map(|()| present != wanted)
}

/// The rules by which packets of `sources` take the tunnel.
pub fn wanted(sources: &BTreeSet<IpNet>) -> BTreeSet<Rule> {
    sources.iter().copied().map(Rule::of).collect()
}

fn tolerate<T>(result: Result<T, NetlinkError>, errno: Errno) -> Result<(), NetlinkError> {
    match result {
        Err(error) if error.is(errno) => Ok(()),
        result => result.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_of_an_agent_is_recognized_with_its_priority_and_no_other() {
        for text in ["10.1.0.0/24", "fd01::/64"] {
            let net: IpNet = text.parse().unwrap();
            let rule = Rule::of(net);
            assert_eq!(Rule::from_message(&rule.message()), Some(rule));
            let earlier = Rule { priority: 7070, ..rule };
            assert_eq!(Rule::from_message(&earlier.message()), Some(earlier));
            let mut foreign = rule.message();
            foreign.attributes.pop();
            assert_eq!(Rule::from_message(&foreign), None, "of another program");
            let mut other_table = rule.message();
            other_table.attributes.retain(|it| !matches!(it, RuleAttribute::Table(_)));
            assert_eq!(Rule::from_message(&other_table), None);
        }
    }
}
