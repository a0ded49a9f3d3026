//! The rows that maps contain, as far as they judge a packet: read by key, as the BPF program does.

use std::sync::Arc;

use agent_common::policy::{self as maps, BlockKey, Peer, PeerKey, Ruleset, Subject};

use crate::{
    Addr, ClassId, Direction, EndpointId, EndpointRow, Header, Mask, NamedKey, Op, Packet, PeerRow, PortKey,
    PortRange, Prefix, Rows, RuleKey, RulesetId, Table,
};

/// Reads rows by key; `BLOCKS` and `PORTS` by the longest prefix.
pub trait Maps {
    /// Why a map cannot be read.
    type Error;

    /// The subject in a row of `VIFS`.
    fn subject(&self, endpoint: EndpointId) -> Result<Option<Subject>, Self::Error>;
    /// A row of `RULESETS`.
    fn ruleset(&self, ruleset: u32) -> Result<Option<Ruleset>, Self::Error>;
    /// A row of `PEERS`.
    fn peer(&self, key: PeerKey) -> Result<Option<Peer>, Self::Error>;
    /// A row of `BLOCKS`.
    fn block(&self, key: BlockKey) -> Result<Option<u32>, Self::Error>;
    /// A row of `RULES`.
    fn rule(&self, key: maps::RuleKey) -> Result<Option<maps::Bits>, Self::Error>;
    /// A row of `NAMED`.
    fn named(&self, key: maps::NamedKey) -> Result<Option<maps::Bits>, Self::Error>;
    /// A row of `PORTS`.
    fn port(&self, key: maps::PortKey) -> Result<Option<maps::Bits>, Self::Error>;
}

/// The rows that judge one packet at one of its ends.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// For [`lookup`](crate::lookup()). Prefixes are as long as the keys that were asked.
    pub rows: Rows,
    /// The ruleset of the packet's direction.
    pub ruleset: Option<RulesetId>,
    /// The row of the other end.
    pub peer: Option<Peer>,
    /// Whether what is denied passes.
    pub is_audited: bool,
}

/// Reads what judges a packet at one of its ends.
///
/// # Errors
/// If a map cannot be read.
pub fn recorded<M: Maps>(maps: &M, packet: &Packet) -> Result<Recorded, M::Error> {
    let mut found = Recorded::default();
    let Some(subject) = maps.subject(packet.endpoint)? else { return Ok(found) };
    let endpoint = EndpointRow::from(&subject);
    found.rows.apply(&Op::Endpoint(packet.endpoint, Some(endpoint)));
    found.is_audited = subject.flags & Subject::AUDIT != 0;
    let number = match packet.direction {
        Direction::Ingress => subject.ingress,
        Direction::Egress => subject.egress,
    };
    let ruleset = RulesetId(number);
    found.ruleset = Some(ruleset);
    let addr = Addr::from(packet.peer);
    found.peer = maps.peer(addr.key(endpoint.table))?;
    if ruleset == RulesetId::OPEN {
        return Ok(found);
    }
    let Some(row) = maps.ruleset(number)? else { return Ok(found) };
    let header = Header::from(&row);
    let class = match found.peer {
        Some(peer) => {
            found.rows.apply(&Op::Peer(addr, Some(PeerRow::from(peer))));
            peer.class
        }
        None => {
            let prefix = Prefix::new(addr, u8::MAX);
            let class = maps.block(prefix.key(endpoint.table))?;
            found.rows.apply(&Op::Block(prefix, class.map(ClassId)));
            class.unwrap_or(ClassId::NONE.0)
        }
    };
    let key = RuleKey { ruleset, class: ClassId(class) };
    found.rows.apply(&Op::Rule(key, maps.rule(key.into())?.map(Mask)));
    let (protocol, port) = (packet.protocol, packet.port);
    if header.has_names {
        let key = NamedKey { ruleset, class: ClassId(class), protocol, port };
        found.rows.apply(&Op::Named(key, maps.named(key.into())?.map(Mask)));
    }
    if header.has_ports {
        let key = PortKey { ruleset, protocol, port, len: 16 };
        found.rows.apply(&Op::Port(key, maps.port(key.into())?.map(Mask)));
    }
    found.rows.apply(&Op::Ruleset(ruleset, Some(Arc::new(header))));
    Ok(found)
}

// === impl EndpointRow ===

impl From<&Subject> for EndpointRow {
    fn from(subject: &Subject) -> Self {
        Self {
            ingress: RulesetId(subject.ingress),
            egress: RulesetId(subject.egress),
            table: if subject.table == Table::A.number() { Table::A } else { Table::B },
            epoch: subject.epoch,
            audit: subject.flags & Subject::AUDIT != 0,
        }
    }
}

// === impl PeerRow ===

impl From<Peer> for PeerRow {
    fn from(Peer { class, flags }: Peer) -> Self {
        let has = |flag| flags & flag != 0;
        Self {
            class: ClassId(class),
            is_pod: has(Peer::POD),
            is_service: has(Peer::SERVICE),
            is_own_node: has(Peer::OWN_NODE),
        }
    }
}

// === impl Header ===

impl From<&Ruleset> for Header {
    fn from(row: &Ruleset) -> Self {
        let count = |bits: maps::Bits| bits.iter().map(|word| word.count_ones()).sum::<u32>();
        let bits = |count: u32| u16::try_from(count).unwrap_or(Mask::BITS);
        let has = |flag| row.flags & flag != 0;
        let range = |it: maps::PortRange| PortRange {
            bits: Mask(it.bits),
            first: it.first,
            last: it.last,
            protocol: it.protocol,
        };
        Self {
            any: Mask(row.any),
            any_pod: Mask(row.any_pod),
            unknown: Mask(row.unknown),
            any_port: Mask(row.any_port),
            accept: Mask(row.accept),
            pass: Mask(row.pass),
            admin_end: bits(count(row.admin)),
            baseline_start: Mask::BITS.saturating_sub(bits(count(row.baseline))),
            isolates: has(Ruleset::ISOLATES),
            has_names: has(Ruleset::HAS_NAMES),
            has_ports: has(Ruleset::HAS_PORTS),
            used: u8::try_from(row.used).unwrap_or(u8::MAX),
            ranges: row.ranges.map(range),
        }
    }
}
