//! What the registry keeps across a crash.
//!
//! It lies on a tmpfs by default: a reboot empties it, as it empties the kernel. How a file is opened that may be damaged, is in
//! [`open`]; how one of an earlier layout is brought to this one, in [`schema`].

mod identity;
mod open;
mod schema;
#[cfg(test)]
pub(super) mod tests;

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use redb::{ReadTransaction, ReadableTable as _, TableDefinition, TableError, WriteTransaction};
use tokio::sync::watch;

use super::{attachment::Attachment, durable::Durable};
use crate::{
    chain::chain,
    crash::{self, Step},
};
use ferrule_vif::Addresses;
pub use identity::Identity;
pub use open::{Condition, Opened};

/// The durable half of the registry.
pub struct Store {
    database: Durable,
    /// When addresses that had rested were last forgotten, in milliseconds since boot.
    swept: AtomicU64,
    trouble: watch::Sender<Option<String>>,
}

/// What a store holds.
#[derive(Debug, Default)]
pub struct Contents {
    pub attachments: Vec<Attachment>,
    /// Addresses at rest, and since when they are, the first to be released first; times are since boot.
    pub resting: Vec<(IpAddr, Duration)>,
    /// Records that cannot be understood, in words.
    pub unreadable: Vec<String>,
    /// Attachments may be missing that the kernel still has.
    pub is_incomplete: bool,
    /// Where they are; not known of a store of an agent that did not record it.
    pub identity: Option<Identity>,
}

/// The store could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is not to be opened.
    #[error("cannot open the registry's store {path:?}")]
    Open {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    /// Reading or writing failed: a full or a read-only disk, most likely.
    #[error("cannot {what} the registry's store {path:?}")]
    Access {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    /// A record that cannot be written as JSON.
    #[error("an attachment cannot be put into the registry's store {path:?}: {key}")]
    Record {
        path: PathBuf,
        key: String,
        #[source]
        source: serde_json::Error,
    },
    /// It was written by an agent with a layout that is younger than this one, or that never was.
    #[error(
        "the registry's store {path:?} has layout {found}, and this agent knows the layouts 1 to {known}: a newer agent wrote it. It \
         is left as it is. Start that agent again; or move the file away, and this one makes the attachments anew from what the \
         kernel has"
    )]
    Schema { path: PathBuf, found: u64, known: u64 },
    /// What it has is in another network namespace, where it lives on.
    #[error(
        "the registry's store {path:?} is that of an agent in another network namespace ({recorded}; this agent's is {own}), where the \
         interfaces of its pods are: all pods would be taken for gone. Nothing was touched. Start the agent in the node's own network \
         namespace, as a pod with `hostNetwork: true`; or if that other namespace has ended, move the file away"
    )]
    Elsewhere { path: PathBuf, recorded: String, own: String },
    /// It is damaged, and there cannot be another one in its place.
    #[error(
        "the registry's store {path:?} is damaged ({why}), and there is no way to set it aside and begin a new one: it is left as it is"
    )]
    SetAside {
        path: PathBuf,
        why: String,
        #[source]
        source: Box<redb::Error>,
    },
}

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// In [`META`]: the layout of the tables.
const LAYOUT: &str = "schema";
/// In [`META`]: that attachments may be missing. It stays until all that the kernel has is accounted for, also by a later agent.
const INCOMPLETE: &str = "unsettled";
/// Key as text → [`Attachment`] as JSON.
const ATTACHMENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("attachments");
/// Address as text → when it was released, in milliseconds since boot.
const RESTING: TableDefinition<'_, &str, u64> = TableDefinition::new("resting");
/// Between two looks for addresses that have rested.
const SWEEP: Duration = Duration::from_secs(1);

// === impl Store ===

