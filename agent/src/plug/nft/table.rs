//! A table of the family `inet` that is the agent's own: written as a whole, and compared with the kernel's.

use std::io;

use nix::errno::Errno;
use rtnetlink::packet_core::{NLM_F_CREATE, NlaBuffer};

use super::{
    super::{
        message::{Attribute, attributes_of, find},
        netlink::NetlinkError,
    },
    expression::Expression,
    nfnetlink::{self, Change, Object, dump},
    numbers::{
        ACCEPT, CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TYPE, DELETE_TABLE, GET_CHAIN, GET_RULE, GET_SET,
        GET_TABLE, HOOK_NUMBER, HOOK_PRIORITY, INET, LIST_ITEM, NEW_CHAIN, NEW_RULE, NEW_TABLE, OF_TABLE,
        RULE_CHAIN, RULE_EXPRESSIONS, TABLE_FLAGS,
    },
    sets::Set,
};

pub(super) type Rule = Vec<Expression>;
type Chain = (&'static str, Vec<Attribute>);

/// What a table has.
pub(super) struct Content {
    pub name: &'static str,
    pub sets: Vec<Set>,
    pub chains: Vec<Chain>,
    /// By chain.
    pub rules: Vec<(&'static str, Vec<Rule>)>,
}

/// A chain that others lead to.
pub(super) fn named(table: &str, name: &'static str) -> Chain {
    (name, vec![Attribute::text(OF_TABLE, table), Attribute::text(CHAIN_NAME, name)])
}

/// A chain at a hook, which accepts what its rules leave.
pub(super) fn hooked(table: &str, name: &'static str, kind: &str, (at, priority): (u32, i32)) -> Chain {
    let (_, mut chain) = named(table, name);
    let hook = [(HOOK_NUMBER, at), (HOOK_PRIORITY, priority.cast_unsigned())];
    let hook = hook.map(|(kind, value)| Attribute::number(kind, value)).to_vec();
    chain.extend([
        Attribute::text(CHAIN_TYPE, kind),
        Attribute::number(CHAIN_POLICY, ACCEPT),
        Attribute::Nest(CHAIN_HOOK, hook),
    ]);
    (name, chain)
}

// === impl Content ===

impl Content {
    /// Writes the table, in the place of an earlier one.
    ///
    /// # Errors
    /// If the kernel refuses; the earlier table stays.
    pub fn write(&self) -> Result<(), NetlinkError> {
        let table = |what, kind| table(self.name, what, kind);
        let mut changes = vec![table("add the table", NEW_TABLE), table("replace the table", DELETE_TABLE)];
        changes.extend(self.changes());
        nfnetlink::commit(&changes).map_err(explained)
    }

    /// The first difference from the kernel's table.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn difference(&self) -> io::Result<Option<String>> {
        let of_table = [Attribute::text(OF_TABLE, self.name)];
        let is_ours = |it: &Object| of_table.iter().all(|name| name.is_in(&it.1));
        let read = |kind| -> io::Result<Vec<Vec<u8>>> {
            Ok(dump(kind, INET, &of_table)?.into_iter().filter(is_ours).map(|it| it.1).collect())
        };
        let (chains, sets, rules) = (read(GET_CHAIN)?, read(GET_SET)?, read(GET_RULE)?);
        // Not filtered by its name: the kernel would answer the request with one object, and no end.
        let tables = dump(GET_TABLE, INET, &[])?;
        let Some((_, found)) = tables.iter().find(|it| is_ours(it)) else {
            return Ok(Some("is missing".to_owned()));
        };
        if !Attribute::number(TABLE_FLAGS, 0).is_in(found) {
            return Ok(Some("is dormant, or has an owner".to_owned()));
        }
        let has =
            |all: &[Vec<u8>], it: &[Attribute]| all.iter().any(|found| it.iter().all(|it| it.is_in(found)));
        if let Some((name, _)) = self.chains.iter().find(|(_, it)| !has(&chains, it)) {
            return Ok(Some(format!("has no chain {name}, or a changed one")));
        }
        for (name, expected) in &self.rules {
            let of_chain = Attribute::text(RULE_CHAIN, name);
            let found: Vec<_> = rules.iter().filter(|it| of_chain.is_in(it)).collect();
            if !is_same_rules(expected, &found) {
                return Ok(Some(format!("has changed rules in the chain {name}")));
            }
        }
        if chains.len() > self.chains.len() || sets.len() > self.sets.len() {
            return Ok(Some("has a foreign chain or set".to_owned()));
        }
        for set in &self.sets {
            if !has(&sets, &set.attributes(self.name)) {
                return Ok(Some(format!("has no set {}, or a changed one", set.name)));
            }
            if !set.is_same(self.name)? {
                return Ok(Some(format!("has changed elements in the set {}", set.name)));
            }
        }
        Ok(None)
    }

    fn changes(&self) -> Vec<Change> {
        let mut changes = vec![table(self.name, "add the table", NEW_TABLE)];
        for (number, set) in (1..).zip(&self.sets) {
            changes.extend(set.changes(self.name, number));
        }
        for (name, attributes) in &self.chains {
            changes.push(Change::create(format!("add the chain {name}"), NEW_CHAIN, attributes.clone()));
        }
        for (name, rules) in &self.rules {
            for expressions in rules {
                let items = expressions.iter().map(|it| Attribute::Nest(LIST_ITEM, it.clone())).collect();
                let attributes = vec![
                    Attribute::text(OF_TABLE, self.name),
                    Attribute::text(RULE_CHAIN, name),
                    Attribute::Nest(RULE_EXPRESSIONS, items),
                ];
                changes.push(Change::create(format!("add a rule of the chain {name}"), NEW_RULE, attributes));
            }
        }
        changes
    }
}

/// Deletes a table, if it exists. Returns whether it did.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn remove(name: &str) -> Result<bool, NetlinkError> {
    let failed = |source| NetlinkError::new("list the tables of nftables", source);
    if !exists(name).map_err(failed)? {
        return Ok(false);
    }
    match nfnetlink::commit(&[table(name, "delete the table", DELETE_TABLE)]) {
        Err(error) if error.is(Errno::ENOENT) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Whether the kernel has a table.
///
/// # Errors
/// If the kernel refuses a dump.
pub(super) fn exists(name: &str) -> io::Result<bool> {
    let ours = Attribute::text(OF_TABLE, name);
    Ok(dump(GET_TABLE, INET, &[])?.iter().any(|(_, found)| ours.is_in(found)))
}

/// The kernel names neither the missing module nor the expression.
pub(super) fn explained(error: NetlinkError) -> NetlinkError {
    let is_missing = [Errno::ENOENT, Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EINVAL]
        .iter()
        .any(|it| error.is(*it));
    if is_missing {
        let modules = "load the kernel's modules nf_tables, nft_chain_nat, nft_ct, nft_fib_inet, nft_masq and \
                       nft_nat";
        return error.with_hint(modules.to_owned());
    }
    error
}

fn table(name: &str, what: &str, kind: u16) -> Change {
    let mut attributes = vec![Attribute::text(OF_TABLE, name)];
    if kind == NEW_TABLE {
        attributes.push(Attribute::number(TABLE_FLAGS, 0));
    }
    let flags = if kind == NEW_TABLE { NLM_F_CREATE } else { 0 };
    Change { what: format!("{what} inet {name} of nftables"), kind, flags, family: INET, attributes }
}

fn is_same_rules(expected: &[Rule], found: &[&Vec<u8>]) -> bool {
    let is_same = |(expected, found): (&Rule, &&Vec<u8>)| {
        let list = find(found, &[RULE_EXPRESSIONS]).unwrap_or_default();
        let found: Vec<_> = attributes_of(list).collect();
        let is_in = |(all, found): (&Expression, &_)| {
            let found: &NlaBuffer<&[u8]> = found;
            all.iter().all(|it| it.is_in(found.value()))
        };
        expected.len() == found.len() && expected.iter().zip(&found).all(is_in)
    };
    expected.len() == found.len() && expected.iter().zip(found).all(is_same)
}
