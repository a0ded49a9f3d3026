//! The rules by which pods' packets to other nodes' addresses take the tunnel. The node's own packets to
//! those addresses, which carry the tunnel's, do not.

use std::{collections::BTreeSet, net::IpAddr};

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

/// Before the main table (32766), behind the local one (0).
const PRIORITY: u32 = 7070;

/// The sources that look into the agent's table.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn list(host: &mut Socket) -> Result<BTreeSet<IpNet>, NetlinkError> {
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
            RouteNetlinkMessage::NewRule(rule) => source(&rule),
            _ => None,
        }));
    }
    Ok(found)
}

/// Makes the rules those of `sources`. Returns whether anything was changed.
///
/// # Errors
/// The first request that the kernel refuses, after all others were tried.
pub fn keep(host: &mut Socket, sources: &BTreeSet<IpNet>) -> Result<bool, NetlinkError> {
    let present = list(host)?;
    let mut done = Ok(());
    for source in sources.difference(&present) {
        let what = format!("add the routing rule of {source}");
        let request = Request::create(what, RouteNetlinkMessage::NewRule(message(*source)));
        done = done.and(tolerate(host.batch(vec![request]), Errno::EEXIST));
    }
    for source in present.difference(sources) {
        let what = format!("delete the routing rule of {source}");
        let request = Request::change(what, RouteNetlinkMessage::DelRule(message(*source)));
        done = done.and(tolerate(host.batch(vec![request]), Errno::ENOENT));
    }
    done.map(|()| present != *sources)
}

fn tolerate<T>(result: Result<T, NetlinkError>, errno: Errno) -> Result<(), NetlinkError> {
    match result {
        Err(error) if error.is(errno) => Ok(()),
        result => result.map(drop),
    }
}

fn message(source: IpNet) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = match source {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    message.header.src_len = source.prefix_len();
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Source(source.network()),
        RuleAttribute::Priority(PRIORITY),
        RuleAttribute::Table(TABLE_OF_PODS),
        RuleAttribute::Protocol(RouteProtocol::Other(ROUTE_PROTOCOL)),
    ];
    message
}

/// The source of a rule of the agent.
fn source(rule: &RuleMessage) -> Option<IpNet> {
    let (mut source, mut table, mut is_ours) = (None::<IpAddr>, None, false);
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::Source(it) => source = Some(*it),
            RuleAttribute::Table(it) => table = Some(*it),
            RuleAttribute::Protocol(it) => is_ours = *it == RouteProtocol::Other(ROUTE_PROTOCOL),
            _ => {}
        }
    }
    let source = IpNet::new(source?, rule.header.src_len).ok()?;
    (is_ours && table == Some(TABLE_OF_PODS)).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_of_the_agent_is_recognized_and_no_other() {
        for text in ["10.1.0.0/24", "fd01::/64"] {
            let net: IpNet = text.parse().unwrap();
            assert_eq!(source(&message(net)), Some(net));
            let mut foreign = message(net);
            foreign.attributes.pop();
            assert_eq!(source(&foreign), None, "of another program");
            let mut other_table = message(net);
            other_table.attributes.retain(|it| !matches!(it, RuleAttribute::Table(_)));
            assert_eq!(source(&other_table), None);
        }
    }
}
