//! The pins of the maps, by which the next agent finds them.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use aya::{
    maps::{MapData, MapError, MapInfo},
    pin::PinError,
};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::maps::{MapFailure, MapSpec, PINNED};
use crate::crash::{self, Step};

/// The pinned maps, kept open so that lost pins can be restored.
pub(super) struct Pins {
    directory: PathBuf,
    maps: Vec<(MapSpec, MapData)>,
}

/// An exclusive lock on the pins below a directory, for agents of all network namespaces that share the file
/// system.
pub(super) struct PinLock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

/// A directory for pins that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinDirectoryError {
    #[error(
        "{path:?} is not on a BPF file system; mount one where the parent of --bpf-dir is: mount -t bpf bpf {}",
        mount_point(path).display()
    )]
    NotBpffs { path: PathBuf },
    #[error("cannot use the directory of pins {path:?}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// An agent in another network namespace: a second agent in the same one fails earlier.
    #[error(
        "another agent uses the maps that are pinned below {path:?}; run the agent in the node's network namespace \
         (hostNetwork: true), and give each of several nodes on one machine its own directory with --bpf-dir"
    )]
    SecondAgent { path: PathBuf },
}

/// A lost pin that cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum PinFailure {
    #[error(transparent)]
    Directory(#[from] PinDirectoryError),
    /// A foreign file with the name of the pin is left alone.
    #[error("cannot pin the map {map}")]
    Pin {
        map: &'static str,
        #[source]
        source: PinError,
    },
}

/// Attempts to lock: a killed agent may still be exiting when its successor starts.
const LOCK_ATTEMPTS: usize = 5;
const LOCK_BACKOFF: Duration = Duration::from_millis(50);

/// Creates a directory on a BPF file system, with its parents.
///
/// # Errors
/// If the path is not on a BPF file system, or the directory cannot be created.
pub(super) fn make_directory(pins: &Path) -> Result<(), PinDirectoryError> {
    let failed = |source| PinDirectoryError::Io { path: pins.to_owned(), source };
    // Checked on the nearest existing ancestor, before any directory is created.
    let existing = pins.ancestors().find(|part| part.exists()).unwrap_or(pins);
    let is_bpffs = statfs(existing).map_err(|errno| failed(errno.into()))?.filesystem_type() == BPF_FS_MAGIC;
    if !is_bpffs {
        return Err(PinDirectoryError::NotBpffs { path: pins.to_owned() });
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(pins).map_err(failed)?;
    crash::point(Step::PinsCreated);
    Ok(())
}

/// The parent of `--bpf-dir`, from the directory of the pins of one ABI version below it.
fn mount_point(pins: &Path) -> &Path {
    pins.ancestors().nth(2).unwrap_or(pins)
}

// === impl PinLock ===

impl PinLock {
    /// Takes the lock. Call before any of the maps is opened.
    ///
    /// # Errors
    /// If another agent holds the lock.
    pub(super) fn take(directory: &Path) -> Result<Self, PinDirectoryError> {
        let failed = |source| PinDirectoryError::Io { path: directory.to_owned(), source };
        let file = File::open(directory).map_err(failed)?;
        for _ in 0..LOCK_ATTEMPTS {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_BACKOFF),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(PinDirectoryError::SecondAgent { path: directory.to_owned() })
    }
}

// === impl Pins ===

impl Pins {
    /// Opens the pinned maps.
    pub(super) fn open(directory: &Path) -> Result<Self, MapFailure> {
        let open = |map: &MapSpec| {
            let opened = MapData::from_pin(map.path(directory));
            opened.map(|data| (*map, data)).map_err(map.failure("open"))
        };
        let maps = PINNED.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { directory: directory.to_owned(), maps })
    }

    /// The maps whose pins are missing, or are pins of another map. A pin that cannot be read counts as
    /// present.
    pub(super) fn lost(&self) -> Vec<&'static str> {
        self.maps.iter().filter(|(map, data)| self.is_lost(map, data)).map(|(map, _)| map.name).collect()
    }

    /// Pins a map again, if its pin is lost.
    pub(super) fn restore(&self, name: &str) -> Result<(), PinFailure> {
        make_directory(&self.directory)?;
        let mut lost = self.maps.iter().filter(|(map, data)| map.name == name && self.is_lost(map, data));
        lost.try_for_each(|(map, data)| {
            data.pin(map.path(&self.directory))
                .map_err(|source| PinFailure::Pin { map: map.name, source })?;
            crash::point(Step::MapsPinned);
            Ok(())
        })
    }

    fn is_lost(&self, map: &MapSpec, data: &MapData) -> bool {
        let path = map.path(&self.directory);
        if !path.exists() {
            return true;
        }
        let ids = || Ok::<_, MapError>((MapInfo::from_pin(&path)?.id(), data.info()?.id()));
        ids().is_ok_and(|(pinned, own)| pinned != own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_about_a_missing_bpf_file_system_names_the_given_path() {
        let dir = tempfile::tempdir().unwrap();
        let pins = dir.path().join("bpf/ferrule/v1");
        let error = make_directory(&pins).unwrap_err().to_string();
        let hint = format!("mount -t bpf bpf {}/bpf", dir.path().display());
        assert!(error.ends_with(&hint), "{error}");
        assert_eq!(mount_point(Path::new("/sys/fs/bpf/ferrule/v1")), Path::new("/sys/fs/bpf"));
    }
}
