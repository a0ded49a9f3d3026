//! The maps by which the programs judge pods' packets: `PEERS`, `BLOCKS`, `RULESETS`, `RULES`, `NAMED` and
//! `PORTS`, and the subjects in `VIFS`. Their rows follow from the cluster's policies: [`crate::policy`]
//! knows all that are wanted.
//!
//! Two tables of rows exist at a time, so that a restarted agent can write all of its own before a pod is
//! judged by them. The key of `PEERS` and of `BLOCKS` names the table, and so does the highest bit of a
//! ruleset's number.

mod audit;
pub(in crate::dataplane) mod flows;
mod hash;
pub(in crate::dataplane) mod old_subjects;
mod run;
mod specs;
mod trie;
mod walk;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use agent_common::policy::{Bits, BlockKey, NamedKey, Peer, PeerKey, PortKey, RuleKey, Ruleset, Subject};
use ferrule_policy::{EndpointId, Op, RulesetId, Table};

use super::{
    subjects::Subjects,
    table::{MapFailure, MapSpec},
};
use crate::metrics::MapMetrics;
use hash::Hash;
use trie::{Prefix, Trie};

pub use audit::Audit;
pub(in crate::dataplane) use run::runs;
pub(in crate::dataplane) use specs::{BLOCKS, NAMED, PEERS, PORTS, RULES, RULESETS};

/// The open maps.
pub(in crate::dataplane) struct PolicyMaps {
    subjects: Arc<Subjects>,
    peers: Hash<PeerKey, Peer>,
    blocks: Trie<20, u32>,
    rulesets: Hash<u32, Ruleset>,
    rules: Hash<RuleKey, Bits>,
    named: Hash<NamedKey, Bits>,
    ports: Trie<8, Bits>,
}

/// The maps of this module.
pub(in crate::dataplane) const ALL: [MapSpec; 6] = [PEERS, BLOCKS, RULESETS, RULES, NAMED, PORTS];

// === impl PolicyMaps ===

impl PolicyMaps {
    /// Opens the pinned maps, and counts their rows.
    pub(in crate::dataplane) fn open(
        pins: &Path,
        subjects: Arc<Subjects>,
        metrics: &MapMetrics,
    ) -> Result<Self, MapFailure> {
        let maps = Self {
            subjects,
            peers: Hash::open(PEERS, pins, metrics)?,
            blocks: Trie::open(BLOCKS, pins, metrics)?,
            rulesets: Hash::open(RULESETS, pins, metrics)?,
            rules: Hash::open(RULES, pins, metrics)?,
            named: Hash::open(NAMED, pins, metrics)?,
            ports: Trie::open(PORTS, pins, metrics)?,
        };
        Ok(maps)
    }

    /// Makes one change to the rows of a table.
    pub(in crate::dataplane) fn apply(&mut self, op: &Op, table: Table) -> Result<(), MapFailure> {
        match op {
            Op::Peer(address, row) => self.peers.set(address.key(table), row.map(Peer::from)),
            Op::Block(prefix, class) => self.blocks.set(block(prefix.key(table)), class.map(|it| it.0)),
            Op::Ruleset(id, header) => self.rulesets.set(id.0, header.as_deref().map(Ruleset::from)),
            Op::Rule(key, bits) => self.rules.set((*key).into(), bits.map(|it| it.0)),
            Op::Named(key, bits) => self.named.set((*key).into(), bits.map(|it| it.0)),
            Op::Port(key, bits) => self.ports.set(port((*key).into()), bits.map(|it| it.0)),
            Op::Endpoint(EndpointId(ifindex), row) => self.subjects.set(*ifindex, row.map(Subject::from)),
        }
    }

    /// What judges each interface.
    pub(in crate::dataplane) fn subjects(&self) -> BTreeMap<EndpointId, Subject> {
        self.subjects.all()
    }

    /// Lets an interface pass everything, unless something judges it already.
    pub(in crate::dataplane) fn open_subject(&mut self, ifindex: u32) -> Result<(), MapFailure> {
        let open = Subject { ingress: Subject::OPEN, egress: Subject::OPEN, ..Subject::default() };
        self.judge(ifindex, open)
    }

