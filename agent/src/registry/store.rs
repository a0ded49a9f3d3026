//! What the registry keeps across a crash.
//!
//! It lies on a tmpfs by default: a reboot empties it, as it empties the kernel.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, WriteTransaction};

use super::attachment::Attachment;
use crate::crash::{self, Step};

/// The durable half of the registry.
pub struct Store {
    database: Database,
    path: PathBuf,
}

/// What a store holds.
#[derive(Debug, Default)]
pub struct Contents {
    pub attachments: Vec<Attachment>,
    /// Addresses at rest, and since when they are, the first to be released first; times are since boot.
    pub resting: Vec<(IpAddr, Duration)>,
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
    /// A record that this agent does not understand.
    #[error("the registry's store {path:?} has a record that cannot be read: {key}")]
    Record {
        path: PathBuf,
        key: String,
        #[source]
        source: serde_json::Error,
    },
    /// It was written by an agent with another layout.
    #[error("the registry's store {path:?} has layout {found}, and this agent reads layout {SCHEMA}")]
    Schema { path: PathBuf, found: u64 },
}

/// Layout of the tables. A change of it needs a migration here.
const SCHEMA: u64 = 1;
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Key as text → [`Attachment`] as JSON.
const ATTACHMENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("attachments");
/// Address as text → when it was released, in milliseconds since boot.
const RESTING: TableDefinition<'_, &str, u64> = TableDefinition::new("resting");

// === impl Store ===

impl Store {
    /// Opens the store at a path, or makes one.
    ///
    /// # Errors
    /// If it cannot be opened, or has another layout.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let database = Database::create(path)
            .map_err(|source| StoreError::Open { path: path.to_owned(), source: Box::new(source.into()) })?;
        crash::point(Step::StoreOpened);
        let store = Self { database, path: path.to_owned() };
        match store.prepare().map_err(|source| store.failed("prepare", source))? {
            SCHEMA => Ok(store),
            found => Err(StoreError::Schema { path: path.to_owned(), found }),
        }
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// If it cannot be read, or a record is not understood.
    pub fn load(&self) -> Result<Contents, StoreError> {
        let (attachments, mut resting) = self.read().map_err(|source| self.failed("read", source))?;
        let decode = |(key, json): (String, Vec<u8>)| {
            serde_json::from_slice(&json).map_err(|source| StoreError::Record {
                path: self.path.clone(),
                key,
                source,
            })
        };
        let attachments = attachments.into_iter().map(decode).collect::<Result<_, _>>()?;
        resting.sort_by_key(|(_, since)| *since);
        Ok(Contents { attachments, resting })
    }

    /// Writes an attachment as it is now.
    ///
    /// # Errors
    /// If it could not be written; then the store is as it was.
    pub fn put(&self, attachment: &Attachment) -> Result<(), StoreError> {
        let key = attachment.key.to_string();
        let json = serde_json::to_vec(attachment).map_err(|source| StoreError::Record {
            path: self.path.clone(),
            key: key.clone(),
            source,
        })?;
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            transaction.open_table(ATTACHMENTS)?.insert(key.as_str(), json.as_slice())?;
            commit(transaction)
        };
        write().map_err(|source| self.failed("write to", source))
    }

    /// Removes an attachment, and lets addresses rest that had been in use. Those that have rested until `rested` are
    /// forgotten.
    ///
    /// # Errors
    /// If it could not be written; then the store is as it was.
    pub fn remove(
        &self,
        key: &super::Key,
        resting: impl Iterator<Item = IpAddr>,
        now: Duration,
        rested: Duration,
    ) -> Result<(), StoreError> {
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            transaction.open_table(ATTACHMENTS)?.remove(key.to_string().as_str())?;
            {
                let mut table = transaction.open_table(RESTING)?;
                table.retain(|_, since| since > millis(rested))?;
                for address in resting {
                    table.insert(address.to_string().as_str(), millis(now))?;
                }
            }
            commit(transaction)
        };
        write().map_err(|source| self.failed("write to", source))
    }

    fn prepare(&self) -> Result<u64, redb::Error> {
        let transaction = self.database.begin_write()?;
        let found = {
            let mut meta = transaction.open_table(META)?;
            let found = meta.get("schema")?.map(|schema| schema.value());
            if found.is_none() {
                meta.insert("schema", SCHEMA)?;
            }
            found.unwrap_or(SCHEMA)
        };
        transaction.open_table(ATTACHMENTS)?;
        transaction.open_table(RESTING)?;
        commit(transaction)?;
        Ok(found)
    }

    #[expect(clippy::type_complexity, reason = "raw records, decoded by the only caller")]
    fn read(&self) -> Result<(Vec<(String, Vec<u8>)>, Vec<(IpAddr, Duration)>), redb::Error> {
        let transaction = self.database.begin_read()?;
        let mut attachments = Vec::new();
        for record in transaction.open_table(ATTACHMENTS)?.iter()? {
            let (key, json) = record?;
            attachments.push((key.value().to_owned(), json.value().to_owned()));
        }
        let mut resting = Vec::new();
        for record in transaction.open_table(RESTING)?.iter()? {
            let (address, since) = record?;
            if let Ok(address) = address.value().parse() {
                resting.push((address, Duration::from_millis(since.value())));
            }
        }
        Ok((attachments, resting))
    }

    fn failed(&self, what: &'static str, source: redb::Error) -> StoreError {
        StoreError::Access { what, path: self.path.clone(), source: Box::new(source) }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rests_longest_comes_first_whatever_its_address() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("registry.redb")).unwrap();
        let key = super::super::Key::try_from("net/a/eth0".to_owned()).unwrap();
        let release = |address: &str, at: u64| {
            let address: IpAddr = address.parse().unwrap();
            store.remove(&key, std::iter::once(address), Duration::from_secs(at), Duration::ZERO).unwrap();
        };
        release("10.0.0.3", 75);
        release("10.0.0.2", 100);
        let resting = store.load().unwrap().resting;
        assert_eq!(resting.iter().map(|(_, since)| since.as_secs()).collect::<Vec<_>>(), [75, 100]);
    }
}
