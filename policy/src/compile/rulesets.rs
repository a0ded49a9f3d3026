//! The rulesets in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    bits::Bits,
    classes::{ClassKey, Classes},
    output::Output,
    predicate::PredicateId,
    predicates::Predicates,
};
use crate::{
    Direction, Mask, PolicyId, Resource,
    journal::{Map, Set, journaled},
    rows::{ClassId, EndpointId, Header, NamedKey, Op, PortKey, PortRange, RuleKey, RulesetId, Table},
    store::{NamedPort, PortName, Word},
};

/// What endpoints with the same ruleset have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RulesetKey {
    pub(crate) direction: Direction,
    /// The versions of the policies, in the order of judgement.
    pub(crate) policies: Vec<u32>,
    /// What the names in the policies mean at the subjects; empty for egress.
    pub(crate) ports: Vec<NamedPort>,
}

/// The rules that equal subjects share.
#[derive(Clone)]
pub(crate) struct Ruleset {
    pub(crate) key: Arc<RulesetKey>,
    pub(crate) header: Arc<Header>,
    /// The bits of which a predicate makes an address a peer.
    pub(crate) predicates: BTreeMap<PredicateId, Mask>,
    /// The bits that a port name matches.
    pub(crate) names: Vec<(PortName, Mask)>,
    /// Its policies, in the order of judgement.
    pub(crate) policies: Arc<[PolicyId]>,
    /// The rules of each bit: the policy's place in `policies`, and the rule's number.
    pub(crate) rules: Arc<[Vec<(usize, usize)>]>,
    /// The NetworkPolicies that isolate the subjects.
    pub(crate) isolating: Vec<PolicyId>,
    /// All ranges of ports, also if they are too many for the header.
    pub(crate) ranges: Vec<PortRange>,
    /// Whether this is a copy for the time of a change.
    pub(crate) is_frozen: bool,
    /// The first policy that was new when the ruleset was compiled, else any: to be named if rows do not fit.
    pub(crate) blame: Option<PolicyId>,
}

/// All rulesets.
#[derive(Default)]
pub(crate) struct Rulesets {
    ids: Map<Arc<RulesetKey>, RulesetId>,
    rulesets: Map<RulesetId, Arc<Ruleset>>,
    /// Which endpoints use them.
    users: Set<(RulesetId, EndpointId)>,
    /// Which use a port name of the destination.
    names: Set<(Word, RulesetId)>,
    next: u32,
}

journaled!(Rulesets { ids, rulesets, users, names });

// === impl Rulesets ===

impl Rulesets {
    pub(crate) fn id(&self, key: &RulesetKey) -> Option<RulesetId> {
        self.ids.get(key).copied()
    }