    /// What judges an interface.
    pub(in crate::dataplane) fn subject(&self, ifindex: u32) -> Result<Option<Subject>, MapFailure> {
        self.subjects.get(ifindex)
    }

    /// Writes what judges an interface, unless something does already.
    pub(in crate::dataplane) fn judge(&mut self, ifindex: u32, subject: Subject) -> Result<(), MapFailure> {
        self.subjects.add(ifindex, subject)
    }

    /// Lets an interface pass nothing.
    pub(in crate::dataplane) fn close(&mut self, ifindex: u32) -> Result<(), MapFailure> {
        self.subjects.set(ifindex, None)
    }

    /// Removes what judges interfaces that are not live.
    pub(in crate::dataplane) fn retain(&mut self, is_live: impl Fn(u32) -> bool) -> Result<(), MapFailure> {
        self.subjects.retain(is_live)
    }

    /// Removes all rows of a table. No subject may read it any more.
    pub(in crate::dataplane) fn clear(&mut self, table: Table) -> Result<(), MapFailure> {
        let number = table.number();
        let is_other = |ruleset: u32| RulesetId(ruleset).table() != table;
        self.rulesets.retain(|id, _| is_other(*id))?;
        self.rules.retain(|key, _| is_other(key.ruleset))?;
        self.named.retain(|key, _| is_other(key.ruleset))?;
        self.ports.retain(|(_, data)| is_other(leading(data)))?;
        self.peers.retain(|key, _| key.table != number)?;
        self.blocks.retain(|(_, data)| leading(data) & !BlockKey::IPV4 != number)
    }

    /// Adds the rows of one of the maps that are pinned in another directory and missing here.
    pub(in crate::dataplane) fn copy(&mut self, map: &MapSpec, from: &Path) -> Result<(), MapFailure> {
        match map.name {
            name if name == PEERS.name => self.peers.copy_from(from),
            name if name == BLOCKS.name => self.blocks.copy_from(from),
            name if name == RULESETS.name => self.rulesets.copy_from(from),
            name if name == RULES.name => self.rules.copy_from(from),
            name if name == NAMED.name => self.named.copy_from(from),
            _ => self.ports.copy_from(from),
        }
    }
}

/// The number that the bytes of a prefix begin with.
fn leading<const N: usize>(data: &[u8; N]) -> u32 {
    data.first_chunk().copied().map_or(0, u32::from_ne_bytes)
}

fn block(BlockKey { prefix_len, table, address }: BlockKey) -> Prefix<20> {
    let mut data = [0; 20];
    let (first, rest) = data.split_at_mut(4);
    first.copy_from_slice(&table.to_ne_bytes());
    rest.copy_from_slice(&address);
    (prefix_len, data)
}

fn block_key((prefix_len, data): Prefix<20>) -> BlockKey {
    let mut address = [0; 16];
    address.copy_from_slice(data.split_at(4).1);
    BlockKey { prefix_len, table: leading(&data), address }
}

fn port(PortKey { prefix_len, ruleset, protocol, reserved, port: [high, low] }: PortKey) -> Prefix<8> {
    let [a, b, c, d] = ruleset.to_ne_bytes();
    (prefix_len, [a, b, c, d, protocol, reserved, high, low])
}

fn port_key((prefix_len, data): Prefix<8>) -> PortKey {
    let [.., protocol, reserved, high, low] = data;
    PortKey { prefix_len, ruleset: leading(&data), protocol, reserved, port: [high, low] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_tries_are_read_as_they_were_written() {
        let key = BlockKey { prefix_len: 136, table: BlockKey::IPV4 + 1, address: *b"0123456789abcdef" };
        assert_eq!(block_key(block(key)), key);
        let key = PortKey { prefix_len: 56, ruleset: 0x8000_0003, protocol: 6, reserved: 0, port: [31, 0] };
        assert_eq!(port_key(port(key)), key);
    }
}
