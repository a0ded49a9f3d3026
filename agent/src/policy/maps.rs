//! The maps, as the thread writes them.

use std::collections::BTreeMap;

use agent_common::policy::Subject;
use ferrule_policy::{EndpointId, Op, Table};

use crate::dataplane::{Dataplane, MapFailure, PolicyRows};

/// The policy maps; another type in tests.
pub trait Maps: Send + Sync + 'static {
    /// What judges each interface.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn subjects(&self) -> Result<BTreeMap<EndpointId, Subject>, MapFailure>;

    /// Makes changes one after the other, up to the first that fails.
    ///
    /// # Errors
    /// If a map is full, or the kernel refuses.
    fn apply(&self, changes: &[Op], table: Table) -> Result<(), MapFailure>;

    /// Removes all rows of a table.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn clear(&self, table: Table) -> Result<(), MapFailure>;

    /// How the rows differ from the wanted ones, one line for each map.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn differences(&self, wanted: &PolicyRows) -> Result<Vec<String>, MapFailure>;

    /// Writes rows that are missing or wrong, and removes those that are not wanted.
    ///
    /// # Errors
    /// If a map is full, or the kernel refuses.
    fn restore(&self, wanted: &PolicyRows) -> Result<(), MapFailure>;
}

impl Maps for Dataplane {
    fn subjects(&self) -> Result<BTreeMap<EndpointId, Subject>, MapFailure> {
        self.subjects()
    }

    fn apply(&self, changes: &[Op], table: Table) -> Result<(), MapFailure> {
        self.apply_policy(changes, table)
    }

    fn clear(&self, table: Table) -> Result<(), MapFailure> {
        self.clear_policy(table)
    }

    fn differences(&self, wanted: &PolicyRows) -> Result<Vec<String>, MapFailure> {
        Ok(self.policy_rows()?.differences(wanted))
    }

    fn restore(&self, wanted: &PolicyRows) -> Result<(), MapFailure> {
        self.make_policy_rows(wanted)
    }
}
