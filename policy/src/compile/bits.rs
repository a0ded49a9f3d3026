//! Rules become bits.
//!
//! The bits of a ruleset are in the order of judgement. Rules of one tier and action that follow each other
//! are a union, in which the order is of no matter: there, rules with equal ports share a bit. So all rules
//! of NetworkPolicies with equal ports do. Where that leaves too many, rules with equal peers are joined
//! first.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::{Discriminant, discriminant},
    sync::Arc,
};

use super::predicate::Predicate;
use crate::{
    Action, Direction, Mask, PolicyId, Refused, Resource, Tier,
    rows::{Header, MAX_RANGES, PortRange},
    store::{CompiledPolicy, NamedPort, PortSet},
};

/// A set of rules that are judged as one.
pub(crate) struct Bit {
    run: Run,
    pub(crate) any: bool,
    pub(crate) any_pod: bool,
    /// Those of rules with other peers may repeat.
    pub(crate) predicates: Vec<Arc<Predicate>>,
    pub(crate) ports: PortSet,
    /// The rules, by policy and number.
    pub(crate) rules: Vec<(usize, usize)>,
}

/// Rules that follow each other and have this in common are a union.
type Run = (Discriminant<Tier>, Action);

/// The bits of a ruleset, and what follows from them alone.
pub(crate) struct Bits {
    pub(crate) bits: Vec<Bit>,
    pub(crate) header: Header,
    /// All ranges, also if they are too many for the header.
    pub(crate) ranges: Vec<PortRange>,
}

// === impl Bits ===

impl Bits {
    /// The bits of policies, which are in the order of judgement. `ports` are the subject's, which the names
    /// in rules of ingress mean.
    pub(crate) fn new(
        policies: &[Arc<CompiledPolicy>],
        direction: Direction,
        ports: &[NamedPort],
    ) -> Result<Self, Refused> {
        let mut header = Header::empty();
        header.isolates = policies.iter().any(|it| it.policy.tier == Tier::Namespaced);
        let mut bits: Vec<Bit> =
            runs(policies, direction, ports).into_iter().flat_map(|run| joined(run, Bit::ports)).collect();
        if bits.len() > usize::from(Mask::BITS) {
            bits = runs(policies, direction, ports).into_iter().flat_map(fewest).collect();
        }
        if bits.len() > usize::from(Mask::BITS) {
            return Err(too_many(policies, &bits));
        }
        header.ends(&bits, policies);
        for (n, bit) in (0..).zip(&bits) {
            let (_, action) = bit.run;
            header.act(n, action);
            header.describe(n, bit);
        }
        let ranges = disjoint(&bits);
        match ranges.len() {
            used @ 0..=MAX_RANGES => {
                header.used = u8::try_from(used).unwrap_or_default();
                header.ranges.iter_mut().zip(&ranges).for_each(|(place, range)| *place = *range);
            }
            _ => header.has_ports = true,
        }
        Ok(Self { bits, header, ranges })
    }
}

// === impl Bit ===

impl Bit {
    fn ports(&self) -> PortSet {
        self.ports.clone()
    }

    fn peers(&self) -> (bool, bool, Vec<Arc<Predicate>>) {
        (self.any, self.any_pod, self.predicates.clone())
    }

    /// Adds rules that have the same ports or the same peers.
    fn join(&mut self, mut other: Self) {
        self.any |= other.any;
        self.any_pod |= other.any_pod;
        if self.predicates != other.predicates {
            self.predicates.append(&mut other.predicates);
        }
        self.rules.append(&mut other.rules);
        if self.ports != other.ports {
            self.ports.append(other.ports);
        }
    }
}

// === impl Header ===

impl Header {
    fn empty() -> Self {
        Self {
            any: Mask::NONE,
            any_pod: Mask::NONE,
            unknown: Mask::NONE,
            any_port: Mask::NONE,
            accept: Mask::NONE,
            pass: Mask::NONE,
            admin_end: 0,
            baseline_start: 0,
            isolates: false,
            has_names: false,
            has_ports: false,
            used: 0,
            ranges: [PortRange::default(); MAX_RANGES],
        }
    }

    fn act(&mut self, n: u16, action: Action) {
        match action {
            Action::Accept => self.accept |= Mask::bit(n),
            Action::Pass => self.pass |= Mask::bit(n),
            Action::Deny => {}
        }
    }

    fn ends(&mut self, bits: &[Bit], policies: &[Arc<CompiledPolicy>]) {
        let tier = |bit: &Bit| {
            let (policy, _) = bit.rules.first()?;
            policies.get(*policy).map(|it| it.policy.tier)
        };
        let below = |end: Tier| bits.iter().filter(|bit| tier(bit).is_some_and(|tier| tier < end)).count();
        self.admin_end = u16::try_from(below(Tier::Namespaced)).unwrap_or(Mask::BITS);
        self.baseline_start = u16::try_from(below(Tier::Baseline(0))).unwrap_or(Mask::BITS);
    }

