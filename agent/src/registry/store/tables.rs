//! The tables of the store.

use redb::TableDefinition;

pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// In [`META`]: the schema version of the tables.
pub(super) const LAYOUT: &str = "schema";
/// In [`META`]: attachments of the kernel may lack a record. The entry survives restarts, until a rebuild has
/// accounted for every interface.
pub(super) const INCOMPLETE: &str = "unsettled";
/// Key as text → [`Attachment`] as JSON.
pub(super) const ATTACHMENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("attachments");
/// Address as text → its release, in milliseconds since boot.
pub(super) const COOLDOWN: TableDefinition<'_, &str, u64> = TableDefinition::new("resting");
