//! A database that goes on after the disk was full.
//!
//! redb refuses all work from the first write on that failed, until its file is opened again: also when there is room again. And it
//! panics over pages that are not what they say.

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

/// An open file, which is opened again after an error.
pub struct DurableDb {
    path: PathBuf,
    open: RwLock<Open>,
    /// It has been said.
    is_failing: AtomicBool,
}

struct Open {
    /// None if it could not be opened again.
    database: Option<Database>,
    /// How often it was opened again.
    times: u64,
}

/// In bytes. The files are small, and on a tmpfs; a copy of all of their pages, made by many threads a few at a time, would keep as much
/// memory again from being given back.
const CACHE: usize = 128 << 10;

// === impl DurableDb ===

impl DurableDb {
    pub fn new(database: Database, path: &Path) -> Self {
        let open = Open { database: Some(database), times: 0 };
        Self { path: path.to_owned(), open: RwLock::new(open), is_failing: AtomicBool::new(false) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads.
    ///
    /// # Errors
    /// If it fails, and also with the file opened again.
    pub fn read<T>(
        &self,
        read: impl Fn(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        self.retried(|database| read(&database.begin_read()?))
    }

    /// Writes, all or nothing, and durably.
    ///
    /// # Errors
    /// If it fails, and also with the file opened again. Then nothing was written, as far as the disk can be believed.
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

    /// What failed half way may be in the file or not: it is done again as a whole.
    fn retried<T>(&self, work: impl Fn(&Database) -> Result<T, redb::Error>) -> Result<T, redb::Error> {
        let attempt = |open: &Open| match &open.database {
            Some(database) => catch_panic(|| work(database)),
            None => Err(redb::Error::DatabaseClosed),
        };
        let (failed, times) = {
            let open = self.open();
            match attempt(&open) {
                Err(error) => (error, open.times),
                done => {
                    self.is_failing.store(false, Ordering::Relaxed);
                    return done;
                }
            }
        };
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(path = ?self.path, error = %failed, "opening the file again");
        }
        self.open_again(times)?;
        attempt(&self.open())
    }

    /// Opens the file again, unless somebody else has since.
    fn open_again(&self, times: u64) -> Result<(), redb::Error> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.times == times || open.database.is_none() {
            // It has a lock on the file.
            open.database = None;
            open.database = Some(catch_panic(|| Ok(builder().open(&self.path)?))?);
            crash::point(Step::StoreOpened);
            open.times += 1;
        }
        Ok(())
    }

    fn open(&self) -> RwLockReadGuard<'_, Open> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How files are opened.
pub fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

/// What a closure gives; a panic is an error.
pub fn catch_panic<T>(what: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(redb::Error::Corrupted(format!("it makes no sense: {text}")))
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
