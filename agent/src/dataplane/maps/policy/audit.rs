//! All rows of the policy maps, compared with those that are wanted: in short steps, between which both may
//! change.

use agent_common::policy::{NamedKey, Peer, PeerKey, RuleKey, Ruleset, Subject};
use ferrule_policy::{EndpointId, Op, Rows, Table};

use super::{
    super::shown::SUBJECT,
    BLOCKS, MapFailure, NAMED, PEERS, PORTS, PolicyMaps, RULES, RULESETS, block, block_key, port, port_key,
    trie::TrieKey,
    walk::{Counts, STEP, Walk},
};

/// A comparison that has come so far.
#[derive(Default)]
pub struct Audit {
    /// Makes the rows those that are wanted.
    repairs: bool,
    /// The wanted row that was compared last.
    last: Option<Op>,
    /// Whether all wanted rows were.
    has_compared: bool,
    rulesets: Walk<u32>,
    rules: Walk<RuleKey>,
    named: Walk<NamedKey>,
    ports: Walk<TrieKey<8>>,
    blocks: Walk<TrieKey<20>>,
    peers: Walk<PeerKey>,
    subjects: Counts,
    /// Whether the interfaces were compared that should have no subject.
    has_subjects: bool,
}

/// How a row in the kernel relates to the wanted one.
enum Found {
    Right,
    Wrong,
    Missing,
}

// === impl Audit ===

impl Audit {
    /// Counts what deviates.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes what is missing or wrong, and removes the rest.
    pub fn repairing() -> Self {
        Self { repairs: true, ..Self::default() }
    }

    /// How the rows differ from the wanted ones: one line for each map.
    pub fn differences(&self) -> Vec<String> {
        let maps = [
            (SUBJECT, self.subjects),
            (PEERS.name, self.peers.counts),
            (BLOCKS.name, self.blocks.counts),
            (RULESETS.name, self.rulesets.counts),
            (RULES.name, self.rules.counts),
            (NAMED.name, self.named.counts),
            (PORTS.name, self.ports.counts),
        ];
        let differing = maps.into_iter().filter(|(_, counts)| *counts != Counts::default());
        let line = |(map, Counts { missing, wrong, stray }): (&str, Counts)| {
            format!("the map {map} has {missing} rows too few, {wrong} wrong and {stray} too many")
        };
        differing.map(line).collect()
    }

    fn counts(&mut self, op: &Op) -> &mut Counts {
        match op {
            Op::Peer(..) => &mut self.peers.counts,
            Op::Block(..) => &mut self.blocks.counts,
            Op::Ruleset(..) => &mut self.rulesets.counts,
            Op::Rule(..) => &mut self.rules.counts,
            Op::Named(..) => &mut self.named.counts,
            Op::Port(..) => &mut self.ports.counts,
            Op::Endpoint(..) => &mut self.subjects,
        }
    }
}

// === impl PolicyMaps ===

impl PolicyMaps {
    /// Compares some rows of the maps, which are in the state of `wanted`. Returns whether more follow.
    pub(in crate::dataplane) fn audit(
        &mut self,
        audit: &mut Audit,
        wanted: &Rows,
        table: Table,
    ) -> Result<bool, MapFailure> {
        if audit.has_compared {
            return self.walk(audit, wanted, table);
        }
        let page: Vec<Op> = wanted.after(audit.last.as_ref()).take(STEP).collect();
        audit.has_compared = page.len() < STEP;
        for op in &page {
            match self.compare(op, table)? {
                Found::Right => continue,
                Found::Wrong => audit.counts(op).wrong += 1,
                Found::Missing => audit.counts(op).missing += 1,
            }
            if audit.repairs {
                self.apply(op, table)?;
            }
        }
        audit.last = page.into_iter().next_back().or(audit.last.take());
        Ok(true)
    }

    /// Looks for rows that are not wanted.
    fn walk(&mut self, audit: &mut Audit, wanted: &Rows, table: Table) -> Result<bool, MapFailure> {
        let repairs = audit.repairs;
        if !audit.has_subjects {
            audit.has_subjects = true;
            let strays = self.subjects.strays(|ifindex| wanted.has_subject(ifindex))?;
            audit.subjects.stray += strays.len();
            strays
                .into_iter()
                .filter(|_| repairs)
                .try_for_each(|ifindex| self.subjects.set(ifindex, None))?;
        }
        let more = self.rulesets.walk(&mut audit.rulesets, |id| wanted.has_ruleset(*id), repairs)?
            || self.rules.walk(&mut audit.rules, |key| wanted.has_rule(key), repairs)?
            || self.named.walk(&mut audit.named, |key| wanted.has_named(key), repairs)?
            || self.ports.walk(&mut audit.ports, |key| wanted.has_port(&port_key(*key)), repairs)?
            || self.blocks.walk(
                &mut audit.blocks,
                |key| wanted.has_block(&block_key(*key), table),
                repairs,
            )?
            || self.peers.walk(&mut audit.peers, |key| wanted.has_peer(key, table), repairs)?;
        Ok(more)
    }

    /// How the kernel's row relates to a wanted one.
    fn compare(&self, op: &Op, table: Table) -> Result<Found, MapFailure> {
        fn of<V: PartialEq>(found: Option<V>, wanted: Option<V>) -> Found {
            match found {
                None => Found::Missing,
                found if found == wanted => Found::Right,
                Some(_) => Found::Wrong,
            }
        }
        Ok(match op {
            Op::Peer(address, row) => of(self.peers.get(&address.key(table))?, row.map(Peer::from)),
            Op::Block(prefix, class) => of(self.blocks.get(block(prefix.key(table)))?, class.map(|it| it.0)),
            Op::Ruleset(id, header) => of(self.rulesets.get(&id.0)?, header.as_deref().map(Ruleset::from)),
            Op::Rule(key, bits) => of(self.rules.get(&(*key).into())?, bits.map(|it| it.0)),
            Op::Named(key, bits) => of(self.named.get(&(*key).into())?, bits.map(|it| it.0)),
            Op::Port(key, bits) => of(self.ports.get(port((*key).into()))?, bits.map(|it| it.0)),
            Op::Endpoint(EndpointId(ifindex), row) => {
                of(self.subjects.get(*ifindex)?, row.map(Subject::from))
            }
        })
    }
}
