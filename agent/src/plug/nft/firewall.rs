//! Netfilter chains that can drop forwarded packets: what pods exchange with other nodes and the world passes
//! them, and the agent's programs do not see the result.
//!
//! Found are base chains of nftables at the hook `forward` (also those of `iptables-nft`) whose policy is
//! drop, or which drop by a rule of their own. Not found are rules in chains that those jump to, flow tables,
//! other hooks, and the rules of `iptables-legacy`, of which only the existence of its table is visible.

use std::{fmt, fs, io};

use super::{
    super::message::{Attribute, attributes_of, find},
    nfnetlink::{dump, number, text},
    numbers::{
        ACCEPT, AT_FORWARD, CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, DATA_VERDICT, DROP, EXPRESSION_DATA,
        EXPRESSION_NAME, GET_CHAIN, GET_RULE, GOTO, HOOK_NUMBER, IMMEDIATE_DATA, INET, IPV4, IPV6, JUMP,
        OF_TABLE, RULE_CHAIN, RULE_EXPRESSIONS, VERDICT_CODE,
    },
};

/// Where an expression `immediate` has its verdict.
const VERDICT: [u16; 3] = [IMMEDIATE_DATA, DATA_VERDICT, VERDICT_CODE];
/// The families, and the names of their tables.
const FAMILIES: [(u8, &str); 3] = [(INET, "inet"), (IPV4, "ip"), (IPV6, "ip6")];
/// `NFTA_MATCH_NAME` in `linux/netfilter/nf_tables_compat.h`.
const MATCH_NAME: u16 = 1;
const LEGACY: [(&str, &str); 2] = [
    ("/proc/thread-self/net/ip_tables_names", "iptables"),
    ("/proc/thread-self/net/ip6_tables_names", "ip6tables"),
];

/// A chain or a table that may drop what pods exchange with other nodes and the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardDrop {
    pub what: String,
    /// The command that shows it.
    pub see: String,
    /// Whether the chain drops the first packet of each connection, so far as its own rules tell: chains that
    /// these jump to may accept it.
    pub is_total: bool,
}

/// A base chain at the hook `forward`.
#[derive(Debug, PartialEq, Eq)]
struct Chain {
    family: u8,
    table: String,
    name: String,
    drops_by_default: bool,
}

/// What a rule does.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Rule {
    /// Drops or rejects, possibly under conditions.
    drops: bool,
    /// Under none.
    drops_all: bool,
    /// Accepts more than packets of a known connection.
    accepts: bool,
}

/// Each chain of the calling thread's network namespace that may drop pods' packets, or why they cannot be
/// read. A kernel without nftables has no chains.
pub fn forward_drops() -> Vec<ForwardDrop> {
    read().unwrap_or_else(|error| {
        let what = format!("the chains of nftables cannot be read: {error}");
        vec![ForwardDrop { what, see: "nft list ruleset".to_owned(), is_total: false }]
    })
}

fn read() -> io::Result<Vec<ForwardDrop>> {
    let mut found = Vec::new();
    for (family, attributes) in dump(GET_CHAIN, 0, &[])? {
        let Some(chain) = Chain::parse(family, &attributes) else { continue };
        let Some((_, family)) = FAMILIES.iter().find(|(family, _)| *family == chain.family) else { continue };
        let Chain { table, name, .. } = &chain;
        let of = [Attribute::text(OF_TABLE, table), Attribute::text(RULE_CHAIN, name)];
        let rules = dump(GET_RULE, chain.family, &of)?;
        let rules: Vec<_> = rules.iter().map(|(_, rule)| Rule::parse(rule)).collect();
        let Some((how, is_total)) = chain.effect(&rules) else { continue };
        found.push(ForwardDrop {
            what: format!("the nftables chain {family} {table} {name} at the hook forward {how}"),
            see: format!("nft -a list chain {family} {table} {name}"),
            is_total,
        });
    }
    for (path, command) in LEGACY {
        if fs::read_to_string(path).is_ok_and(|tables| tables.lines().any(|table| table == "filter")) {
            found.push(ForwardDrop {
                what: format!("{command}-legacy has a table filter, which the agent cannot read"),
                see: format!("{command}-legacy -S FORWARD"),
                is_total: false,
            });
        }
    }
    Ok(found)
}

// === impl ForwardDrop ===

impl fmt::Display for ForwardDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; see: {}", self.what, self.see)
    }
}

// === impl Chain ===

impl Chain {
    /// `None` unless the message is about a base chain at the hook `forward`.
    fn parse(family: u8, attributes: &[u8]) -> Option<Self> {
        let hook = find(attributes, &[CHAIN_HOOK, HOOK_NUMBER])?;
        (number(hook)? == AT_FORWARD).then_some(())?;
        Some(Self {
            family,
            table: text(find(attributes, &[OF_TABLE])?),
            name: text(find(attributes, &[CHAIN_NAME])?),
            drops_by_default: find(attributes, &[CHAIN_POLICY]).and_then(number) == Some(DROP),
        })
    }

