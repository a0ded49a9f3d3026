//! The maps of compiled policies.

use agent_common::policy::{Bits, NamedKey, Peer, PeerKey, RuleKey, Ruleset};
use aya::{
    Ebpf,
    maps::{HashMap, LpmTrie, MapData, lpm_trie::Key},
};
use ferrule_policy::{Addr, Op, PortKey, Prefix, Table};

use crate::program::take_map;

/// All maps of rules.
pub struct Rules {
    pub peers: HashMap<MapData, PeerKey, Peer>,
    pub rulesets: HashMap<MapData, u32, Ruleset>,
    pub rules: HashMap<MapData, RuleKey, Bits>,
    named: HashMap<MapData, NamedKey, Bits>,
    blocks: LpmTrie<MapData, [u8; 20], u32>,
    ports: LpmTrie<MapData, [u8; 8], Bits>,
}

// === impl Rules ===

impl Rules {
    pub(crate) fn take(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        Ok(Self {
            peers: take_map(ebpf, "PEERS")?,
            rulesets: take_map(ebpf, "RULESETS")?,
            rules: take_map(ebpf, "RULES")?,
            named: take_map(ebpf, "NAMED")?,
            blocks: take_map(ebpf, "BLOCKS")?,
            ports: take_map(ebpf, "PORTS")?,
        })
    }

    /// Sets or removes a row that the compiler has made, other than a subject.
    ///
    /// # Errors
    /// If the kernel refuses the change.
    pub fn apply(&mut self, table: Table, op: &Op) -> anyhow::Result<()> {
        match op {
            Op::Peer(addr, Some(row)) => self.add_peer(table, *addr, (*row).into())?,
            Op::Peer(addr, None) => self.peers.remove(&addr.key(table))?,
            Op::Block(prefix, Some(class)) => self.blocks.insert(&block(table, *prefix), &class.0, 0)?,
            Op::Block(prefix, None) => self.blocks.remove(&block(table, *prefix))?,
            Op::Ruleset(id, Some(header)) => self.rulesets.insert(&id.0, &Ruleset::from(&**header), 0)?,
            Op::Ruleset(id, None) => self.rulesets.remove(&id.0)?,
            Op::Rule(key, Some(bits)) => self.rules.insert(&RuleKey::from(*key), &bits.0, 0)?,
            Op::Rule(key, None) => self.rules.remove(&RuleKey::from(*key))?,
            Op::Named(key, Some(bits)) => self.named.insert(&NamedKey::from(*key), &bits.0, 0)?,
            Op::Named(key, None) => self.named.remove(&NamedKey::from(*key))?,
            Op::Port(key, Some(bits)) => self.ports.insert(&port(*key), &bits.0, 0)?,
            Op::Port(key, None) => self.ports.remove(&port(*key))?,
            Op::Endpoint(..) => anyhow::bail!("not a row of a rule: {op:?}"),
        }
        Ok(())
    }

    /// Adds a row of `PEERS`.
    ///
    /// # Errors
    /// If the kernel refuses the row.
    pub fn add_peer(&mut self, table: Table, addr: Addr, row: Peer) -> anyhow::Result<()> {
        Ok(self.peers.insert(&addr.key(table), &row, 0)?)
    }
}

fn block(table: Table, prefix: Prefix) -> Key<[u8; 20]> {
    let key = prefix.key(table);
    let bytes = key.table.to_ne_bytes().into_iter().chain(key.address);
    let mut data = [0; 20];
    data.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    Key::new(key.prefix_len, data)
}

fn port(key: PortKey) -> Key<[u8; 8]> {
    let key = agent_common::policy::PortKey::from(key);
    let [a, b, c, d] = key.ruleset.to_ne_bytes();
    let [high, low] = key.port;
    Key::new(key.prefix_len, [a, b, c, d, key.protocol, key.reserved, high, low])
}
