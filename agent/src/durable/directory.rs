//! A directory of small files, each replaced as a whole.

use std::{
    ffi::OsString,
    fs::{self, File, FileType},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::crash::{self, Step};

/// An open directory. Its files are named by their users; `new-N` is an unfinished file, `corrupt-N` one in
/// quarantine.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Keeps the inode number from being used again, so that a replaced directory is noticed.
    handle: File,
    /// Numbers the unfinished files.
    next: AtomicU64,
}

/// A directory that cannot be opened or created.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error(
        "{path:?} is {found}, expected a directory: move {found} away, and the agent creates a directory"
    )]
    Other { path: PathBuf, found: &'static str },
    #[error("cannot open or create the directory {path:?}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

const UNFINISHED: &str = "new-";
const QUARANTINED: &str = "corrupt-";
/// Files in quarantine that are kept, the newest ones.
const KEPT: usize = 16;

// === impl Directory ===

impl Directory {
    /// Opens a directory, and creates it if it is missing.
    ///
    /// # Errors
    /// If the path leads to something else, or cannot be opened or created.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: path.to_owned(), source };
        let kind = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            metadata => Some(metadata.map_err(failed)?.file_type()),
        };
        if let Some(kind) = kind.filter(|kind| !kind.is_dir()) {
            return Err(DirectoryError::Other { path: path.to_owned(), found: name_of(kind) });
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        crash::point(Step::StoreDirectoryCreated);
        let handle = File::open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), handle, next: AtomicU64::new(0) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to this directory.
    pub fn is_in_place(&self) -> bool {
        is_same(fs::metadata(&self.path), &self.handle)
    }

    /// The names of the files, sorted; without unfinished and quarantined ones.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = self.all_names()?;
        names.retain(|name| number(name, UNFINISHED).is_none() && number(name, QUARANTINED).is_none());
        names.sort_unstable();
        Ok(names)
    }

    /// The first `limit` bytes of a file; `None` if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let path = self.path.join(name);
        let file = match fs::symlink_metadata(&path) {
            // Opening a FIFO or a device may block or worse.
            Ok(metadata) if !metadata.is_file() => return Ok(Some(Vec::new())),
            Ok(_) => File::open(&path),
            Err(error) => Err(error),
        };
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Creates or replaces a file, atomically.
    ///
    /// # Errors
    /// If the file cannot be written, as on a full disk; an existing one then stays as it was.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.write_with(name, |file| file.write_all(bytes)).map(drop)
    }

    /// As [`Self::write`], in parts. Returns the file, open for reading and appending.
    ///
    /// # Errors
    /// As of [`Self::write`].
    pub fn write_with(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.path.join(format!("{UNFINISHED}{number}"));
        let mut file =
            File::options().read(true).append(true).create_new(true).mode(0o600).open(&unfinished)?;
        let written = write(&mut file);
        crash::point(Step::StoreWritten);
        let placed = written.and_then(|()| fs::rename(&unfinished, self.path.join(name)));
        crash::point(Step::StorePlaced);
        match placed {
            Ok(()) => Ok(file),
            Err(error) => {
                // The next start would remove it too.
                let _ = fs::remove_file(&unfinished);
                crash::point(Step::StoreCleared);
                Err(error)
            }
        }
    }

    /// Whether a name leads to this open file.
    pub fn leads_to(&self, name: &str, file: &File) -> bool {
        is_same(fs::symlink_metadata(self.path.join(name)), file)
    }

    /// Removes a file. A missing one is no error.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let removed = fs::remove_file(self.path.join(name));
        crash::point(Step::StoreRemoved);
        removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
    }

    /// Removes the unfinished files of an earlier agent.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub fn clear(&self) -> io::Result<()> {
        for name in self.all_names()?.iter().filter(|name| number(name, UNFINISHED).is_some()) {
            fs::remove_file(self.path.join(name))?;
            crash::point(Step::StoreCleared);
        }
        Ok(())
    }

    /// Whether a damaged file was found; yes if that cannot be read.
    pub fn has_quarantined(&self) -> bool {
        self.all_names().map_or(true, |names| names.iter().any(|name| number(name, QUARANTINED).is_some()))
    }

    /// Renames a damaged file to `corrupt-N`, for people to examine, and returns the new path.
    ///
    /// # Errors
    /// If the file cannot be renamed.
    pub fn quarantine(&self, name: &str) -> io::Result<PathBuf> {
        let mut earlier: Vec<u64> =
            self.all_names()?.iter().filter_map(|name| number(name, QUARANTINED)).collect();
        earlier.sort_unstable();
        let path = |number: u64| self.path.join(format!("{QUARANTINED}{number}"));
        let to = path(earlier.last().map_or(1, |last| last.saturating_add(1)));
        fs::rename(self.path.join(name), &to)?;
        crash::point(Step::StoreQuarantined);
        for oldest in earlier.into_iter().rev().skip(KEPT - 1).map(path) {
            if let Err(error) = fs::remove_file(&oldest) {
                tracing::warn!(?oldest, %error, "cannot remove a quarantined file");
            }
            crash::point(Step::StoreForgotten);
        }
        Ok(to)
    }

    fn all_names(&self) -> io::Result<Vec<OsString>> {
        fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect()
    }
}

fn is_same(found: io::Result<fs::Metadata>, file: &File) -> bool {
    found
        .and_then(|found| Ok((file.metadata()?, found)))
        .is_ok_and(|(held, found)| (held.dev(), held.ino()) == (found.dev(), found.ino()))
}

fn number(name: &OsString, prefix: &str) -> Option<u64> {
    name.to_str()?.strip_prefix(prefix)?.parse().ok()
}

fn name_of(kind: FileType) -> &'static str {
    if kind.is_file() {
        "a file"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_fifo() {
        "a FIFO"
    } else {
        "a device"
    }
}
