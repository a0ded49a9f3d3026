//! Changes that follow each other in one map: the kernel makes them by one system call, for which a single
//! change needs as long as for a dozen rows.

use agent_common::policy::Peer;
use ferrule_policy::{Op, Resource, Rows, Table};

use super::{MapFailure, PolicyMaps, block};

/// Shorter runs are made row by row.
const SHORT: usize = 4;
/// Longer runs are cut, so that no other change waits for long.
const LONG: usize = 256;

/// Parts of changes, in their order.
pub(in crate::dataplane) fn runs(changes: &[Op]) -> impl Iterator<Item = &[Op]> {
    let kind = |op: &Op| (op.map(), sets(op));
    changes.chunk_by(move |a, b| kind(a) == kind(b)).flat_map(|run| run.chunks(LONG))
}

// === impl PolicyMaps ===

impl PolicyMaps {
    /// Makes the changes of a run.
    pub(in crate::dataplane) fn apply_run(&mut self, run: &[Op], table: Table) -> Result<(), MapFailure> {
        // Row by row, each change tells why it fails; to repeat one is harmless.
        if run.len() >= SHORT && self.apply_at_once(run, table) {
            return Ok(());
        }
        run.iter().try_for_each(|op| self.apply(op, table))
    }

    /// Sets what the metrics say, if the maps have the rows of one table only. Others add and remove
    /// subjects.
    pub(in crate::dataplane) fn count(&self, rows: &Rows) {
        self.peers.observe(rows.count(Resource::Peers));
        self.blocks.observe(rows.count(Resource::Blocks));
        self.rulesets.observe(rows.count(Resource::Rulesets));
        self.rules.observe(rows.count(Resource::Rules));
        self.named.observe(rows.count(Resource::Named));
        self.ports.observe(rows.count(Resource::Ports));
    }

    /// Whether the kernel made all changes. Otherwise, it made some of them: older kernels have no such call
    /// for tries. In the other maps, few rows change at a time.
    fn apply_at_once(&mut self, run: &[Op], table: Table) -> bool {
        match run.first() {
            Some(Op::Rule(..)) => self.rules.set_all(run.iter().filter_map(|op| match op {
                Op::Rule(key, bits) => Some(((*key).into(), bits.map(|it| it.0))),
                _ => None,
            })),
            Some(Op::Block(..)) => self.blocks.set_all(run.iter().filter_map(|op| match op {
                Op::Block(prefix, class) => Some((block(prefix.key(table)), class.map(|it| it.0))),
                _ => None,
            })),
            Some(Op::Peer(..)) => self.peers.set_all(run.iter().filter_map(|op| match op {
                Op::Peer(address, row) => Some((address.key(table), row.map(Peer::from))),
                _ => None,
            })),
            _ => false,
        }
    }
}

fn sets(op: &Op) -> bool {
    match op {
        Op::Peer(_, row) => row.is_some(),
        Op::Block(_, class) => class.is_some(),
        Op::Ruleset(_, header) => header.is_some(),
        Op::Rule(_, bits) | Op::Named(_, bits) | Op::Port(_, bits) => bits.is_some(),
        Op::Endpoint(_, row) => row.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use ferrule_policy::{ClassId, Mask, RuleKey, RulesetId};

    use super::*;

    #[test]
    fn changes_of_one_map_and_kind_are_a_run_of_bounded_length_and_keep_their_order() {
        let rule = |class, bits| Op::Rule(RuleKey { ruleset: RulesetId(1), class: ClassId(class) }, bits);
        let ruleset = Op::Ruleset(RulesetId(1), None);
        let set = (0..600).map(|class| rule(class, Some(Mask::NONE)));
        let removed = (0..3).map(|class| rule(class, None));
        let changes: Vec<_> = set.chain([ruleset.clone()]).chain(removed).collect();
        let found: Vec<_> = runs(&changes).collect();
        assert_eq!(found.iter().map(|run| run.len()).collect::<Vec<_>>(), [256, 256, 88, 1, 3]);
        assert_eq!(found.concat(), changes);
        assert_eq!(runs(&[]).count(), 0);
    }
}
