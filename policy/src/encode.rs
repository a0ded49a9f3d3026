//! Rows in the form of the maps.

use agent_common::policy::{self as maps, BlockKey, Peer, PeerKey, Ruleset, Subject};

use crate::{
    Addr, ClassId, EndpointId, EndpointRow, Header, Mask, NamedKey, PeerRow, PortKey, PortRange, Prefix,
    Rows, RuleKey, RulesetId, Table,
};

const _: () = assert!(maps::MAX_RANGES == crate::MAX_RANGES);
const _: () = assert!(RulesetId::OPEN.0 == Subject::OPEN);
const _: () = assert!(RulesetId::LAST_NUMBER == Subject::LAST_RULESET);
const _: () = assert!(EndpointRow::LAST_EPOCH == Subject::LAST_EPOCH);

// === impl Table ===

impl Table {
    /// The number in the keys of maps.
    pub fn number(self) -> u32 {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }
}

// === impl Addr ===

impl Addr {
    /// The key in `PEERS`.
    pub fn key(self, table: Table) -> PeerKey {
        PeerKey { address: self.octets(), table: table.number() }
    }
}

// === impl PeerRow ===

impl From<PeerRow> for Peer {
    fn from(PeerRow { class, is_pod, is_service, is_own_node }: PeerRow) -> Self {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let flags =
            flag(is_pod, Self::POD) | flag(is_service, Self::SERVICE) | flag(is_own_node, Self::OWN_NODE);
        Self { class: class.0, flags }
    }
}

// === impl Prefix ===

impl Prefix {
    /// The key in `BLOCKS`.
    pub fn key(self, table: Table) -> BlockKey {
        let (len, family) = if self.addr.is_v4() { (96, BlockKey::IPV4) } else { (0, 0) };
        let prefix_len = 32 + len + u32::from(self.len);
        BlockKey { prefix_len, table: table.number() + family, address: self.addr.octets() }
    }
}

// === impl Header ===

impl From<&Header> for Ruleset {
    fn from(header: &Header) -> Self {
        let below = |end: u16| (0..end).fold(Mask::NONE, |mask, bit| mask | Mask::bit(bit));
        let from = |start: u16| (start..Mask::BITS).fold(Mask::NONE, |mask, bit| mask | Mask::bit(bit));
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let range = |it: PortRange| maps::PortRange {
            bits: it.bits.0,
            first: it.first,
            last: it.last,
            protocol: it.protocol,
            reserved: [0; 3],
        };
        Self {
            any: header.any.0,
            any_pod: header.any_pod.0,
            unknown: header.unknown.0,
            any_port: header.any_port.0,
            accept: header.accept.0,
            pass: header.pass.0,
            admin: below(header.admin_end).0,
            baseline: from(header.baseline_start).0,
            flags: flag(header.isolates, Self::ISOLATES)
                | flag(header.has_names, Self::HAS_NAMES)
                | flag(header.has_ports, Self::HAS_PORTS),
            used: u32::from(header.used),
            ranges: header.ranges.map(range),
        }
    }
}

// === impl RuleKey ===

impl From<RuleKey> for maps::RuleKey {
    fn from(RuleKey { ruleset, class }: RuleKey) -> Self {
        Self { ruleset: ruleset.0, class: class.0 }
    }
}

// === impl NamedKey ===

impl From<NamedKey> for maps::NamedKey {
    fn from(NamedKey { ruleset, class, protocol, port }: NamedKey) -> Self {
        Self { ruleset: ruleset.0, class: class.0, port, protocol, reserved: 0 }
    }
}

// === impl PortKey ===

impl From<PortKey> for maps::PortKey {
    fn from(PortKey { ruleset, protocol, port, len }: PortKey) -> Self {
        let prefix_len = 48 + u32::from(len);
        Self { prefix_len, ruleset: ruleset.0, protocol, reserved: 0, port: port.to_be_bytes() }
    }
}

// === impl EndpointRow ===

impl From<EndpointRow> for Subject {
    fn from(EndpointRow { ingress, egress, table, epoch, audit }: EndpointRow) -> Self {
        let flags = if audit { Self::AUDIT } else { 0 };
        Self { ingress: ingress.0, egress: egress.0, table: table.number(), epoch, flags }
    }
}

// === impl Rows ===

impl Rows {
    /// Whether `VIFS` should have a subject of the interface.
    pub fn has_subject(&self, ifindex: u32) -> bool {
        self.endpoints.contains(&EndpointId(ifindex))
    }

    /// Whether `PEERS` should have a row with the key.
    pub fn has_peer(&self, key: &PeerKey, table: Table) -> bool {
        key.table == table.number() && self.peers.contains(&Addr::from_octets(key.address))
    }

