//! All rows of the policy maps, compared with those that are wanted.

use std::collections::BTreeMap;

use agent_common::{
    VifKey,
    policy::{Bits, NamedKey, Peer, PeerKey, RuleKey, Ruleset, Subject},
};
use ferrule_policy::{EndpointId, Op, Table};

use super::trie::Prefix;
use super::{BLOCKS, MapFailure, NAMED, PEERS, PORTS, PolicyMaps, RULES, RULESETS, SUBJECTS, block, port};

/// The rows of all policy maps.
#[derive(Default, PartialEq)]
pub struct PolicyRows {
    subjects: BTreeMap<VifKey, Subject>,
    peers: BTreeMap<PeerKey, Peer>,
    blocks: BTreeMap<Prefix<20>, u32>,
    rulesets: BTreeMap<u32, Ruleset>,
    rules: BTreeMap<RuleKey, Bits>,
    named: BTreeMap<NamedKey, Bits>,
    ports: BTreeMap<Prefix<8>, Bits>,
}

// === impl PolicyMaps ===

impl PolicyMaps {
    /// All rows.
    pub(in crate::dataplane) fn rows(&self) -> Result<PolicyRows, MapFailure> {
        Ok(PolicyRows {
            subjects: self.subjects.rows()?,
            peers: self.peers.rows()?,
            blocks: self.blocks.rows()?,
            rulesets: self.rulesets.rows()?,
            rules: self.rules.rows()?,
            named: self.named.rows()?,
            ports: self.ports.rows()?,
        })
    }

    /// Makes the rows those that are wanted: writes what is missing or wrong, and removes the rest.
    pub(in crate::dataplane) fn make(&mut self, wanted: &PolicyRows) -> Result<(), MapFailure> {
        fn wrong<'a, K: Ord + Copy, V: PartialEq + Copy>(
            wanted: &'a BTreeMap<K, V>,
            found: &'a BTreeMap<K, V>,
        ) -> impl Iterator<Item = (K, Option<V>)> + 'a {
            let stray = found.keys().filter(|key| !wanted.contains_key(key)).map(|key| (*key, None));
            let wrong = wanted.iter().filter(|(key, row)| found.get(key) != Some(row));
            wrong.map(|(key, row)| (*key, Some(*row))).chain(stray)
        }
        let found = self.rows()?;
        for (key, row) in wrong(&wanted.rulesets, &found.rulesets) {
            self.rulesets.set(key, row)?;
        }
        for (key, row) in wrong(&wanted.rules, &found.rules) {
            self.rules.set(key, row)?;
        }
        for (key, row) in wrong(&wanted.named, &found.named) {
            self.named.set(key, row)?;
        }
        for (key, row) in wrong(&wanted.ports, &found.ports) {
            self.ports.set(key, row)?;
        }
        for (key, row) in wrong(&wanted.blocks, &found.blocks) {
            self.blocks.set(key, row)?;
        }
        for (key, row) in wrong(&wanted.peers, &found.peers) {
            self.peers.set(key, row)?;
        }
        for (key, row) in wrong(&wanted.subjects, &found.subjects) {
            self.subjects.set(key, row)?;
        }
        Ok(())
    }
}

// === impl PolicyRows ===

impl PolicyRows {
    /// The rows that changes to empty maps would make.
    pub fn of(ops: impl Iterator<Item = Op>, table: Table) -> Self {
        let mut rows = Self::default();
        for op in ops {
            match op {
                Op::Peer(address, Some(row)) => drop(rows.peers.insert(address.key(table), row.into())),
                Op::Block(prefix, Some(class)) => drop(rows.blocks.insert(block(prefix.key(table)), class.0)),
                Op::Ruleset(id, Some(header)) => drop(rows.rulesets.insert(id.0, Ruleset::from(&*header))),
                Op::Rule(key, Some(bits)) => drop(rows.rules.insert(key.into(), bits.0)),
                Op::Named(key, Some(bits)) => drop(rows.named.insert(key.into(), bits.0)),
                Op::Port(key, Some(bits)) => drop(rows.ports.insert(port(key.into()), bits.0)),
                Op::Endpoint(EndpointId(ifindex), Some(row)) => {
                    rows.subjects.insert(VifKey { ifindex }, row.into());
                }
                Op::Peer(_, None)
                | Op::Block(_, None)
                | Op::Ruleset(_, None)
                | Op::Rule(_, None)
                | Op::Named(_, None)
                | Op::Port(_, None)
                | Op::Endpoint(_, None) => {}
            }
        }
        rows
    }

    /// How the rows differ from the wanted ones: one line for each map.
    pub fn differences(&self, wanted: &Self) -> Vec<String> {
        let maps = [
            (SUBJECTS.name, compare(&self.subjects, &wanted.subjects)),
            (PEERS.name, compare(&self.peers, &wanted.peers)),
            (BLOCKS.name, compare(&self.blocks, &wanted.blocks)),
            (RULESETS.name, compare(&self.rulesets, &wanted.rulesets)),
            (RULES.name, compare(&self.rules, &wanted.rules)),
            (NAMED.name, compare(&self.named, &wanted.named)),
            (PORTS.name, compare(&self.ports, &wanted.ports)),
        ];
        let differing = maps.into_iter().filter(|(_, counts)| *counts != [0; 3]);
        let line = |(map, [missing, wrong, stray]): (&str, [usize; 3])| {
            format!("the map {map} has {missing} rows too few, {wrong} wrong and {stray} too many")
        };
        differing.map(line).collect()
    }
}

/// How many rows are missing, wrong, and not wanted.
fn compare<K: Ord, V: PartialEq>(found: &BTreeMap<K, V>, wanted: &BTreeMap<K, V>) -> [usize; 3] {
    let missing = wanted.keys().filter(|key| !found.contains_key(key)).count();
    let wrong = wanted.iter().filter(|(key, row)| found.get(key).is_some_and(|it| it != *row)).count();
    let stray = found.keys().filter(|key| !wanted.contains_key(key)).count();
    [missing, wrong, stray]
}
