//! The layouts that the store has had, and the way from each to the next.
//!
//! A field of a record that may be missing needs no new layout: it has a default (`serde(default)`). A new layout is for what an earlier
//! agent would misunderstand, which refuses it.

use redb::WriteTransaction;

use super::{LAYOUT, META};

/// Brings a store from one layout to the next, in a transaction that the caller commits.
pub type Migration = fn(&WriteTransaction) -> Result<(), redb::Error>;

/// The first is from layout 1 to layout 2, and so on; whoever changes the layout adds one at the end. None is ever removed.
pub const MIGRATIONS: &[Migration] = &[];

/// The layout that all of them lead to.
pub fn newest(migrations: &[Migration]) -> u64 {
    migrations.len() as u64 + 1
}

/// The migrations that a store of a layout needs; `None` if no agent of this version or before has written such a one.
pub fn needed(found: u64, migrations: &[Migration]) -> Option<&[Migration]> {
    let done = usize::try_from(found.checked_sub(1)?).ok()?;
    migrations.get(done..)
}

/// Makes all of them, and notes the new layout, in one transaction.
pub fn migrate(
    transaction: &WriteTransaction,
    found: u64,
    migrations: &[Migration],
) -> Result<(), redb::Error> {
    for migration in needed(found, migrations).unwrap_or_default() {
        migration(transaction)?;
    }
    transaction.open_table(META)?.insert(LAYOUT, newest(migrations))?;
    Ok(())
}
