//! The layouts of a record, and the steps between them.
//!
//! An optional field of a record needs no new layout: the field gets a default (`serde(default)`), and an
//! earlier agent keeps those of attachments and wishes without knowing them (`Attachment::later`). A change
//! that an earlier agent would misread needs a new layout, because an earlier agent refuses to open a newer
//! layout. `tests/fields_of_layout_3.txt` lists the fields, with what an earlier agent does without them.

use serde_json::{Map, Value};

/// Changes a record of one layout to the next.
pub type Migration = fn(&mut Map<String, Value>);

/// The step at index `n` leads from layout `OLDEST + n` to the next. A new layout appends one; none is ever
/// removed.
pub const MIGRATIONS: &[Migration] = &[];

/// The layouts 1 and 2 were those of a database.
pub const OLDEST: u64 = 3;

/// The layout that the last step leads to.
pub fn newest(migrations: &[Migration]) -> u64 {
    OLDEST + migrations.len() as u64
}

/// The steps that a record of layout `found` needs; `None` if this agent does not know the layout.
pub fn needed(found: u64, migrations: &[Migration]) -> Option<&[Migration]> {
    migrations.get(usize::try_from(found.checked_sub(OLDEST)?).ok()?..)
}
