//! Writes all rows once more, into the table that no pod is judged by, and switches one pod after the other.

use std::collections::{BTreeMap, BTreeSet};

use agent_common::policy::Subject;
use ferrule_policy::{EndpointId, Op, Table};

use super::maps::Maps;
use crate::{
    crash::{self, Step},
    dataplane::MapFailure,
};

/// The table to write to: that of the fewest subjects, usually none. After an interrupted switch, both are in
/// use.
pub(super) fn free_table(subjects: &BTreeMap<EndpointId, Subject>, current: Table) -> Table {
    let users = |table| subjects.values().filter(|it| reads(it, table)).count();
    let other = current.other();
    if users(current) < users(other) { current } else { other }
}

/// Writes the rows of a table, switches the subjects, and removes the other table's rows. The few subjects
/// that read the table already, after an interrupted switch, pass nothing meanwhile.
///
/// # Errors
/// If a map is full, or the kernel refuses. To be repeated, with the subjects of then.
pub(super) fn install(
    maps: &dyn Maps,
    subjects: &BTreeMap<EndpointId, Subject>,
    rows: &[Op],
    table: Table,
) -> Result<(), MapFailure> {
    let close = |id: &EndpointId| Op::Endpoint(*id, None);
    let reading: Vec<_> =
        subjects.iter().filter(|(_, it)| reads(it, table)).map(|(id, _)| close(id)).collect();
    maps.apply(&reading, table)?;
    crash::point(Step::PolicyClosed);
    maps.clear(table)?;
    crash::point(Step::PolicyCleared);
    maps.apply(rows, table)?;
    crash::point(Step::PolicySwitched);
    let judged: BTreeSet<_> = rows.iter().filter_map(endpoint).collect();
    let gone: Vec<_> = subjects.keys().filter(|id| !judged.contains(id)).map(close).collect();
    maps.apply(&gone, table)?;
    crash::point(Step::PolicyGoneClosed);
    maps.clear(table.other())?;
    crash::point(Step::PolicyInstalled);
    Ok(())
}

fn endpoint(op: &Op) -> Option<&EndpointId> {
    if let Op::Endpoint(id, _) = op { Some(id) } else { None }
}

fn reads(subject: &Subject, table: Table) -> bool {
    !subject.is_open() && subject.table == table.number()
}
