//! Where a store belongs: to a boot of the machine, and to a network namespace.
//!
//! What is recorded of attachments is of the kernel that was running, and of the namespace in which their host's ends are. An agent in
//! another one sees none of them, and would take all pods for gone: it is refused before it has touched anything. After a reboot there are
//! none at all, and the paths, numbers and times that are recorded may be those of somebody else by now: they are forgotten. That matters
//! where the state directory is on a disk.
//!
//! The record is a table of its own, and no new layout: an agent that does not know it leaves it as it is and does what it always did, and
//! this one believes a store without it once. If such an agent has worked with the store after a reboot, what it has attached is forgotten
//! too, but only here: the store is unsettled then, and what the kernel has is made anew, as it is if the boot's ID should ever lie.

use std::{fs, io, os::unix::fs::MetadataExt as _};

use redb::{
    ReadTransaction, ReadableTable as _, ReadableTableMetadata as _, StorageError, TableDefinition,
    TableError, WriteTransaction,
};

use super::{super::NetnsId, ATTACHMENTS, INCOMPLETE, META, RESTING};

/// What tells a boot and a network namespace apart. A namespace's numbers may be used again, but hardly the host's, which lives as long as
/// the boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub boot: String,
    pub netns: String,
}

/// What was of another boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    pub attachments: u64,
    pub resting: u64,
}

/// One record each: [`BOOT`] and [`NETNS`].
const IDENTITY: TableDefinition<'_, &str, &str> = TableDefinition::new("identity");
const BOOT: &str = "boot";
const NETNS: &str = "netns";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const OWN_NETNS: &str = "/proc/thread-self/ns/net";

// === impl Identity ===

impl Identity {
    /// That of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        let netns = fs::metadata(OWN_NETNS)?;
        let netns = NetnsId { dev: netns.dev(), ino: netns.ino() }.to_string();
        Ok(Self { boot: fs::read_to_string(BOOT_ID)?.trim_end().to_owned(), netns })
    }

    /// Whether what another one has recorded is out of this one's sight, and lives.
    pub fn is_elsewhere(&self, recorded: &Self) -> bool {
        self.boot == recorded.boot && self.netns != recorded.netns
    }
}

/// What is recorded; `None` if an agent wrote the store that did not.
pub fn read(transaction: &ReadTransaction) -> Result<Option<Identity>, redb::Error> {
    let table = match transaction.open_table(IDENTITY) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        table => table?,
    };
    let value =
        |key| -> Result<Option<String>, StorageError> { Ok(table.get(key)?.map(|it| it.value().to_owned())) };
    Ok(value(BOOT)?.zip(value(NETNS)?).map(|(boot, netns)| Identity { boot, netns }))
}

/// Records whose a store is.
pub fn write(transaction: &WriteTransaction, own: &Identity) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(IDENTITY)?;
    table.insert(BOOT, own.boot.as_str())?;
    table.insert(NETNS, own.netns.as_str())?;
    Ok(())
}

/// Makes a store one's own, and forgets what it has of another boot.
pub fn adopt(transaction: &WriteTransaction, own: &Identity) -> Result<Option<Forgotten>, redb::Error> {
    let recorded = transaction.open_table(IDENTITY)?.get(BOOT)?.map(|it| it.value().to_owned());
    write(transaction, own)?;
    if recorded.is_none_or(|boot| boot == own.boot) {
        return Ok(None);
    }
    let mut attachments = transaction.open_table(ATTACHMENTS)?;
    let mut resting = transaction.open_table(RESTING)?;
    let forgotten = Forgotten { attachments: attachments.len()?, resting: resting.len()? };
    attachments.retain(|_, _| false)?;
    resting.retain(|_, _| false)?;
    transaction.open_table(META)?.insert(INCOMPLETE, 1)?;
    Ok(Some(forgotten))
}
