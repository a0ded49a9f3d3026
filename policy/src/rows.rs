//! The rows of the maps, and the changes to them.
//!
//! All rows have a fixed size, and keys contain no pointers, so that a `repr(C)` type can mirror each.

use std::{ops::Bound, sync::Arc};

use crate::{
    Addr, Mask, Prefix, Resource,
    journal::{Map, Put},
};

/// The number of a class: the addresses for which the same predicates are true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

/// The number of a ruleset. The highest bit is the table's, so that two generations of rows never mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulesetId(pub u32);

/// The number of a pod's interface on this node; chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

/// Which of two sets of `PEERS` and `BLOCKS` an endpoint reads: a restarted agent fills the other one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The first.
    #[default]
    A,
    /// The second.
    B,
}

/// Value of `PEERS`: what is known of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRow {
    /// The class, blocks included.
    pub class: ClassId,
    /// Whether the address is a pod's.
    pub is_pod: bool,
    /// Whether the address is a Service's: the host translates packets to it, which are judged afterwards. An
    /// address of a pod is none.
    pub is_service: bool,
    /// Whether the address is one of this node.
    pub is_own_node: bool,
}

/// Key of `RULES` (value: the bits whose peers contain the class). A missing row means
/// [`Header::default_bits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleKey {
    /// The ruleset.
    pub ruleset: RulesetId,
    /// The peer's class.
    pub class: ClassId,
}

/// Key of `NAMED` (value: the bits with a port name that means this port at destinations of the class).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedKey {
    /// The ruleset, of egress.
    pub ruleset: RulesetId,
    /// The destination's class.
    pub class: ClassId,
    /// As in the IP header.
    pub protocol: u8,
    /// The destination port.
    pub port: u16,
}

/// Key of `PORTS` (value: the bits whose ports contain the prefix), a trie on the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortKey {
    /// The ruleset.
    pub ruleset: RulesetId,
    /// As in the IP header.
    pub protocol: u8,
    /// Without what is behind `len`.
    pub port: u16,
    /// Bits of `port` that count: 0 to 16.
    pub len: u8,
}

/// Value of `RULESETS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The bits with any peer.
    pub any: Mask,
    /// The bits with any pod as peer.
    pub any_pod: Mask,
    /// The bits that deny or pass pods by labels: they deny an address that may be a pod of unknown labels.
    pub unknown: Mask,
    /// The bits with any port.
    pub any_port: Mask,
    /// The bits that accept.
    pub accept: Mask,
    /// The bits that pass to the next tier. What neither accepts nor passes denies.
    pub pass: Mask,
    /// The bits below are of the admin tier.
    pub admin_end: u16,
    /// The bits from here on are of the baseline tier.
    pub baseline_start: u16,
    /// Whether a NetworkPolicy isolates the subjects in this direction.
    pub isolates: bool,
    /// Whether `NAMED` has rows of the ruleset.
    pub has_names: bool,
    /// Whether the ports are in `PORTS`, because they are too many for `ranges`.
    pub has_ports: bool,
    /// How many of `ranges` count.
    pub used: u8,
    /// Disjoint.
    pub ranges: [PortRange; MAX_RANGES],
}

/// Ports of one protocol, and the bits that they match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortRange {
    /// The bits.
    pub bits: Mask,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
    /// As in the IP header.
    pub protocol: u8,
}

/// The subject of an endpoint: what judges it. One store switches both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointRow {
    /// Judges what the pod receives.
    pub ingress: RulesetId,
    /// Judges what the pod sends.
    pub egress: RulesetId,
    /// Which `PEERS` and `BLOCKS` to read.
    pub table: Table,
    /// Another one whenever a live flow may be judged otherwise.
    pub epoch: u32,
    /// Whether what is denied is recorded, and passes.
    pub audit: bool,
}

/// A row that is set, or removed if it has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Of `PEERS`.
    Peer(Addr, Option<PeerRow>),
    /// Of `BLOCKS`.
    Block(Prefix, Option<ClassId>),
    /// Of `RULESETS`.
    Ruleset(RulesetId, Option<Arc<Header>>),
    /// Of `RULES`.
    Rule(RuleKey, Option<Mask>),
    /// Of `NAMED`.
    Named(NamedKey, Option<Mask>),
    /// Of `PORTS`.
    Port(PortKey, Option<Mask>),
    /// A subject in `VIFS`.
    Endpoint(EndpointId, Option<EndpointRow>),
}

/// Changes in an order that is safe after every step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// To be applied one after the other.
    pub ops: Vec<Op>,
}

/// What the maps contain.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    pub(crate) peers: Map<Addr, PeerRow>,
    pub(crate) blocks: Map<Prefix, ClassId>,
    pub(crate) rulesets: Map<RulesetId, Arc<Header>>,
    pub(crate) rules: Map<RuleKey, Mask>,
    pub(crate) named: Map<NamedKey, Mask>,
    pub(crate) ports: Map<PortKey, Mask>,
    pub(crate) endpoints: Map<EndpointId, EndpointRow>,
}

crate::journal::journaled!(Rows { peers, blocks, rulesets, rules, named, ports, endpoints });

/// Ranges in a [`Header`].
pub const MAX_RANGES: usize = 24;

