//! The maps, as the thread writes them.

use std::collections::BTreeMap;

use agent_common::policy::Subject;
use ferrule_policy::{EndpointId, Op, Rows, Table};

use crate::dataplane::{Audit, Dataplane, MapFailure};

/// The policy maps; another type in tests.
pub trait Maps: Send + Sync + 'static {
    /// What judges each interface.
    fn subjects(&self) -> BTreeMap<EndpointId, Subject>;

    /// Makes changes one after the other, up to the first that fails.
    ///
    /// # Errors
    /// If a map is full, or the kernel refuses.
    fn apply(&self, changes: &[Op], table: Table) -> Result<(), MapFailure>;

    /// The maps have these rows, and no others.
    fn count(&self, rows: &Rows);

    /// Removes all rows of a table.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn clear(&self, table: Table) -> Result<(), MapFailure>;

    /// Compares some rows with those that are wanted now. Returns whether more follow.
    ///
    /// # Errors
    /// If a map is full, or the kernel refuses.
    fn audit(&self, audit: &mut Audit, wanted: &Rows, table: Table) -> Result<bool, MapFailure>;
}

impl Maps for Dataplane {
    fn subjects(&self) -> BTreeMap<EndpointId, Subject> {
        self.subjects()
    }

    fn apply(&self, changes: &[Op], table: Table) -> Result<(), MapFailure> {
        self.apply_policy(changes, table)
    }

    fn count(&self, rows: &Rows) {
        self.count_policy(rows);
    }

    fn clear(&self, table: Table) -> Result<(), MapFailure> {
        self.clear_policy(table)
    }

    fn audit(&self, audit: &mut Audit, wanted: &Rows, table: Table) -> Result<bool, MapFailure> {
        self.audit_policy(audit, wanted, table)
    }
}
