//! The maps of compiled policies.

use agent_common::policy::{Bits, NamedKey, Peer, PeerKey, RuleKey, Ruleset};
use aya::{
    Ebpf,
    maps::{HashMap, LpmTrie, MapData, lpm_trie::Key},
};
use ferrule_policy::{Addr, Op, PortKey, Prefix, Table};

use crate::program::take_map;

/// All maps of rules, but for `SUBJECTS`.
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

    /// Writes a row of a table that the compiler has made, other than one of `SUBJECTS`.
    ///
    /// # Errors
    /// If the kernel refuses the row.
    pub fn write(&mut self, table: Table, op: &Op) -> anyhow::Result<()> {
        match op {
            Op::Peer(addr, Some(row)) => self.add_peer(table, *addr, (*row).into())?,
            Op::Block(prefix, Some(class)) => self.add_block(table, *prefix, class.0)?,
            Op::Ruleset(id, Some(header)) => self.rulesets.insert(id.0, Ruleset::from(&**header), 0)?,
            Op::Rule(key, Some(bits)) => self.rules.insert(RuleKey::from(*key), bits.0, 0)?,
            Op::Named(key, Some(bits)) => self.named.insert(NamedKey::from(*key), bits.0, 0)?,
            Op::Port(key, Some(bits)) => self.add_port(*key, bits.0)?,
            other => anyhow::bail!("not a new row of a rule: {other:?}"),
        }
        Ok(())
    }

    /// Adds a row of `PEERS`.
    ///
    /// # Errors
    /// If the kernel refuses the row.
    pub fn add_peer(&mut self, table: Table, addr: Addr, row: Peer) -> anyhow::Result<()> {
        Ok(self.peers.insert(addr.key(table), row, 0)?)
    }

    /// Adds a row of `BLOCKS`.
    ///
    /// # Errors
    /// If the kernel refuses the row.
    pub fn add_block(&mut self, table: Table, prefix: Prefix, class: u32) -> anyhow::Result<()> {
        let key = prefix.key(table);
        let mut data = [0; 20];
        data.iter_mut()
            .zip(key.table.to_ne_bytes().into_iter().chain(key.address))
            .for_each(|(to, from)| *to = from);
        Ok(self.blocks.insert(&Key::new(key.prefix_len, data), class, 0)?)
    }

    fn add_port(&mut self, key: PortKey, bits: Bits) -> anyhow::Result<()> {
        let key = agent_common::policy::PortKey::from(key);
        let [a, b, c, d] = key.ruleset.to_ne_bytes();
        let [high, low] = key.port;
        let data = [a, b, c, d, key.protocol, key.reserved, high, low];
        Ok(self.ports.insert(&Key::new(key.prefix_len, data), bits, 0)?)
    }
}
