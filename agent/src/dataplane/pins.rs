//! The pins of the maps, by which the next agent finds them.

use std::{
    ffi::OsStr,
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use aya::{
    maps::{MapData, MapError, MapInfo},
    pin::PinError,
};
use nix::{
    errno::Errno,
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

use super::{
    maps::{MapFailure, MapSpec, PINNED},
    owner::{self, OwnerError},
};
use crate::{
    chain::chain,
    crash::{self, Step},
};

/// The pinned maps, kept open so that lost pins can be restored.
pub(super) struct Pins {
    /// Of this version.
    directory: PathBuf,
    maps: Vec<(MapSpec, MapData)>,
    lock: PinLock,
}

/// An exclusive lock on the pins below a directory, for agents of all network namespaces that share the file
/// system.
pub(super) struct PinLock {
    directory: PathBuf,
    /// The locked directory: closing the file releases the lock.
    file: Mutex<File>,
}

/// A directory for pins that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinDirectoryError {
    #[error(
        "the directory of pins {path:?} (--bpf-dir) is not on a BPF file system; mount one: {}",
        remedy(path)
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
    #[error(transparent)]
    Owner(#[from] OwnerError),
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
/// Separates version and number in the name of a directory that was set aside. bpffs allows no dots.
pub(super) const SET_ASIDE: &str = "-old-";

/// Creates `--bpf-dir`, with its parents.
///
/// # Errors
/// If the path is not on a BPF file system, or the directory cannot be created.
pub(super) fn make_bpf_dir(bpf_dir: &Path) -> Result<(), PinDirectoryError> {
    bpffs(bpf_dir)?;
    make_directory(bpf_dir)
}

/// Removes the pins of every version below `--bpf-dir`, and the directory if it has nothing else. Returns
/// whether there were any.
///
/// # Errors
/// If an agent uses them, or they cannot be removed.
pub fn remove(bpf_dir: &Path) -> Result<bool, PinDirectoryError> {
    let failed = |source| PinDirectoryError::Io { path: bpf_dir.to_owned(), source };
    match fs::metadata(bpf_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found.map_err(failed)?,
    };
    bpffs(bpf_dir)?;
    let _lock = lock(bpf_dir)?;
    remove_own(bpf_dir).map(|()| true).map_err(failed)
}

fn remove_own(bpf_dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(bpf_dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == owner::RECORD {
            fs::remove_file(entry.path())?;
        } else if is_version(&name) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    match fs::remove_dir(bpf_dir) {
        // Pins of another program, or a mount.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::ResourceBusy) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Whether a directory has the name of a version's pins, in use or set aside.
pub(super) fn is_version(name: &OsStr) -> bool {
    let name = name.to_str().and_then(|name| name.strip_prefix('v'));
    name.is_some_and(|name| {
        let (version, number) = name.split_once(SET_ASIDE).unwrap_or((name, "0"));
        [version, number].iter().all(|it| it.parse::<u32>().is_ok())
    })
}

/// Creates a directory of pins.
///
/// # Errors
/// If the directory cannot be created.
pub(super) fn make_directory(pins: &Path) -> Result<(), PinDirectoryError> {
    let failed = |source| PinDirectoryError::Io { path: pins.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(pins).map_err(failed)?;
    crash::point(Step::PinsCreated);
    Ok(())
}

/// Refuses a `--bpf-dir` outside of a BPF file system, by its nearest existing ancestor.
fn bpffs(bpf_dir: &Path) -> Result<(), PinDirectoryError> {
    let existing = bpf_dir.ancestors().find(|part| part.exists()).unwrap_or(bpf_dir);
    let failed = |errno: Errno| PinDirectoryError::Io { path: bpf_dir.to_owned(), source: errno.into() };
    let is_bpffs = statfs(existing).map_err(failed)?.filesystem_type() == BPF_FS_MAGIC;
    if is_bpffs { Ok(()) } else { Err(PinDirectoryError::NotBpffs { path: bpf_dir.to_owned() }) }
}

/// The command that mounts a BPF file system for a `--bpf-dir`: in the usual place, or on the directory
/// itself, because a mount on a parent would hide what is there.
fn remedy(bpf_dir: &Path) -> String {
    const USUAL: &str = "/sys/fs/bpf";
    if bpf_dir.starts_with(USUAL) {
        format!("mount -t bpf bpf {USUAL}")
    } else {
        let bpf_dir = bpf_dir.display();
        format!("mkdir -p {bpf_dir} && mount -t bpf bpf {bpf_dir}")
    }
}

// === impl PinLock ===

impl PinLock {
    /// Takes the lock. Call before any of the maps is opened.
    ///
    /// # Errors
    /// If another agent holds the lock.
    pub(super) fn take(directory: &Path) -> Result<Self, PinDirectoryError> {
        Ok(Self { directory: directory.to_owned(), file: Mutex::new(lock(directory)?) })
    }

    /// Locks the directory that the path names now, if that is another one: the locked directory may have
    /// been removed, or hidden by a mount.
    ///
    /// # Errors
    /// If another agent holds that lock, or there is no directory.
    fn renew(&self) -> Result<(), PinDirectoryError> {
        let failed = |source| PinDirectoryError::Io { path: self.directory.clone(), source };
        let identity = |it: fs::Metadata| (it.dev(), it.ino());
        let mut held = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let now = fs::metadata(&self.directory).map_err(failed)?;
        if identity(now) != identity(held.metadata().map_err(failed)?) {
            *held = lock(&self.directory)?;
        }
        Ok(())
    }
}

fn lock(directory: &Path) -> Result<File, PinDirectoryError> {
    let failed = |source| PinDirectoryError::Io { path: directory.to_owned(), source };
    let file = File::open(directory).map_err(failed)?;
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_BACKOFF),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(PinDirectoryError::SecondAgent { path: directory.to_owned() })
}

// === impl Pins ===

impl Pins {
    /// Opens the pinned maps.
    pub(super) fn open(directory: &Path, lock: PinLock) -> Result<Self, MapFailure> {
        let open = |map: &MapSpec| {
            let opened = MapData::from_pin(map.path(directory));
            opened.map(|data| (*map, data)).map_err(map.failure("open"))
        };
        let maps = PINNED.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { directory: directory.to_owned(), maps, lock })
    }

    /// The directory of the pins.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The maps whose pins are missing, or are pins of another map. A pin that cannot be read counts as
    /// present.
    pub(super) fn lost(&self) -> Vec<&'static str> {
        self.maps.iter().filter(|(map, data)| self.is_lost(map, data)).map(|(map, _)| map.name).collect()
    }

    /// Why the next agent would not find the maps, or another one could take them; `None` if all is well.
    pub(super) fn trouble(&self) -> Option<String> {
        let lost = self.lost();
        if lost.is_empty() {
            return self.lock.renew().err().map(|error| chain(&error));
        }
        let why = match bpffs(&self.lock.directory) {
            Err(error) => chain(&error),
            Ok(()) => format!("the pins below {:?} were removed or hidden by a mount", self.directory),
        };
        let lost = lost.join(", ");
        Some(format!("{why}: the next agent would not find the maps {lost}, and start with empty ones"))
    }

    /// Pins a map again, if its pin is lost. The directory may be a new one, which another agent can have
    /// taken.
    pub(super) fn restore(&self, name: &str) -> Result<(), PinFailure> {
        make_bpf_dir(&self.lock.directory)?;
        self.lock.renew()?;
        owner::claim(&self.lock.directory)?;
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_hint_about_a_missing_bpf_file_system_mounts_it_where_it_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let bpf_dir = dir.path().join("bpf/ferrule");
        let error = make_bpf_dir(&bpf_dir).unwrap_err().to_string();
        let given = bpf_dir.display();
        let expected = format!(
            "the directory of pins \"{given}\" (--bpf-dir) is not on a BPF file system; mount one: \
             mkdir -p {given} && mount -t bpf bpf {given}"
        );
        assert_eq!(error, expected);
        assert!(!bpf_dir.exists());
        for usual in ["/sys/fs/bpf", "/sys/fs/bpf/ferrule", "/sys/fs/bpf/node/2"] {
            assert_eq!(remedy(Path::new(usual)), "mount -t bpf bpf /sys/fs/bpf");
        }
        assert!(remedy(Path::new("/sys/fs")).ends_with("mount -t bpf bpf /sys/fs"));
    }

    #[test]
    fn pins_of_all_versions_are_removed_also_those_that_were_set_aside_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let names = |bpf_dir: &Path| {
            let entries = fs::read_dir(bpf_dir).unwrap();
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        let (own, shared) = (dir.path().join("own"), dir.path().join("shared"));
        let others = ["ve", "v-old-1", "v6-old-", "v6-old-x", "v6-old-1-old-2", "6-old-1", "cilium"];
        for (bpf_dir, others) in [(&own, &[][..]), (&shared, &others)] {
            for name in ["v5", "v6", "v6-old-1", "v6-old-2", "v4-old-1"].iter().chain(others) {
                fs::create_dir_all(bpf_dir.join(name)).unwrap();
                fs::write(bpf_dir.join(name).join("VIFS"), "").unwrap();
            }
            fs::write(bpf_dir.join(owner::RECORD), "").unwrap();
            remove_own(bpf_dir).unwrap();
        }
        assert!(!own.exists());
        assert_eq!(names(&shared), others.map(str::to_owned).into());
    }
}
