//! The durable half of the registry: a redb file in the state directory.
//!
//! The state directory is a tmpfs by default: a reboot empties it together with the kernel. [`open`] handles
//! damaged files, [`schema`] earlier layouts, [`identity`] other boots and network namespaces.

mod contents;
mod error;
mod examine;
mod identity;
mod open;
mod quarantine;
mod schema;
mod tables;
#[cfg(test)]
pub(super) mod tests;

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ferrule_vif::Addresses;
use redb::WriteTransaction;
use tokio::sync::watch;

use super::{attachment::Attachment, key::Key};
use crate::{chain::chain, durable::DurableDb};
use contents::{Contents, millis};
pub use error::StoreError;
pub use identity::Identity;
pub use open::Condition;
use open::OpenFile;
use schema::Migration;
use tables::{ATTACHMENTS, COOLDOWN, INCOMPLETE, LAYOUT, META};

/// The attachments and the addresses in cooldown, durably.
pub struct Store {
    database: DurableDb,
    /// When expired cooldowns were last pruned, in milliseconds since boot.
    pruned: AtomicU64,
    trouble: watch::Sender<Option<String>>,
}

/// An open store and its records.
pub struct Opened {
    pub store: Store,
    pub contents: Contents,
    pub condition: Condition,
}

/// Between two prunings of expired cooldowns.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);

// === impl Store ===

impl Store {
    /// Opens or creates the store at a path. A damaged store is quarantined, and its readable records are
    /// salvaged. Records of an earlier boot are discarded.
    ///
    /// # Errors
    /// If the store cannot be opened or written, or belongs to a newer layout or another network namespace;
    /// the file then stays as it was.
    pub fn open_as(path: &Path, own: &Identity) -> Result<Opened, StoreError> {
        Self::open_with(path, schema::MIGRATIONS, own)
    }

    fn open_with(path: &Path, migrations: &[Migration], own: &Identity) -> Result<Opened, StoreError> {
        let OpenFile { database, contents, condition } = open::open(path, migrations, own)?;
        Ok(Opened { store: Self::new(database), contents, condition })
    }

    fn new(database: DurableDb) -> Self {
        Self { database, pruned: AtomicU64::new(0), trouble: watch::Sender::default() }
    }

    /// Reads all records.
    #[cfg(test)]
    pub fn load(&self) -> Result<Contents, StoreError> {
        self.database.read(contents::read).map_err(|source| self.failed("read", source))
    }

    /// The error of the last write; `None` if the write succeeded.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// Probes whether the store is writable, by a write that changes nothing, and updates [`Self::trouble`].
    pub fn try_write(&self) {
        let _ = self.write(|transaction| {
            transaction.open_table(META)?.insert(LAYOUT, schema::newest(schema::MIGRATIONS))?;
            Ok(())
        });
    }

    /// Writes the record of an attachment.
    ///
    /// # Errors
    /// If the write fails; the store stays as it was.
    pub fn put(&self, attachment: &Attachment) -> Result<(), StoreError> {
        let (key, json) = self.encode(attachment)?;
        self.write(|transaction| {
            transaction.open_table(ATTACHMENTS)?.insert(key.as_str(), json.as_slice())?;
            Ok(())
        })
    }

    /// Writes rebuilt attachments and removes the superseded ones, atomically. With `complete`, the store no
    /// longer counts as incomplete.
    ///
    /// # Errors
    /// If the write fails; the store stays as it was.
    pub fn adopt(
        &self,
        attachments: &[Attachment],
        superseded: &[Attachment],
        complete: bool,
    ) -> Result<(), StoreError> {
        let records = attachments.iter().map(|it| self.encode(it)).collect::<Result<Vec<_>, _>>()?;
        self.write(|transaction| {
            let mut table = transaction.open_table(ATTACHMENTS)?;
            for Attachment { key, .. } in superseded {
                table.remove(key.to_string().as_str())?;
            }
            for (key, json) in &records {
                table.insert(key.as_str(), json.as_slice())?;
            }
            if complete {
                transaction.open_table(META)?.remove(INCOMPLETE)?;
            }
            Ok(())
        })
    }

    /// Removes the record of an attachment, and records the release of its addresses at `now`. Releases up to
    /// `expired` are pruned at most once per [`PRUNE_INTERVAL`], because pruning scans the whole table.
    ///
    /// # Errors
    /// If the write fails; the store stays as it was.
    pub fn remove(
        &self,
        key: &Key,
        released: Addresses,
        now: Duration,
        expired: Duration,
    ) -> Result<(), StoreError> {
        let due = self.pruned.load(Ordering::Relaxed).saturating_add(millis(PRUNE_INTERVAL));
        let is_due = millis(expired) >= due;
        self.write(|transaction| {
            transaction.open_table(ATTACHMENTS)?.remove(key.to_string().as_str())?;
            let mut table = transaction.open_table(COOLDOWN)?;
            if is_due {
                table.retain(|_, released| released > millis(expired))?;
                self.pruned.store(millis(expired), Ordering::Relaxed);
            }
            for address in released.iter() {
                table.insert(address.to_string().as_str(), millis(now))?;
            }
            Ok(())
        })
    }

    fn write(&self, write: impl Fn(&WriteTransaction) -> Result<(), redb::Error>) -> Result<(), StoreError> {
        let written = self.database.write(write).map_err(|source| self.failed("write to", source));
        let why = written.as_ref().err().map(|error| chain(error));
        self.trouble.send_if_modified(|before| {
            let is_other = *before != why;
            *before = why;
            is_other
        });
        written
    }

    fn encode(&self, attachment: &Attachment) -> Result<(String, Vec<u8>), StoreError> {
        let key = attachment.key.to_string();
        match serde_json::to_vec(attachment) {
            Ok(json) => Ok((key, json)),
            Err(source) => Err(StoreError::Encode { path: self.database.path().to_owned(), key, source }),
        }
    }

    fn failed(&self, operation: &'static str, source: redb::Error) -> StoreError {
        StoreError::Access { operation, path: self.database.path().to_owned(), source: Box::new(source) }
    }
}