    /// Whether `BLOCKS` should have a row with the key.
    pub fn has_block(&self, key: &BlockKey, table: Table) -> bool {
        let addr = Addr::from_octets(key.address);
        let len = key.prefix_len.checked_sub(if addr.is_v4() { 32 + 96 } else { 32 });
        let prefix = len.and_then(|len| len.try_into().ok()).map(|len| Prefix { addr, len });
        prefix.is_some_and(|it| it.key(table) == *key && self.blocks.contains(&it))
    }

    /// Whether `RULESETS` should have a row of the ruleset.
    pub fn has_ruleset(&self, id: u32) -> bool {
        self.rulesets.contains(&RulesetId(id))
    }

    /// Whether `RULES` should have a row with the key.
    pub fn has_rule(&self, key: &maps::RuleKey) -> bool {
        self.rules.contains(&RuleKey { ruleset: RulesetId(key.ruleset), class: ClassId(key.class) })
    }

    /// Whether `NAMED` should have a row with the key.
    pub fn has_named(&self, key: &maps::NamedKey) -> bool {
        let &maps::NamedKey { ruleset, class, port, protocol, .. } = key;
        let ours = NamedKey { ruleset: RulesetId(ruleset), class: ClassId(class), protocol, port };
        maps::NamedKey::from(ours) == *key && self.named.contains(&ours)
    }

    /// Whether `PORTS` should have a row with the key.
    pub fn has_port(&self, key: &maps::PortKey) -> bool {
        let &maps::PortKey { prefix_len, ruleset, protocol, port, .. } = key;
        let Some(Ok(len)) = prefix_len.checked_sub(48).map(u8::try_from) else { return false };
        let ours = PortKey { ruleset: RulesetId(ruleset), protocol, port: u16::from_be_bytes(port), len };
        maps::PortKey::from(ours) == *key && self.ports.contains(&ours)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::Op;

    #[test]
    fn each_property_of_an_address_has_its_flag() {
        let row = PeerRow { class: ClassId(7), is_pod: false, is_service: false, is_own_node: false };
        for (row, flags) in [
            (row, 0),
            (PeerRow { is_pod: true, ..row }, Peer::POD),
            (PeerRow { is_service: true, ..row }, Peer::SERVICE),
            (PeerRow { is_service: true, is_own_node: true, ..row }, Peer::SERVICE | Peer::OWN_NODE),
        ] {
            assert_eq!(Peer::from(row), Peer { class: 7, flags });
        }
    }

    #[test]
    fn a_map_should_have_the_keys_of_the_rows_and_no_other() {
        let mut rows = Rows::default();
        let addresses: [Addr; 2] = ["10.0.0.1", "fd00::1"].map(|it| it.parse::<IpAddr>().unwrap().into());
        let peer = PeerRow { class: ClassId(7), is_pod: true, is_service: false, is_own_node: false };
        let [ruleset, class] = [RulesetId::new(3, Table::B).0, 9];
        let (id, of_class) = (RulesetId(ruleset), ClassId(class));
        let named = NamedKey { ruleset: id, class: of_class, protocol: 6, port: 80 };
        let port = PortKey { ruleset: id, protocol: 17, port: 0x1f00, len: 8 };
        for addr in addresses {
            rows.apply(&Op::Peer(addr, Some(peer)));
            rows.apply(&Op::Block(Prefix::new(addr, 8), Some(of_class)));
        }
        rows.apply(&Op::Named(named, Some(Mask::NONE)));
        rows.apply(&Op::Port(port, Some(Mask::NONE)));
        rows.apply(&Op::Rule(RuleKey { ruleset: id, class: of_class }, Some(Mask::NONE)));
        for addr in addresses {
            let block = Prefix::new(addr, 8).key(Table::B);
            assert!(rows.has_peer(&addr.key(Table::B), Table::B) && rows.has_block(&block, Table::B));
            assert!(!rows.has_peer(&addr.key(Table::A), Table::B) && !rows.has_block(&block, Table::A));
            let longer = BlockKey { prefix_len: block.prefix_len + 1, ..block };
            let other = BlockKey { table: block.table ^ BlockKey::IPV4, ..block };
            let short = BlockKey { prefix_len: 3, ..block };
            assert!([longer, other, short].iter().all(|it| !rows.has_block(it, Table::B)));
        }
        let key = maps::NamedKey::from(named);
        assert!(rows.has_named(&key) && !rows.has_named(&maps::NamedKey { reserved: 1, ..key }));
        let key = maps::PortKey::from(port);
        assert!(rows.has_port(&key) && !rows.has_port(&maps::PortKey { prefix_len: 57, ..key }));
        assert!(!rows.has_port(&maps::PortKey { prefix_len: 4, ..key }));
        assert!(rows.has_rule(&maps::RuleKey { ruleset, class }));
        assert!(!rows.has_rule(&maps::RuleKey { ruleset, class: 8 }));
        assert!(!rows.has_ruleset(ruleset) && !rows.has_subject(1));
    }
}