    pub(crate) fn get(&self, id: RulesetId) -> Option<&Arc<Ruleset>> {
        self.rulesets.get(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.rulesets.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = RulesetId> {
        self.rulesets.iter().map(|(id, _)| *id)
    }

    /// A free number. Without any, the rulesets are more than the map `RULESETS` takes: the change is
    /// refused, whatever number it gets.
    pub(crate) fn fresh(&mut self, table: Table) -> RulesetId {
        for _ in 0..RulesetId::LAST_NUMBER {
            // From 1 on: a subject of zeros means that nothing is known.
            self.next = self.next % RulesetId::LAST_NUMBER + 1;
            if !self.rulesets.contains(&RulesetId::new(self.next, table)) {
                break;
            }
        }
        RulesetId::new(self.next, table)
    }

    /// Adds a ruleset; its predicates are asked already, and classes exist.
    pub(crate) fn add(&mut self, id: RulesetId, ruleset: Ruleset, classes: &Classes, out: &mut Output) {
        for (name, _) in &ruleset.names {
            self.names.insert((name.name.clone(), id));
        }
        let ruleset = Arc::new(ruleset);
        if !ruleset.is_frozen {
            self.ids.insert(ruleset.key.clone(), id);
        }
        self.rulesets.insert(id, ruleset.clone());
        out.blame(ruleset.blame.as_ref());
        if ruleset.header.has_ports {
            for range in &ruleset.ranges {
                prefixes(id, range).for_each(|key| out.emit(Op::Port(key, Some(range.bits))));
            }
        }
        let asked = ruleset.predicates.keys().flat_map(|it| classes.asked(*it));
        let named = ruleset.names.iter().flat_map(|(name, _)| classes.naming(&name.name));
        let touched: BTreeSet<_> = asked.chain(named).collect();
        for class in touched {
            if let Some(key) = classes.key(class) {
                ruleset.write(id, class, key, out);
            }
        }
        out.emit(Op::Ruleset(id, Some(ruleset.header.clone())));
    }

    /// Removes the rows of a ruleset that no endpoint uses.
    pub(crate) fn remove(&mut self, id: RulesetId, out: &mut Output) -> Option<Arc<Ruleset>> {
        let ruleset = self.rulesets.remove(&id)?;
        if !ruleset.is_frozen {
            self.ids.remove(&ruleset.key);
        }
        for (name, _) in &ruleset.names {
            self.names.remove(&(name.name.clone(), id));
        }
        out.remove_ruleset(id);
        Some(ruleset)
    }

    pub(crate) fn set_user(&mut self, endpoint: EndpointId, id: RulesetId, uses: bool) {
        if id == RulesetId::OPEN {
            return;
        }
        if uses {
            self.users.insert((id, endpoint));
        } else {
            self.users.remove(&(id, endpoint));
        }
    }

    pub(crate) fn users(&self, id: RulesetId) -> impl Iterator<Item = EndpointId> {
        let range = (id, EndpointId(0))..=(id, EndpointId(u32::MAX));
        self.users.range(range).map(|(_, endpoint)| *endpoint)
    }

    /// Whether some ruleset uses a port name of the destination.
    pub(crate) fn uses_name(&self, name: &Word) -> bool {
        self.naming(name).next().is_some()
    }

    pub(crate) fn naming(&self, name: &Word) -> impl Iterator<Item = RulesetId> {
        let range = (name.clone(), RulesetId::MIN)..=(name.clone(), RulesetId::OPEN);
        self.names.range(range).map(|(_, id)| *id)
    }

    /// The rulesets that tell a class from one without predicates and names.
    pub(crate) fn asking(&self, key: &ClassKey, predicates: &Predicates) -> BTreeSet<RulesetId> {
        let asking = key.predicates.iter().flat_map(|it| predicates.asked_by(*it));
        asking.chain(key.ports.iter().flat_map(|port| self.naming(&port.name))).collect()
    }

    /// Writes the rows of a class for all rulesets that need some.
    pub(crate) fn write(&self, class: ClassId, key: &ClassKey, predicates: &Predicates, out: &mut Output) {
        for id in self.asking(key, predicates) {
            if let Some(ruleset) = self.get(id) {
                ruleset.write(id, class, key, out);
            }
        }
    }
}

// === impl Ruleset ===

impl Ruleset {
    pub(crate) fn new(
        key: RulesetKey,
        bits: &Bits,
        predicates: BTreeMap<PredicateId, Mask>,
        policies: &[PolicyId],
        blame: Option<PolicyId>,
    ) -> Self {
        let mut names: BTreeMap<PortName, Mask> = BTreeMap::new();
        for (n, bit) in (0..).zip(&bits.bits) {
            for name in &bit.ports.names {
                *names.entry(name.clone()).or_default() |= Mask::bit(n);
            }
        }
        Self {
            key: Arc::new(key),
            header: Arc::new(bits.header.clone()),
            predicates,
            names: names.into_iter().collect(),
            policies: policies.into(),
            rules: bits.bits.iter().map(|bit| bit.rules.clone()).collect(),
            isolating: policies.iter().filter(|it| it.namespace.is_some()).cloned().collect(),
            ranges: if bits.header.has_ports { bits.ranges.clone() } else { Vec::new() },
            is_frozen: false,
            blame,
        }
    }

    /// The bits whose peers contain a class.
    pub(crate) fn bits(&self, key: &ClassKey) -> Mask {
        let default = self.header.default_bits(key.is_pod);
        key.predicates.iter().filter_map(|it| self.predicates.get(it)).fold(default, |bits, it| bits | *it)
    }

    /// The bits with a name that means a port at destinations of a class.
    pub(crate) fn named(&self, key: &ClassKey) -> BTreeMap<(u8, u16), Mask> {
        let mut rows = BTreeMap::new();
        for port in &key.ports {
            let bits = self.names.iter().filter(|(name, _)| name.means(port));
            for (_, bits) in bits {
                *rows.entry((port.protocol.number(), port.number)).or_default() |= *bits;
            }
        }
        rows
    }

    pub(crate) fn write(&self, id: RulesetId, class: ClassId, key: &ClassKey, out: &mut Output) {
        out.blame(self.blame.as_ref());
        for ((protocol, port), bits) in self.named(key) {
            out.emit(Op::Named(NamedKey { ruleset: id, class, protocol, port }, Some(bits)));
        }
        let bits = self.bits(key);
        let row = (bits != self.header.default_bits(key.is_pod)).then_some(bits);
        out.emit(Op::Rule(RuleKey { ruleset: id, class }, row));
    }
}

/// The prefixes that make up a range.
fn prefixes(ruleset: RulesetId, range: &PortRange) -> impl Iterator<Item = PortKey> {
    let (mut next, end) = (u32::from(range.first), u32::from(range.last) + 1);
    let protocol = range.protocol;
    std::iter::from_fn(move || {
        let left = end.checked_sub(next).filter(|left| *left > 0)?;
        let aligned = next.trailing_zeros().min(16);
        let size = aligned.min(left.ilog2());
        let port = u16::try_from(next).ok()?;
        next += 1 << size;
        Some(PortKey { ruleset, protocol, port, len: u8::try_from(16 - size).ok()? })
    })
}

impl Resource {
    /// The map of a row.
    pub(crate) fn of(op: &Op) -> Self {
        match op {
            Op::Peer(..) => Self::Peers,
            Op::Block(..) => Self::Blocks,
            Op::Ruleset(..) => Self::Rulesets,
            Op::Rule(..) => Self::Rules,
            Op::Named(..) => Self::Named,
            Op::Port(..) => Self::Ports,
            Op::Endpoint(..) => Self::Subjects,
        }
    }
}
