//! The rows as they should be, the changes that lead there, and whether they fit.

use crate::{
    Capacities, PolicyId, Refused, Resource,
    journal::Put,
    rows::{ClassId, Delta, NamedKey, Op, PortKey, Rows, RuleKey, RulesetId},
};

/// Collects changes.
#[derive(Default)]
pub(crate) struct Output {
    pub(crate) rows: Rows,
    capacities: Capacities,
    delta: Delta,
    refused: Option<Refused>,
    /// The policy for which rows are being written.
    blame: Option<PolicyId>,
}

impl Output {
    pub(crate) fn new(capacities: Capacities) -> Self {
        Self { capacities, ..Self::default() }
    }

    pub(crate) fn capacities(&self) -> Capacities {
        self.capacities
    }

    /// Names the policy that the following rows are for.
    pub(crate) fn blame(&mut self, policy: Option<&PolicyId>) {
        if self.blame.as_ref() != policy {
            self.blame = policy.cloned();
        }
    }

    /// Whether the compiler may keep so many matches.
    pub(crate) fn may_match(&self, needed: usize) -> Result<(), Refused> {
        let (resource, capacity) = (Resource::Matches, self.capacities.matches);
        let refused = || Refused { resource, needed, capacity, policy: self.blame.clone() };
        if needed > capacity { Err(refused()) } else { Ok(()) }
    }

    /// Sets or removes a row, if that changes anything. Rows above the capacity are only counted.
    pub(crate) fn emit(&mut self, op: Op) {
        let resource = Resource::of(&op);
        let (used, capacity) = self.usage(resource);
        let room = match &self.refused {
            None => capacity,
            Some(refused) if refused.resource == resource => 0,
            Some(_) => usize::MAX,
        };
        match (self.rows.put(&op, room), &mut self.refused) {
            (Put::Changed, _) => self.delta.ops.push(op),
            (Put::Unchanged, _) => {}
            (Put::Full, Some(refused)) => refused.needed += 1,
            (Put::Full, None) => {
                let policy = self.blame.clone();
                self.refused = Some(Refused { resource, needed: used + 1, capacity, policy });
            }
        }
    }

    /// Removes all rows of a ruleset.
    pub(crate) fn remove_ruleset(&mut self, ruleset: RulesetId) {
        let class = ClassId::NONE;
        let rules = self.rows.rules.range(RuleKey { ruleset, class }..).map(|(key, _)| *key);
        let rules: Vec<_> = rules.take_while(|key| key.ruleset == ruleset).collect();
        let named = self.rows.named.range(NamedKey { ruleset, class, protocol: 0, port: 0 }..);
        let named: Vec<_> = named.map(|(key, _)| *key).take_while(|key| key.ruleset == ruleset).collect();
        let ports = self.rows.ports.range(PortKey { ruleset, protocol: 0, port: 0, len: 0 }..);
        let ports: Vec<_> = ports.map(|(key, _)| *key).take_while(|key| key.ruleset == ruleset).collect();
        self.emit(Op::Ruleset(ruleset, None));
        rules.into_iter().for_each(|key| self.emit(Op::Rule(key, None)));
        named.into_iter().for_each(|key| self.emit(Op::Named(key, None)));
        ports.into_iter().for_each(|key| self.emit(Op::Port(key, None)));
    }

    /// Removes the rows of a ruleset for the named ports of a class.
    pub(crate) fn remove_named(&mut self, ruleset: RulesetId, class: ClassId) {
        let named = self.rows.named.range(NamedKey { ruleset, class, protocol: 0, port: 0 }..);
        let named = named.map(|(key, _)| *key).take_while(|key| key.ruleset == ruleset && key.class == class);
        let named: Vec<_> = named.collect();
        named.into_iter().for_each(|key| self.emit(Op::Named(key, None)));
    }

    /// Whether everything fits.
    pub(crate) fn fits(&self) -> Result<(), Refused> {
        self.refused.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn commit(&mut self) -> Delta {
        self.rows.commit();
        self.blame = None;
        std::mem::take(&mut self.delta)
    }

    pub(crate) fn rollback(&mut self) {
        self.rows.rollback();
        self.blame = None;
        self.refused = None;
        self.delta = Delta::default();
    }

    /// How many rows a map has, and how many it takes.
    pub(crate) fn usage(&self, resource: Resource) -> (usize, usize) {
        let capacities = &self.capacities;
        let capacity = match resource {
            Resource::Peers => capacities.peers,
            Resource::Blocks => capacities.blocks,
            Resource::Rulesets => capacities.rulesets,
            Resource::Rules => capacities.rules,
            Resource::Named => capacities.named,
            Resource::Ports => capacities.ports,
            Resource::Subjects => capacities.endpoints,
            Resource::Bits => usize::from(crate::Mask::BITS),
            Resource::Matches => capacities.matches,
        };
        (self.rows.count(resource), capacity)
    }
}
