//! The identity of a store: the boot and the network namespace to which its records belong.
//!
//! Another namespace of the same boot: the host interfaces of the pods are not visible, and an agent would
//! take all pods for gone. The store is refused before anything is changed.
//!
//! Another boot: the kernel holds none of the recorded attachments, and the recorded paths, inode numbers and
//! times may belong to others. The records are discarded. Relevant only for a state directory on a disk.
//!
//! The identity is a table of its own and needed no new layout: an early agent ignores the table, and this
//! agent trusts a store without it once. Records that an early agent wrote after a reboot are discarded as
//! well, but the store is then incomplete and the attachments are rebuilt from the kernel, as they are should
//! the boot ID ever be wrong.

use std::{fs, io, os::unix::fs::MetadataExt as _};

use redb::{
    ReadTransaction, ReadableTable as _, ReadableTableMetadata as _, StorageError, TableDefinition,
    TableError, WriteTransaction,
};

use super::tables::{ATTACHMENTS, COOLDOWN, INCOMPLETE, META};
use crate::registry::NetnsId;

/// A boot and a network namespace. A namespace's inode number can be reused, but the host's namespace lives
/// as long as the boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub boot: String,
    pub netns: String,
}

/// Counts of the records of another boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discarded {
    pub attachments: u64,
    pub cooldown: u64,
}

/// One record each for [`BOOT`] and [`NETNS`].
const IDENTITY: TableDefinition<'_, &str, &str> = TableDefinition::new("identity");
const BOOT: &str = "boot";
const NETNS: &str = "netns";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const OWN_NETNS: &str = "/proc/thread-self/ns/net";

// === impl Identity ===

impl Identity {
    /// The identity of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        let netns = fs::metadata(OWN_NETNS)?;
        let netns = NetnsId { dev: netns.dev(), ino: netns.ino() }.to_string();
        Ok(Self { boot: fs::read_to_string(BOOT_ID)?.trim_end().to_owned(), netns })
    }

    /// Whether the recorded attachments live in another network namespace of the same boot.
    pub fn is_elsewhere(&self, recorded: &Self) -> bool {
        self.boot == recorded.boot && self.netns != recorded.netns
    }
}

/// The recorded identity; `None` if an early agent wrote the store.
pub fn read(transaction: &ReadTransaction) -> Result<Option<Identity>, redb::Error> {
    let table = match transaction.open_table(IDENTITY) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        table => table?,
    };
    let value =
        |key| -> Result<Option<String>, StorageError> { Ok(table.get(key)?.map(|it| it.value().to_owned())) };
    Ok(value(BOOT)?.zip(value(NETNS)?).map(|(boot, netns)| Identity { boot, netns }))
}

/// Records an identity.
pub fn write(transaction: &WriteTransaction, own: &Identity) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(IDENTITY)?;
    table.insert(BOOT, own.boot.as_str())?;
    table.insert(NETNS, own.netns.as_str())?;
    Ok(())
}

/// Records the own identity, and discards the records of another boot.
pub fn adopt(transaction: &WriteTransaction, own: &Identity) -> Result<Option<Discarded>, redb::Error> {
    let recorded = transaction.open_table(IDENTITY)?.get(BOOT)?.map(|it| it.value().to_owned());
    write(transaction, own)?;
    if recorded.is_none_or(|boot| boot == own.boot) {
        return Ok(None);
    }
    let mut attachments = transaction.open_table(ATTACHMENTS)?;
    let mut cooldown = transaction.open_table(COOLDOWN)?;
    let discarded = Discarded { attachments: attachments.len()?, cooldown: cooldown.len()? };
    attachments.retain(|_, _| false)?;
    cooldown.retain(|_, _| false)?;
    transaction.open_table(META)?.insert(INCOMPLETE, 1)?;
    Ok(Some(discarded))
}
