//! Compiles all that is known once more, when the maps may have lost what was compiled before.

use std::mem::{replace, take};

use super::{Compiler, output::Output};
use crate::{Refused, Table, store::Work};

impl Compiler {
    /// Compiles everything for empty maps, into rows of a table. The rows of before are not removed.
    ///
    /// # Errors
    /// If the rows do not fit. Nothing is changed then.
    pub fn renew(&mut self, table: Table) -> Result<(), Refused> {
        let fresh = Self {
            table,
            out: Output::new(self.out.capacities()),
            epoch: self.epoch,
            enforces: self.enforces,
            ..Self::default()
        };
        let mut old = replace(self, fresh);
        self.store = take(&mut old.store);
        let work = Work {
            addresses: self
                .store
                .claims
                .iter()
                .map(|(addr, _)| *addr)
                .chain(self.store.marks.all())
                .collect(),
            endpoints: self.store.endpoints.iter().map(|(id, _)| *id).collect(),
            ..Work::default()
        };
        let renewed = self.sync(work);
        if renewed.is_err() {
            self.store.rollback();
            *self = Self { store: take(&mut self.store), ..old };
        }
        self.store.commit();
        self.predicates.commit();
        self.blocks.commit();
        self.classes.commit();
        self.rulesets.commit();
        self.out.commit();
        renewed
    }
}
