//! The schema versions ("layouts") of the store and the migrations between them.
//!
//! An optional field of a record needs no new layout: the field gets a default (`serde(default)`). A change
//! that an earlier agent would misread needs a new layout, because an earlier agent refuses to open a newer
//! layout.

use std::io;

use redb::{ReadableTable as _, StorageError, WriteTransaction};
use serde_json::{Map, Value, json};

use super::tables::{ATTACHMENTS, LAYOUT, META};

/// Migrates a store from one layout to the next, in a transaction that the caller commits.
pub type Migration = fn(&WriteTransaction) -> Result<(), redb::Error>;

/// The migration at index `n` leads from layout `n + 1` to layout `n + 2`. A new layout appends one; none is
/// ever removed.
pub const MIGRATIONS: &[Migration] = &[record_kind_and_host_side];

type Record = Map<String, Value>;

/// The layout that the last migration leads to.
pub fn newest(migrations: &[Migration]) -> u64 {
    migrations.len() as u64 + 1
}

/// The migrations that a store of layout `found` needs; `None` if no known agent has written that layout.
pub fn needed(found: u64, migrations: &[Migration]) -> Option<&[Migration]> {
    let done = usize::try_from(found.checked_sub(1)?).ok()?;
    migrations.get(done..)
}

/// Runs the needed migrations and records the new layout.
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

/// Layout 1 to 2: a VIF records its kind, and `host` tells the sides of different kinds apart. Layout 1 knew
/// veth pairs only, with the host link in `host`, or null before the plug.
fn record_kind_and_host_side(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    rewrite(transaction, |record| {
        if let Some(Value::Object(vif)) = record.get_mut("vif") {
            vif.insert("kind".to_owned(), json!("veth"));
        }
        if let Some(host) = record.get_mut("host") {
            *host = match host.take() {
                Value::Null => json!("unplugged"),
                link => json!({ "link": link }),
            };
        }
    })
}

/// Changes every attachment record. A record that is not a JSON object stays as it is: opening the store
/// reports it as unreadable, and salvages the others.
pub(super) fn rewrite(
    transaction: &WriteTransaction,
    change: impl Fn(&mut Record),
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(ATTACHMENTS)?;
    let records = table
        .iter()?
        .map(|record| record.map(|(key, json)| (key.value().to_owned(), json.value().to_owned())))
        .collect::<Result<Vec<(String, Vec<u8>)>, StorageError>>()?;
    for (key, json) in records {
        let Ok(mut record) = serde_json::from_slice(&json) else { continue };
        change(&mut record);
        table.insert(key.as_str(), serde_json::to_vec(&record).map_err(io::Error::from)?.as_slice())?;
    }
    Ok(())
}
