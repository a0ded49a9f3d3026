//! Netfilter chains that can drop forwarded packets: what pods exchange with other nodes and the world passes
//! them, and the agent's programs do not see the result.
//!
//! Found are base chains of nftables at the hook `forward` (also those of `iptables-nft`) whose policy is
//! drop, or which drop by a rule of their own. Not found are rules in chains that those jump to, flow tables,
//! other hooks, and the rules of `iptables-legacy`, of which only the existence of its table is visible.

use std::{fs, io, time::Duration};

use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::{TimeVal, TimeValLike as _},
};
use rtnetlink::{
    packet_core::NlasIterator,
    sys::{Socket, protocols::NETLINK_NETFILTER},
};

use super::netlink::borrow;

/// `NFNL_SUBSYS_NFTABLES` in `linux/netfilter/nfnetlink.h`, `NFT_MSG_…` in `linux/netfilter/nf_tables.h`.
const GET_CHAIN: u16 = 10 << 8 | 4;
const GET_RULE: u16 = 10 << 8 | 7;
/// `NLM_F_REQUEST | NLM_F_DUMP`, `NLMSG_ERROR` and `NLMSG_DONE` in `linux/netlink.h`.
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Bytes of `struct nlmsghdr`, and of that with `struct nfgenmsg`.
const HEADER: usize = 16;
const HEADERS: usize = 20;
/// `NFTA_CHAIN_TABLE`, `NFTA_CHAIN_NAME`, `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY`, `NFTA_HOOK_HOOKNUM`.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
/// `NFTA_RULE_TABLE`, `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`.
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`.
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CODE`.
const VERDICT: [u16; 3] = [2, 2, 1];
/// `NF_DROP` and `NF_INET_FORWARD` in `linux/netfilter.h`.
const DROP: u32 = 0;
const FORWARD: u32 = 2;
/// `NFPROTO_INET`, `NFPROTO_IPV4` and `NFPROTO_IPV6`, and the names of their tables.
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];
const LEGACY: [(&str, &str); 2] = [
    ("/proc/thread-self/net/ip_tables_names", "iptables"),
    ("/proc/thread-self/net/ip6_tables_names", "ip6tables"),
];
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
/// Bytes: larger than any datagram of a dump.
const BUFFER: usize = 64 * 1024;
/// Bounds a dump: base chains have few rules.
const DATAGRAMS: usize = 1024;

/// A base chain at the hook `forward`.
#[derive(Debug, PartialEq, Eq)]
struct Chain {
    family: u8,
    table: String,
    name: String,
    drops_by_default: bool,
}

/// One line for each chain of the calling thread's network namespace that may drop pods' packets.
///
/// # Errors
/// If the kernel refuses a dump. A kernel without nftables has no chains.
pub fn forward_drops() -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for chain in dump(GET_CHAIN, 0, &[])?.iter().filter_map(|body| Chain::parse(body)) {
        let Some((_, family)) = FAMILIES.iter().find(|(family, _)| *family == chain.family) else { continue };
        let Chain { table, name, .. } = &chain;
        let of = [(RULE_TABLE, table.as_str()), (RULE_CHAIN, name.as_str())];
        let rules = dump(GET_RULE, chain.family, &of)?.iter().filter(|body| drops(body)).count();
        let how = match (chain.drops_by_default, rules) {
            (true, _) => {
                "has the policy drop: it drops what pods exchange with other nodes, unless a rule accepts it"
            }
            (false, 0) => continue,
            (false, _) => "has rules that drop: they may concern what pods exchange with other nodes",
        };
        let show = format!("nft -a list chain {family} {table} {name}");
        found.push(format!(
            "the nftables chain {family} {table} {name} at the hook forward {how}; see: {show}"
        ));
    }
    for (path, command) in LEGACY {
        if fs::read_to_string(path).is_ok_and(|tables| tables.lines().any(|table| table == "filter")) {
            found.push(format!(
                "{command}-legacy has a table filter, which the agent cannot read; see: {command}-legacy -S FORWARD"
            ));
        }
    }
    Ok(found)
}

// === impl Chain ===

impl Chain {
    /// `None` unless the message is about a base chain at the hook `forward`.
    fn parse(body: &[u8]) -> Option<Self> {
        let (family, attributes) = (*body.first()?, body.get(4..)?);
        let hook = find(attributes, &[CHAIN_HOOK, HOOK_NUMBER])?;
        (number(&hook)? == FORWARD).then_some(())?;
        Some(Self {
            family,
            table: text(&find(attributes, &[CHAIN_TABLE])?),
            name: text(&find(attributes, &[CHAIN_NAME])?),
            drops_by_default: find(attributes, &[CHAIN_POLICY]).and_then(|it| number(&it)) == Some(DROP),
        })
    }
}

