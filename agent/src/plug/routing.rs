//! The host's routes and routing rules in words, for bug reports.

use std::fmt::Write as _;

use nix::errno::Errno;
use rtnetlink::{
    packet_core::Parseable as _,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        route::{RouteAttribute, RouteMessage, RouteType},
        rule::{RuleAttribute, RuleMessage},
    },
};

use super::{
    netlink::{NetlinkError, Socket},
    parse,
};

/// Routes of a family that are shown, and how many further ones there are.
#[derive(Default)]
struct Routes {
    shown: Vec<String>,
    more: usize,
}

/// Routes of a family in an answer: a node may have a million.
const ROUTES: usize = 4096;

/// First the rules, then the routes of all tables, of both families.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn listing() -> Result<String, NetlinkError> {
    let (mut host, mut text) = (Socket::open()?, String::new());
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let name = if family == AddressFamily::Inet { "IPv4" } else { "IPv6" };
        let _ = writeln!(text, "# {name} rules");
        for line in rules(&mut host, family)? {
            let _ = writeln!(text, "{line}");
        }
        let Routes { shown, more } = routes(&mut host, family)?;
        let _ = writeln!(text, "# {name} routes");
        for line in shown {
            let _ = writeln!(text, "{line}");
        }
        if more > 0 {
            let _ = writeln!(text, "... {more} routes more");
        }
    }
    Ok(text)
}

fn rules(host: &mut Socket, family: AddressFamily) -> Result<Vec<String>, NetlinkError> {
    let mut message = RuleMessage::default();
    message.header.family = family;
    let found = match host.dump("list the routing rules", RouteNetlinkMessage::GetRule(message)) {
        // A kernel without policy routing, or without IPv6.
        Err(error) if error.is(Errno::EOPNOTSUPP) || error.is(Errno::EAFNOSUPPORT) => Vec::new(),
        found => found?,
    };
    Ok(found
        .iter()
        .filter_map(|it| if let RouteNetlinkMessage::NewRule(it) = it { Some(rule(it)) } else { None })
        .collect())
}

fn routes(host: &mut Socket, family: AddressFamily) -> Result<Routes, NetlinkError> {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    host.scan("list the routes", &RouteNetlinkMessage::GetRoute(message), |found: &mut Routes, body| {
        if found.shown.len() >= ROUTES {
            found.more += 1;
        } else if let Ok(it) = RouteMessage::parse(body) {
            found.shown.push(route(&it));
        }
    })
}

fn rule(it: &RuleMessage) -> String {
    let (mut priority, mut facts) = (0, String::new());
    for attribute in &it.attributes {
        let _ = match attribute {
            RuleAttribute::Priority(of) => {
                priority = *of;
                Ok(())
            }
            RuleAttribute::Source(of) => write!(facts, " from {of}/{}", it.header.src_len),
            RuleAttribute::Destination(of) => write!(facts, " to {of}/{}", it.header.dst_len),
            RuleAttribute::Table(of) => write!(facts, " table {of}"),
            RuleAttribute::FwMark(of) => write!(facts, " mark {of:#x}"),
            RuleAttribute::Iifname(of) => write!(facts, " iif {of}"),
            RuleAttribute::Oifname(of) => write!(facts, " oif {of}"),
            RuleAttribute::Protocol(of) => write!(facts, " proto {}", u8::from(*of)),
            _ => Ok(()),
        };
    }
    format!("{priority}:{facts} {:?}", it.header.action)
}

fn route(it: &RouteMessage) -> String {
    let to = parse::destination(it).map_or_else(|| "?".to_owned(), |it| it.to_string());
    let kind =
        if it.header.kind == RouteType::Unicast { String::new() } else { format!("{:?} ", it.header.kind) };
    let mut text = format!("{kind}{to}");
    let mut table = u32::from(it.header.table);
    for attribute in &it.attributes {
        let _ = match attribute {
            RouteAttribute::Gateway(of) => match parse::ip(of) {
                Some(of) => write!(text, " via {of}"),
                None => Ok(()),
            },
            RouteAttribute::PrefSource(of) => match parse::ip(of) {
                Some(of) => write!(text, " src {of}"),
                None => Ok(()),
            },
            RouteAttribute::Oif(of) => write!(text, " dev {of}"),
            RouteAttribute::Priority(of) => write!(text, " priority {of}"),
            RouteAttribute::Via(of) => write!(text, " via {of:?}"),
            RouteAttribute::MultiPath(of) => write!(text, " by {} next hops", of.len()),
            RouteAttribute::Encap(of) => write!(text, " encap {of:?}"),
            RouteAttribute::Table(of) => {
                table = *of;
                Ok(())
            }
            _ => Ok(()),
        };
    }
    format!("{text} table {table} proto {}", u8::from(it.header.protocol))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rtnetlink::packet_route::route::{RouteAddress, RouteProtocol};

    use super::*;

    #[test]
    fn a_route_shows_where_it_leads_and_whose_it_is() {
        let mut it = RouteMessage::default();
        it.header.address_family = AddressFamily::Inet;
        it.header.destination_prefix_length = 24;
        it.header.table = 254;
        it.header.protocol = RouteProtocol::Other(70);
        it.header.kind = RouteType::Unicast;
        it.attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet([10, 2, 0, 0].into())),
            RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 2].into())),
            RouteAttribute::Oif(5),
            RouteAttribute::Priority(7),
            RouteAttribute::Table(7070),
        ];
        assert_eq!(route(&it), "10.2.0.0/24 via 192.0.2.2 dev 5 priority 7 table 7070 proto 70");
        it.header.kind = RouteType::Unreachable;
        it.attributes.truncate(1);
        assert_eq!(route(&it), "Unreachable 10.2.0.0/24 table 254 proto 70");
    }

    #[test]
    fn a_rule_shows_its_priority_first() {
        let mut it = RuleMessage::default();
        it.header.src_len = 24;
        let source: IpAddr = [10, 1, 0, 0].into();
        it.attributes = vec![
            RuleAttribute::Source(source),
            RuleAttribute::Priority(7070),
            RuleAttribute::Table(70),
            RuleAttribute::Protocol(RouteProtocol::Other(70)),
        ];
        assert!(rule(&it).starts_with("7070: from 10.1.0.0/24 table 70 proto 70 "), "{}", rule(&it));
    }
}
