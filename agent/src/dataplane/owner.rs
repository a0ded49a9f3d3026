//! The network namespace whose pods the pinned maps serve.
//!
//! Interface indexes, the maps' keys, mean something in one namespace only: an agent of another one that
//! shares the BPF file system would take all entries for strays. So the directory of pins holds a symbolic
//! link `netns` whose target names the namespace. The record outlives its namespace, as on a node that is a
//! container; its maps are free as soon as no filter uses them. Pins of an earlier build have no record, and
//! belong to the first agent that finds them.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use aya::{
    maps::MapInfo,
    programs::{ProgramError, loaded_programs},
};

use super::{maps::VIFS, verified};
use crate::{
    crash::{self, Step},
    plug::netns,
};

/// The maps cannot be used from this namespace.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    #[error(
        "the maps that are pinned below {path:?} serve pods of the network namespace {owner:?}, and this agent runs \
         in {own:?}; run the agent in the node's network namespace (hostNetwork: true), and give each of several \
         nodes on one machine its own directory with --bpf-dir"
    )]
    Elsewhere { path: PathBuf, owner: String, own: String },
    #[error("cannot read the identity of the agent's network namespace")]
    Own(#[source] io::Error),
    #[error(
        "cannot read or write the owner of the pinned maps, the symbolic link {path:?}; remove whatever has its name"
    )]
    Record {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "cannot remove the pins of programs in {path:?}, by which the maps of another network namespace seem to be in \
         use; remove the files in it whose names begin with a small letter"
    )]
    Unpin {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot find out whether programs use the maps of another network namespace")]
    Programs(#[source] ProgramError),
}

pub(super) const RECORD: &str = "netns";

/// How often programs without a pin are looked for, and the pause after each look.
const FREED_ATTEMPTS: usize = 20;
const FREED_BACKOFF: Duration = Duration::from_millis(25);

/// Records the calling thread's namespace as the owner of the maps that are pinned below `directory`.
///
/// # Errors
/// If the recorded owner is another namespace, and filters still use its maps. Only the pins of the programs
/// are gone then.
pub(super) fn claim(directory: &Path) -> Result<(), OwnerError> {
    let path = directory.join(RECORD);
    let own = netns::identity().map_err(OwnerError::Own)?;
    let failed = |source| OwnerError::Record { path: path.clone(), source };
    match fs::read_link(&path) {
        Ok(owner) if owner == Path::new(&own) => return Ok(()),
        Ok(owner) => {
            let owner = owner.to_string_lossy().into_owned();
            if are_used_by_filters(directory)? {
                return Err(OwnerError::Elsewhere { path: directory.to_owned(), owner, own });
            }
            tracing::info!(?directory, owner, own, "no program uses the pinned maps: taking them over");
            fs::remove_file(&path).map_err(failed)?;
            crash::point(Step::PinRemoved);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    symlink(&own, &path).map_err(failed)?;
    crash::point(Step::OwnerRecorded);
    Ok(())
}

/// Whether filters use the maps. Removes the pins of programs, because a pinned program uses them without any
/// filter. The next start loads the programs again.
fn are_used_by_filters(directory: &Path) -> Result<bool, OwnerError> {
    for version in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = version.path();
        if path.is_dir() {
            verified::unpin(&path).map_err(|source| OwnerError::Unpin { path, source })?;
        }
    }
    // The kernel frees a program some milliseconds after its last pin.
    for _ in 0..FREED_ATTEMPTS {
        if !are_in_use(directory)? {
            return Ok(false);
        }
        thread::sleep(FREED_BACKOFF);
    }
    are_in_use(directory)
}

/// Whether a loaded program uses the pinned `VIFS` of any version. The kernel frees a program with its last
/// filter, and so with the last pod's interface of a namespace.
fn are_in_use(directory: &Path) -> Result<bool, OwnerError> {
    let versions = fs::read_dir(directory).into_iter().flatten().flatten();
    let maps: Vec<u32> = versions
        .filter_map(|version| MapInfo::from_pin(VIFS.path(&version.path())).ok())
        .map(|map| map.id())
        .collect();
    for program in loaded_programs() {
        // A program that is unloaded meanwhile has no information.
        let used = match program.and_then(|program| program.map_ids()) {
            Ok(used) => used.unwrap_or_default(),
            Err(ProgramError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            Err(error) => return Err(OwnerError::Programs(error)),
        };
        if used.iter().any(|id| maps.contains(id)) {
            return Ok(true);
        }
    }
    Ok(false)
}
