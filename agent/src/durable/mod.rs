//! A redb file that survives I/O errors.
//!
//! After a failed write, for instance on a full disk, redb refuses all work until the file is reopened. And
//! redb panics over corrupt pages.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{Builder, Database, ReadTransaction, ReadableDatabase as _, WriteTransaction};

use crate::crash::{self, Step};

/// A redb file that is reopened after an error.
pub struct DurableDb {
    path: PathBuf,
    open: RwLock<Open>,
    /// Whether the current failure has been logged.
    is_failing: AtomicBool,
}

struct Open {
    /// `None` if reopening failed.
    database: Option<Database>,
    /// Counts the reopenings.
    generation: u64,
}

/// Bytes. The files are small and on a tmpfs; a cache of all their pages, filled by many threads, would
/// double the memory and keep the allocator from returning it.
const CACHE_SIZE: usize = 128 << 10;

// === impl DurableDb ===

impl DurableDb {
    pub fn new(database: Database, path: &Path) -> Self {
        let open = Open { database: Some(database), generation: 0 };
        Self { path: path.to_owned(), open: RwLock::new(open), is_failing: AtomicBool::new(false) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a read transaction.
    ///
    /// # Errors
    /// If the transaction fails again after the file was reopened.
    pub fn read<T>(
        &self,
        read: impl Fn(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        self.retried(|database| read(&database.begin_read()?))
    }

    /// Runs a write transaction, and makes it durable.
    ///
    /// # Errors
    /// If the transaction fails again after the file was reopened. Then nothing was written, unless the disk
    /// lies.
    pub fn write(
        &self,
        write: impl Fn(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        self.retried(|database| {
            let transaction = database.begin_write()?;
            write(&transaction)?;
            crash::point(Step::StoreWritten);
            transaction.commit()?;
            crash::point(Step::StoreCommitted);
            Ok(())
        })
    }

    /// Runs `work`, and once more after reopening the file. It must be idempotent: the outcome of a failed
    /// commit is unknown.
    fn retried<T>(&self, work: impl Fn(&Database) -> Result<T, redb::Error>) -> Result<T, redb::Error> {
        let attempt = |open: &Open| match &open.database {
            Some(database) => catch_panic(|| work(database)),
            None => Err(redb::Error::DatabaseClosed),
        };
        let (failed, generation) = {
            let open = self.open();
            match attempt(&open) {
                Err(error) => (error, open.generation),
                done => {
                    self.is_failing.store(false, Ordering::Relaxed);
                    return done;
                }
            }
        };
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(path = ?self.path, error = %failed, "reopening a file after an error");
        }
        self.reopen(generation)?;
        attempt(&self.open())
    }

    /// Reopens the file, unless another thread has done so since `generation`.
    fn reopen(&self, generation: u64) -> Result<(), redb::Error> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.generation == generation || open.database.is_none() {
            // An open database holds a lock on the file.
            open.database = None;
            open.database = Some(catch_panic(|| Ok(builder().open(&self.path)?))?);
            crash::point(Step::StoreOpened);
            open.generation += 1;
        }
        Ok(())
    }

    fn open(&self) -> RwLockReadGuard<'_, Open> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The options with which all files are opened.
pub fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_SIZE);
    builder
}

/// Turns a panic into [`redb::Error::Corrupted`].
pub fn catch_panic<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(redb::Error::Corrupted(format!("redb panicked: {text}")))
    })
}

#[cfg(test)]
pub mod tests {
    use std::path::Path;

    /// A directory in memory, if `/dev/shm` exists: thousands of fsyncs take too long on a disk.
    pub fn in_memory() -> tempfile::TempDir {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
    }
}