/// Whether a rule's verdict is drop, or the rule rejects; possibly under conditions.
fn drops(body: &[u8]) -> bool {
    let Some(expressions) = body.get(4..).and_then(|it| find(it, &[RULE_EXPRESSIONS])) else { return false };
    NlasIterator::new(&expressions[..]).flatten().any(|expression| {
        let name = find(expression.value(), &[EXPRESSION_NAME]).map(|it| text(&it));
        let data = find(expression.value(), &[EXPRESSION_DATA]);
        match name.as_deref() {
            Some("reject") => true,
            Some("immediate") => data.and_then(|it| number(&find(&it, &VERDICT)?)) == Some(DROP),
            _ => false,
        }
    })
}

/// The value of a nested attribute.
fn find(attributes: &[u8], path: &[u16]) -> Option<Vec<u8>> {
    let (first, rest) = path.split_first()?;
    let found = NlasIterator::new(attributes).flatten().find(|it| it.kind() == *first)?;
    if rest.is_empty() { Some(found.value().to_vec()) } else { find(found.value(), rest) }
}

/// nftables' numbers have network byte order.
fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// The bodies of the answers, each with its `struct nfgenmsg`.
fn dump(kind: u16, family: u8, attributes: &[(u16, &str)]) -> io::Result<Vec<Vec<u8>>> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    let deadline = TimeVal::milliseconds(i64::try_from(ANSWER_DEADLINE.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&borrow(&socket), ReceiveTimeout, &deadline)?;
    socket.send(&request(kind, family, attributes), 0)?;
    let mut found = Vec::new();
    for _ in 0..DATAGRAMS {
        let mut datagram = Vec::with_capacity(BUFFER);
        socket.recv(&mut datagram, 0)?;
        let mut rest = datagram.as_slice();
        while let Some((length, kind)) = header(rest) {
            match (kind, rest.get(HEADER..length)) {
                (DONE, _) => return Ok(found),
                (ERROR, body) => return error(body.unwrap_or_default()).map_or(Ok(found), Err),
                (_, Some(body)) => found.push(body.to_vec()),
                (_, None) => return Err(io::ErrorKind::InvalidData.into()),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    Ok(found)
}

fn request(kind: u16, family: u8, attributes: &[(u16, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, value) in attributes {
        let length = 4 + value.len() + 1;
        body.extend(u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value.bytes());
        body.resize(body.len() + 1 + (length.next_multiple_of(4) - length), 0);
    }
    let length = u32::try_from(HEADERS + body.len()).unwrap_or(u32::MAX);
    let mut message = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &DUMP.to_ne_bytes()].concat();
    // Sequence number and port; family, version and resource of `struct nfgenmsg`.
    message.extend([0; 8]);
    message.extend([family, 0, 0, 0]);
    message.extend(body);
    message
}

/// Length and kind of the next message.
fn header(rest: &[u8]) -> Option<(usize, u16)> {
    let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(rest.get(4..6)?.try_into().ok()?);
    (length >= HEADER).then_some((length, kind))
}

/// The error of `NLMSG_ERROR`. A kernel without nftables answers EINVAL, and ENOENT if the chain is gone.
fn error(body: &[u8]) -> Option<io::Error> {
    let code = body.get(..4).and_then(|it| it.try_into().ok()).map_or(0, i32::from_ne_bytes);
    let error = io::Error::from_raw_os_error(code.wrapping_neg());
    let is_absent = matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound);
    (code != 0 && !is_absent).then_some(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn chain(hook: u32, policy: u32) -> Vec<u8> {
        let hook = attribute(4 | 0x8000, &attribute(1, &hook.to_be_bytes()));
        let names = [attribute(1, b"filter\0"), attribute(3, b"FORWARD\0")].concat();
        [vec![2, 0, 0, 0], names, hook, attribute(5, &policy.to_be_bytes())].concat()
    }

    #[test]
    fn base_chains_at_the_forward_hook_are_parsed() {
        let expected = |drops_by_default| {
            let (table, name) = ("filter".to_owned(), "FORWARD".to_owned());
            Some(Chain { family: 2, table, name, drops_by_default })
        };
        assert_eq!(Chain::parse(&chain(2, 0)), expected(true));
        assert_eq!(Chain::parse(&chain(2, 1)), expected(false));
        assert_eq!(Chain::parse(&chain(1, 0)), None, "the hook input");
        let whole = chain(2, 0);
        for length in 0..whole.len() - 8 {
            assert_eq!(Chain::parse(&whole[..length]), None);
        }
    }

    #[test]
    fn rules_that_drop_or_reject_are_recognized() {
        let rule = |name: &[u8], code: u32| {
            let verdict = attribute(2, &attribute(2, &attribute(1, &code.to_be_bytes())));
            let expression = [attribute(1, name), attribute(2, &verdict)].concat();
            let counter = attribute(1, &attribute(1, b"counter\0"));
            [vec![2, 0, 0, 0], attribute(4, &[counter, attribute(1, &expression)].concat())].concat()
        };
        assert!(drops(&rule(b"immediate\0", 0)) && drops(&rule(b"reject\0", 1)));
        assert!(!drops(&rule(b"immediate\0", 1)), "accepts");
        assert!(!drops(&rule(b"cmp\0", 0)) && !drops(&[]));
    }
}
