//! Rows in the form of the maps.

use agent_common::policy::{self as maps, BlockKey, Peer, PeerKey, Ruleset, Subject};

use crate::{
    Addr, EndpointRow, Header, Mask, NamedKey, PeerRow, PortKey, PortRange, Prefix, RuleKey, RulesetId, Table,
};

const _: () = assert!(maps::MAX_RANGES == crate::MAX_RANGES);
const _: () = assert!(RulesetId::OPEN.0 == Subject::OPEN);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClassId;

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
}