// === impl ClassId ===

impl ClassId {
    /// No predicate is true.
    pub const NONE: Self = Self(0);
}

// === impl EndpointRow ===

impl EndpointRow {
    /// The largest epoch: 31 bits, as the map has them.
    pub(crate) const LAST_EPOCH: u32 = u32::MAX >> 1;
}

// === impl RulesetId ===

impl RulesetId {
    /// No policy applies; has no rows.
    pub const OPEN: Self = Self(u32::MAX);
    /// The largest number in a table: 15 bits, all ones for [`Self::OPEN`].
    pub(crate) const LAST_NUMBER: u32 = 0x7ffe;
    pub(crate) const MIN: Self = Self(0);
    const TABLE_B: u32 = 1 << 31;

    /// The number in a table.
    pub(crate) fn new(number: u32, table: Table) -> Self {
        Self(number | if table == Table::B { Self::TABLE_B } else { 0 })
    }

    /// The table of the rows; of [`Self::OPEN`], which has none, the second.
    pub fn table(self) -> Table {
        if self.0 & Self::TABLE_B == 0 { Table::A } else { Table::B }
    }
}

// === impl Table ===

impl Table {
    /// The one that is not this one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

// === impl Header ===

impl Header {
    /// The bits whose peers contain an address of a class without a row in `RULES`.
    pub fn default_bits(&self, is_pod: bool) -> Mask {
        if is_pod { self.any | self.any_pod } else { self.any }
    }
}

// === impl Op ===

impl Op {
    /// The number of the map in the order of [`Rows::all`].
    pub fn map(&self) -> usize {
        match self {
            Self::Ruleset(..) => 0,
            Self::Rule(..) => 1,
            Self::Named(..) => 2,
            Self::Port(..) => 3,
            Self::Block(..) => 4,
            Self::Peer(..) => 5,
            Self::Endpoint(..) => 6,
        }
    }
}

// === impl Rows ===

impl Rows {
    /// Applies one change.
    pub fn apply(&mut self, op: &Op) {
        self.put(op, usize::MAX);
        self.commit();
    }

    /// Makes one change. A map with so many rows gets no further one.
    pub(crate) fn put(&mut self, op: &Op, capacity: usize) -> Put {
        match op {
            Op::Peer(key, value) => self.peers.put(key, value.as_ref(), capacity),
            Op::Block(key, value) => self.blocks.put(key, value.as_ref(), capacity),
            Op::Ruleset(key, value) => self.rulesets.put(key, value.as_ref(), capacity),
            Op::Rule(key, value) => self.rules.put(key, value.as_ref(), capacity),
            Op::Named(key, value) => self.named.put(key, value.as_ref(), capacity),
            Op::Port(key, value) => self.ports.put(key, value.as_ref(), capacity),
            Op::Endpoint(key, value) => self.endpoints.put(key, value.as_ref(), capacity),
        }
    }

    /// All rows, as changes to empty maps: rows first, endpoints last.
    pub fn all(&self) -> impl Iterator<Item = Op> {
        self.after(None)
    }

    /// The rows behind one, in the order of [`Self::all`]. The one may be gone.
    pub fn after(&self, last: Option<&Op>) -> impl Iterator<Item = Op> {
        fn rest<'a, K: Ord + Clone, V: Clone>(
            map: &'a Map<K, V>,
            number: usize,
            (of_last, key): (usize, Option<K>),
        ) -> impl Iterator<Item = (K, Option<V>)> + 'a {
            let from = key.map_or(Bound::Unbounded, Bound::Excluded);
            let rows = (number >= of_last).then(|| map.range((from, Bound::Unbounded)));
            rows.into_iter().flatten().map(|(key, row)| (key.clone(), Some(row.clone())))
        }
        macro_rules! rest {
            ($number:literal, $rows:ident, $op:ident) => {{
                let key = last.and_then(|op| if let Op::$op(key, _) = op { Some(*key) } else { None });
                rest(&self.$rows, $number, (last.map_or(0, Op::map), key)).map(|(key, row)| Op::$op(key, row))
            }};
        }
        rest!(0, rulesets, Ruleset)
            .chain(rest!(1, rules, Rule))
            .chain(rest!(2, named, Named))
            .chain(rest!(3, ports, Port))
            .chain(rest!(4, blocks, Block))
            .chain(rest!(5, peers, Peer))
            .chain(rest!(6, endpoints, Endpoint))
    }

    /// The number of rows of a map.
    pub fn count(&self, map: Resource) -> usize {
        match map {
            Resource::Peers => self.peers.len(),
            Resource::Blocks => self.blocks.len(),
            Resource::Rulesets => self.rulesets.len(),
            Resource::Rules => self.rules.len(),
            Resource::Named => self.named.len(),
            Resource::Ports => self.ports.len(),
            Resource::Subjects => self.endpoints.len(),
            Resource::Bits | Resource::Matches => 0,
        }
    }

    /// The row of an endpoint.
    pub fn endpoint(&self, id: EndpointId) -> Option<&EndpointRow> {
        self.endpoints.get(&id)
    }

    /// The row of an address.
    pub fn peer(&self, addr: Addr) -> Option<&PeerRow> {
        self.peers.get(&addr)
    }
}