    fn describe(&mut self, n: u16, bit: &Bit) {
        let this = Mask::bit(n);
        if bit.any {
            self.any |= this;
        }
        if bit.any_pod {
            self.any_pod |= this;
        }
        if bit.ports.any {
            self.any_port |= this;
        }
        let needs_labels = bit.any_pod || bit.predicates.iter().any(|it| matches!(**it, Predicate::Pods(_)));
        if needs_labels && !self.accept.has(n) {
            self.unknown |= this;
        }
        self.has_names |= !bit.ports.names.is_empty();
    }
}

/// A bit for each rule that can match, by the runs of rules that are a union.
fn runs(policies: &[Arc<CompiledPolicy>], direction: Direction, ports: &[NamedPort]) -> Vec<Vec<Bit>> {
    let mut runs: Vec<Vec<Bit>> = Vec::new();
    for (p, policy) in policies.iter().enumerate() {
        for (r, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
            let ports = match direction {
                Direction::Ingress => rule.ports.resolved(ports),
                Direction::Egress => rule.ports.clone(),
            };
            if ports.is_empty() || !(rule.any || rule.any_pod || !rule.predicates.is_empty()) {
                continue;
            }
            let bit = Bit {
                run: (discriminant(&policy.policy.tier), rule.action),
                any: rule.any,
                any_pod: rule.any_pod,
                predicates: rule.predicates.clone(),
                ports,
                rules: vec![(p, r)],
            };
            match runs.last_mut().filter(|run| run.first().is_some_and(|it| it.run == bit.run)) {
                Some(run) => run.push(bit),
                None => runs.push(vec![bit]),
            }
        }
    }
    runs
}

/// Joins the bits of a run that have the same key, which is their ports or their peers.
fn joined<K: Ord>(run: impl IntoIterator<Item = Bit>, key: impl Fn(&Bit) -> K) -> Vec<Bit> {
    let mut places: BTreeMap<K, usize> = BTreeMap::new();
    let mut bits: Vec<Bit> = Vec::new();
    for bit in run {
        let place = *places.entry(key(&bit)).or_insert(bits.len());
        match bits.get_mut(place) {
            Some(same) => same.join(bit),
            None => bits.push(bit),
        }
    }
    bits.iter_mut().for_each(|bit| bit.ports.normalise());
    bits
}

/// Joins by ports alone, or by peers first: whichever leaves fewer bits.
fn fewest(run: Vec<Bit>) -> Vec<Bit> {
    let by_ports = run.iter().map(Bit::ports).collect::<BTreeSet<_>>().len();
    let by_peers = run.iter().map(Bit::peers).collect::<BTreeSet<_>>().len();
    let run = if by_peers < by_ports { joined(run, Bit::peers) } else { run };
    joined(run, Bit::ports)
}

/// The ranges of all bits, cut into parts that do not overlap.
fn disjoint(bits: &[Bit]) -> Vec<PortRange> {
    // Where bits begin and end, by protocol and port; one port further than the last is possible.
    let mut edges: BTreeMap<(u8, u32), (Vec<u16>, Vec<u16>)> = BTreeMap::new();
    for (n, bit) in (0..).zip(bits) {
        for range in &bit.ports.ranges {
            let protocol = range.protocol.number();
            edges.entry((protocol, u32::from(range.first))).or_default().0.push(n);
            edges.entry((protocol, u32::from(range.last) + 1)).or_default().1.push(n);
        }
    }
    let mut ranges: Vec<PortRange> = Vec::new();
    let mut mask = Mask::NONE;
    let ends = edges.keys().skip(1).copied().map(Some).chain([None]);
    for (((protocol, first), (begins, ended)), next) in edges.iter().zip(ends) {
        ended.iter().for_each(|n| mask.clear(*n));
        begins.iter().for_each(|n| mask |= Mask::bit(*n));
        let Some((_, end)) = next.filter(|(it, _)| it == protocol) else { continue };
        let (first, last) = (u16::try_from(*first), u16::try_from(end - 1));
        let (Ok(first), Ok(last)) = (first, last) else { continue };
        if mask.is_empty() {
            continue;
        }
        match ranges.last_mut() {
            Some(it)
                if it.bits == mask && it.protocol == *protocol && it.last.checked_add(1) == Some(first) =>
            {
                it.last = last;
            }
            _ => ranges.push(PortRange { bits: mask, first, last, protocol: *protocol }),
        }
    }
    ranges
}

/// Names the policy with most of the bits.
fn too_many(policies: &[Arc<CompiledPolicy>], bits: &[Bit]) -> Refused {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for (policy, _) in bits.iter().filter_map(|bit| bit.rules.first()) {
        *counts.entry(*policy).or_default() += 1;
    }
    let largest =
        counts.iter().max_by_key(|(_, count)| **count).and_then(|(policy, _)| policies.get(*policy));
    let policy: Option<PolicyId> = largest.map(|it| it.policy.id.clone());
    Refused { resource: Resource::Bits, needed: bits.len(), capacity: usize::from(Mask::BITS), policy }
}
