//! Netfilter chains that can drop forwarded packets: what pods exchange with other nodes and the world passes
//! them, and the agent's programs do not see the result.
//!
//! Found are base chains of nftables at the hook `forward` (also those of `iptables-nft`) whose policy is
//! drop, or which drop by a rule of their own. Not found are rules in chains that those jump to, flow tables,
//! other hooks, and the rules of `iptables-legacy`, of which only the existence of its table is visible.

use std::{fs, io};

use rtnetlink::packet_core::NlasIterator;

use super::{
    nfnetlink::{Attribute, dump, find, number, text},
    numbers::{
        AT_FORWARD, CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, DATA_VERDICT, DROP, EXPRESSION_DATA,
        EXPRESSION_NAME, GET_CHAIN, GET_RULE, HOOK_NUMBER, IMMEDIATE_DATA, INET, IPV4, IPV6, OF_TABLE,
        RULE_CHAIN, RULE_EXPRESSIONS, VERDICT_CODE,
    },
};

/// Where an expression `immediate` has its verdict.
const VERDICT: [u16; 3] = [IMMEDIATE_DATA, DATA_VERDICT, VERDICT_CODE];
/// The families, and the names of their tables.
const FAMILIES: [(u8, &str); 3] = [(INET, "inet"), (IPV4, "ip"), (IPV6, "ip6")];
const LEGACY: [(&str, &str); 2] = [
    ("/proc/thread-self/net/ip_tables_names", "iptables"),
    ("/proc/thread-self/net/ip6_tables_names", "ip6tables"),
];

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
    for (family, attributes) in dump(GET_CHAIN, 0, &[])? {
        let Some(chain) = Chain::parse(family, &attributes) else { continue };
        let Some((_, family)) = FAMILIES.iter().find(|(family, _)| *family == chain.family) else { continue };
        let Chain { table, name, .. } = &chain;
        let of = [Attribute::text(OF_TABLE, table), Attribute::text(RULE_CHAIN, name)];
        let rules = dump(GET_RULE, chain.family, &of)?.iter().filter(|(_, rule)| drops(rule)).count();
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
    fn parse(family: u8, attributes: &[u8]) -> Option<Self> {
        let hook = find(attributes, &[CHAIN_HOOK, HOOK_NUMBER])?;
        (number(&hook)? == AT_FORWARD).then_some(())?;
        Some(Self {
            family,
            table: text(&find(attributes, &[OF_TABLE])?),
            name: text(&find(attributes, &[CHAIN_NAME])?),
            drops_by_default: find(attributes, &[CHAIN_POLICY]).and_then(|it| number(&it)) == Some(DROP),
        })
    }
}

/// Whether a rule's verdict is drop, or the rule rejects; possibly under conditions.
fn drops(rule: &[u8]) -> bool {
    let Some(expressions) = find(rule, &[RULE_EXPRESSIONS]) else { return false };
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
        [names, hook, attribute(5, &policy.to_be_bytes())].concat()
    }

    #[test]
    fn base_chains_at_the_forward_hook_are_parsed() {
        let expected = |drops_by_default| {
            let (table, name) = ("filter".to_owned(), "FORWARD".to_owned());
            Some(Chain { family: 2, table, name, drops_by_default })
        };
        assert_eq!(Chain::parse(2, &chain(2, 0)), expected(true));
        assert_eq!(Chain::parse(2, &chain(2, 1)), expected(false));
        assert_eq!(Chain::parse(2, &chain(1, 0)), None, "the hook input");
        let whole = chain(2, 0);
        for length in 0..whole.len() - 8 {
            assert_eq!(Chain::parse(2, &whole[..length]), None);
        }
    }

    #[test]
    fn rules_that_drop_or_reject_are_recognized() {
        let rule = |name: &[u8], code: u32| {
            let verdict = attribute(2, &attribute(2, &attribute(1, &code.to_be_bytes())));
            let expression = [attribute(1, name), attribute(2, &verdict)].concat();
            let counter = attribute(1, &attribute(1, b"counter\0"));
            attribute(4, &[counter, attribute(1, &expression)].concat())
        };
        assert!(drops(&rule(b"immediate\0", 0)) && drops(&rule(b"reject\0", 1)));
        assert!(!drops(&rule(b"immediate\0", 1)), "accepts");
        assert!(!drops(&rule(b"cmp\0", 0)) && !drops(&[]));
    }
}
