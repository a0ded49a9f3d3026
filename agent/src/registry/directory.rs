//! The state directory and its lock: one agent per state directory.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::error::RegistryError;
use crate::crash::{self, Step};

/// Creates the state directory if it is missing, and locks it for this process. The kernel drops the lock
/// when the process ends, whatever ends it.
pub(super) fn lock(directory: &Path) -> Result<Flock<File>, RegistryError> {
    let failed = |source: io::Error| RegistryError::Directory { path: directory.to_owned(), source };
    if fs::metadata(directory).is_ok_and(|it| !it.is_dir()) {
        let what = "the path leads to a file, expected a directory: move the file away, or choose another --state-dir";
        return Err(failed(io::Error::new(io::ErrorKind::NotADirectory, what)));
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    crash::point(Step::StateCreated);
    let path = directory.join("agent.lock");
    let file =
        File::options().create(true).read(true).write(true).truncate(false).open(&path).map_err(failed)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            lock.set_len(0).map_err(failed)?;
            lock.rewind().map_err(failed)?;
            write!(lock, "{}", std::process::id()).map_err(failed)?;
            Ok(lock)
        }
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            let read = file.read_to_string(&mut pid);
            let pid = read.ok().map(|_| pid).filter(|pid| !pid.is_empty());
            Err(RegistryError::Locked { path: directory.to_owned(), pid })
        }
        Err((_, errno)) => Err(failed(errno.into())),
    }
}