impl Store {
    /// Opens the store at a path, or makes one. One that is damaged is set aside, and what can be read of it is in the new one. What it
    /// has of another boot is forgotten.
    ///
    /// # Errors
    /// If it cannot be opened or written, or is of a later layout or of another network namespace; then the file is as it was.
    pub fn open_as(path: &Path, own: &Identity) -> Result<Opened, StoreError> {
        open::open(path, schema::MIGRATIONS, own)
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn load(&self) -> Result<Contents, StoreError> {
        self.database.read(read).map_err(|source| self.failed("read", source))
    }

    /// Why it could not be written to the last time that somebody tried; `None` if it could.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// Writes what is there already. Whether it could, [`Self::trouble`] tells.
    pub fn try_write(&self) {
        let _ = self.write(|transaction| {
            transaction.open_table(META)?.insert(LAYOUT, schema::newest(schema::MIGRATIONS))?;
            Ok(())
        });
    }

    /// Writes an attachment as it is now.
    ///
    /// # Errors
    /// If it could not be written; then the store is as it was.
    pub fn put(&self, attachment: &Attachment) -> Result<(), StoreError> {
        let (key, json) = self.encode(attachment)?;
        self.write(|transaction| {
            transaction.open_table(ATTACHMENTS)?.insert(key.as_str(), json.as_slice())?;
            Ok(())
        })
    }

    /// Writes attachments that were made anew, all or none, removes those that they supersede, and notes whether this is all that there is.
    ///
    /// # Errors
    /// If it could not be written; then the store is as it was.
    pub fn adopt(
        &self,
        attachments: &[Attachment],
        superseded: &[Attachment],
        is_all: bool,
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
            if is_all {
                transaction.open_table(META)?.remove(INCOMPLETE)?;
            }
            Ok(())
        })
    }

    /// Removes an attachment, and lets addresses rest that had been in use. Those that were released by `rested` are forgotten, from
    /// time to time: all of them are looked at for that, and nobody who comes and goes is to pay for each one before.
    ///
    /// # Errors
    /// If it could not be written; then the store is as it was.
    pub fn remove(
        &self,
        key: &super::Key,
        resting: Addresses,
        now: Duration,
        rested: Duration,
    ) -> Result<(), StoreError> {
        let is_due = millis(rested) >= self.swept.load(Ordering::Relaxed).saturating_add(millis(SWEEP));
        self.write(|transaction| {
            transaction.open_table(ATTACHMENTS)?.remove(key.to_string().as_str())?;
            let mut table = transaction.open_table(RESTING)?;
            if is_due {
                table.retain(|_, since| since > millis(rested))?;
                self.swept.store(millis(rested), Ordering::Relaxed);
            }
            for address in resting.iter() {
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
            Err(source) => Err(StoreError::Record { path: self.database.path().to_owned(), key, source }),
        }
    }

    fn failed(&self, what: &'static str, source: redb::Error) -> StoreError {
        StoreError::Access { what, path: self.database.path().to_owned(), source: Box::new(source) }
    }
}

/// All that a store of this layout holds.
fn read(transaction: &ReadTransaction) -> Result<Contents, redb::Error> {
    let mut contents = Contents {
        is_incomplete: transaction.open_table(META)?.get(INCOMPLETE)?.is_some(),
        identity: identity::read(transaction)?,
        ..Contents::default()
    };
    for record in transaction.open_table(ATTACHMENTS)?.iter()? {
        let (key, json) = record?;
        match decode(key.value(), json.value()) {
            Ok(attachment) => contents.attachments.push(attachment),
            Err(why) => contents.unreadable.push(format!("{:?}: {why}", key.value())),
        }
    }
    for record in transaction.open_table(RESTING)?.iter()? {
        let (address, since) = record?;
        if let Ok(address) = address.value().parse() {
            contents.resting.push((address, Duration::from_millis(since.value())));
        }
    }
    contents.resting.sort_by_key(|(_, since)| *since);
    Ok(contents)
}

fn decode(key: &str, json: &[u8]) -> Result<Attachment, serde_json::Error> {
    let attachment: Attachment = serde_json::from_slice(json)?;
    if attachment.key.to_string() == key {
        Ok(attachment)
    } else {
        Err(serde::de::Error::custom(format_args!("it is that of {}", attachment.key)))
    }
}

/// The layout of a store; `None` if it has no tables at all.
fn layout(transaction: &ReadTransaction) -> Result<Option<u64>, redb::Error> {
    match transaction.open_table(META) {
        Ok(meta) => match meta.get(LAYOUT)? {
            Some(layout) => Ok(Some(layout.value())),
            None => Err(redb::Error::Corrupted("it does not say which layout it has".to_owned())),
        },
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes all that a store of a layout begins with.
fn begin(transaction: &WriteTransaction, layout: u64, contents: &Contents) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(LAYOUT, layout)?;
    meta.insert(INCOMPLETE, 1)?;
    let mut attachments = transaction.open_table(ATTACHMENTS)?;
    for attachment in &contents.attachments {
        let json = serde_json::to_vec(attachment).map_err(io::Error::from)?;
        attachments.insert(attachment.key.to_string().as_str(), json.as_slice())?;
    }
    let mut resting = transaction.open_table(RESTING)?;
    for (address, since) in &contents.resting {
        resting.insert(address.to_string().as_str(), millis(*since))?;
    }
    // What was kept of a damaged store is where that was.
    contents.identity.iter().try_for_each(|it| identity::write(transaction, it))
}

fn commit(transaction: WriteTransaction) -> Result<(), redb::Error> {
    crash::point(Step::StoreWritten);
    transaction.commit()?;
    crash::point(Step::StoreCommitted);
    Ok(())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