    /// How the chain drops, and whether that concerns all new connections; `None` if the chain does not drop.
    fn effect(&self, rules: &[Rule]) -> Option<(&'static str, bool)> {
        let accepts = rules.iter().any(|it| it.accepts);
        if self.drops_by_default {
            let how =
                "has the policy drop: it drops what pods exchange with other nodes, unless a rule accepts it";
            return Some((how, !accepts));
        }
        if rules.iter().any(|it| it.drops_all) && !accepts {
            return Some(("has a rule that drops everything which no earlier rule accepts", true));
        }
        let how = "has rules that drop: they may concern what pods exchange with other nodes";
        rules.iter().any(|it| it.drops).then_some((how, false))
    }
}

// === impl Rule ===

impl Rule {
    fn parse(rule: &[u8]) -> Self {
        let Some(expressions) = find(rule, &[RULE_EXPRESSIONS]) else { return Self::default() };
        let (mut verdict, mut has_condition, mut is_of_connections) = (None, false, false);
        for expression in attributes_of(expressions) {
            let name = find(expression.value(), &[EXPRESSION_NAME]).map(text).unwrap_or_default();
            let data = find(expression.value(), &[EXPRESSION_DATA]).unwrap_or_default();
            match name.as_str() {
                "reject" => verdict = Some(DROP),
                "immediate" => verdict = find(data, &VERDICT).and_then(number).or(verdict),
                "counter" | "log" => {}
                _ => has_condition = true,
            }
            is_of_connections |= name == "ct" || (name == "match" && is_of_conntrack(data));
        }
        let drops = verdict == Some(DROP);
        Self {
            drops,
            drops_all: drops && !has_condition,
            // A chain that a rule jumps to may accept.
            accepts: matches!(verdict, Some(ACCEPT | JUMP | GOTO)) && !is_of_connections,
        }
    }
}

/// Whether an extension of `iptables` asks for the state of the connection.
fn is_of_conntrack(data: &[u8]) -> bool {
    find(data, &[MATCH_NAME]).is_some_and(|it| matches!(text(it).as_str(), "conntrack" | "state"))
}

#[cfg(test)]
mod tests {
    use super::{super::super::message::encode_all, *};

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        encode_all(&[Attribute::Value(kind, value.to_vec())])
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

    /// A rule with a counter, these conditions, and a verdict.
    fn rule(conditions: &[(&str, &str)], name: &str, code: u32) -> Rule {
        let expression = |name: &str, data: &[u8]| {
            let name = attribute(1, format!("{name}\0").as_bytes());
            attribute(1, &[name, attribute(2, data)].concat())
        };
        let mut all = expression("counter", &[]);
        for (name, of) in conditions {
            all.extend(expression(name, &attribute(1, format!("{of}\0").as_bytes())));
        }
        all.extend(expression(name, &attribute(2, &attribute(2, &attribute(1, &code.to_be_bytes())))));
        Rule::parse(&attribute(4, &all))
    }

    #[test]
    fn rules_that_drop_or_reject_are_recognized() {
        let all = Rule { drops: true, drops_all: true, accepts: false };
        assert_eq!([rule(&[], "immediate", 0), rule(&[], "reject", 1)], [all; 2]);
        assert_eq!(rule(&[("cmp", "")], "immediate", 0), Rule { drops_all: false, ..all });
        let accepts = Rule { accepts: true, ..Rule::default() };
        assert_eq!([rule(&[], "immediate", 1), rule(&[("cmp", "")], "immediate", 1)], [accepts; 2]);
        for condition in [("ct", ""), ("match", "conntrack")] {
            assert_eq!(rule(&[condition], "immediate", 1), Rule::default(), "known connections only");
        }
        assert_eq!(rule(&[("match", "comment")], "immediate", 1), accepts);
        let jump = -3_i32 as u32;
        assert_eq!(rule(&[], "immediate", jump), accepts, "the other chain may accept");
        assert_eq!(Rule::parse(&[]), Rule::default());
    }

    #[test]
    fn a_chain_that_accepts_no_new_connection_drops_all_of_them() {
        let chain = |drops_by_default| Chain {
            family: 1,
            table: "filter".to_owned(),
            name: "forward".to_owned(),
            drops_by_default,
        };
        let is_total = |policy, rules: &[Rule]| chain(policy).effect(rules).map(|it| it.1);
        let (accepts, drops) = (rule(&[("cmp", "")], "immediate", 1), rule(&[], "immediate", 0));
        let (established, may) = (rule(&[("ct", "")], "immediate", 1), rule(&[("cmp", "")], "reject", 0));
        assert_eq!([is_total(true, &[]), is_total(true, &[established, may])], [Some(true); 2]);
        assert_eq!(is_total(true, &[accepts]), Some(false));
        assert_eq!([is_total(false, &[]), is_total(false, &[accepts, established])], [None; 2]);
        assert_eq!([is_total(false, &[may]), is_total(false, &[accepts, drops])], [Some(false); 2]);
        assert_eq!(is_total(false, &[established, drops]), Some(true));
    }
}
