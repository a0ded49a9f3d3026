//! The files of the store: writing, comparing and removing them.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::watch;

use super::{
    error::StoreError,
    identity::Identity,
    record::{self, Kept, MAX_BYTES, META, Meta, Record},
};
use crate::{
    chain::chain,
    crash::{self, Step},
    durable::Directory,
    registry::key::Key,
};

/// The files of the attachments, and of the addresses in cooldown.
pub struct Store {
    directory: RwLock<Arc<Directory>>,
    /// The store of builds with a database, until all its attachments are rebuilt.
    earlier: PathBuf,
    pub(super) own: Identity,
    trouble: watch::Sender<Option<String>>,
}

// === impl Store ===

impl Store {
    pub(super) fn new(directory: Directory, earlier: PathBuf, own: &Identity) -> Self {
        let directory = RwLock::new(Arc::new(directory));
        Self { directory, earlier, own: own.clone(), trouble: watch::Sender::default() }
    }

    /// The error of the last write; `None` if the write succeeded.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// Whether the directory has been neither removed nor replaced.
    pub fn is_in_place(&self) -> bool {
        self.directory().is_in_place()
    }

    /// Writes what is kept of a key, or removes its file.
    ///
    /// # Errors
    /// If the write fails, and the file stays as it was; or if the directory was removed or replaced.
    pub fn put(&self, key: &Key, kept: &Kept) -> Result<(), StoreError> {
        self.told(|directory| self.write(directory, key, kept))
    }

    /// Whether the file of a key has the expected content.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn holds(&self, key: &Key, kept: &Kept) -> Result<bool, StoreError> {
        let directory = self.directory();
        let found =
            directory.read(&record::name(key), MAX_BYTES).map_err(|it| failed(&directory, "read", it))?;
        let expected = (*kept != Kept::default()).then(|| self.encode(key, kept)).transpose()?;
        Ok(found == expected)
    }

    /// Whether the mark of completeness has the expected content.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn holds_mark(&self, complete: bool) -> Result<bool, StoreError> {
        let directory = self.directory();
        let found = directory.read(META, MAX_BYTES).map_err(|it| failed(&directory, "read", it))?;
        Ok(found == Some(Meta::new(&self.own, complete).encode()))
    }

    /// The keys that have a file.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn keys(&self) -> Result<Vec<Key>, StoreError> {
        let directory = self.directory();
        let names = directory.names().map_err(|it| failed(&directory, "read", it))?;
        Ok(names.iter().filter_map(|name| record::key(name.to_str()?)).collect())
    }

    /// Records whether every attachment of the kernel has a record. Then the store of a build with a database
    /// is obsolete.
    ///
    /// # Errors
    /// If the write fails.
    pub fn mark(&self, complete: bool) -> Result<(), StoreError> {
        self.told(|directory| {
            let meta = Meta::new(&self.own, complete).encode();
            directory.write(META, &meta).map_err(|it| failed(directory, "write to", it))
        })?;
        if complete {
            let removed = std::fs::remove_file(&self.earlier);
            crash::point(Step::StoreEarlierRemoved);
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = ?self.earlier, %error, "cannot remove the store of an earlier build");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Creates a removed or replaced directory again, with these records.
    ///
    /// # Errors
    /// If a write fails.
    pub fn recreate(&self, records: &[(Key, Kept)], complete: bool) -> Result<(), StoreError> {
        let path = self.directory().path().to_owned();
        let recreated = Directory::open(&path).map_err(StoreError::Directory).and_then(|directory| {
            let mark = |complete| {
                let meta = Meta::new(&self.own, complete).encode();
                directory.write(META, &meta).map_err(|it| failed(&directory, "write to", it))
            };
            directory.clear().map_err(|it| failed(&directory, "write to", it))?;
            // An agent that starts after a crash in between rebuilds the missing records.
            mark(false)?;
            for (key, kept) in records {
                self.write(&directory, key, kept)?;
            }
            mark(complete)?;
            Ok(directory)
        });
        let recreated = self.told(|_| recreated)?;
        *self.directory.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(recreated);
        Ok(())
    }

    fn write(&self, directory: &Directory, key: &Key, kept: &Kept) -> Result<(), StoreError> {
        let name = record::name(key);
        let written = if *kept == Kept::default() {
            directory.remove(&name)
        } else {
            directory.write(&name, &self.encode(key, kept)?)
        };
        // Without its directory, the file is lost with the agent.
        if !directory.is_in_place() {
            return Err(StoreError::Displaced { path: directory.path().to_owned() });
        }
        written.map_err(|source| failed(directory, "write to", source))
    }

    fn encode(&self, key: &Key, kept: &Kept) -> Result<Vec<u8>, StoreError> {
        let encoded = Record::new(&self.own, key, kept).encode();
        encoded.map_err(|source| StoreError::Encode { key: key.clone(), source })
    }

    /// Does work that writes, and publishes whether it succeeded.
    fn told<T>(&self, work: impl FnOnce(&Directory) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let done = work(&self.directory());
        let why = done.as_ref().err().map(|error| chain(error));
        self.trouble.send_if_modified(|before| {
            let is_other = *before != why;
            *before = why;
            is_other
        });
        done
    }

    pub(super) fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory.read().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn failed(directory: &Directory, operation: &'static str, source: std::io::Error) -> StoreError {
    StoreError::Access { operation, path: directory.path().to_owned(), source }
}
