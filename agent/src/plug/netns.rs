//! A pod's network namespace: opened once, told apart by identity, entered by one thread at a time.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, open},
    sched::{CloneFlags, setns},
    sys::{
        stat::{Mode, fstat},
        statfs::{FsType, fstatfs},
    },
};

use crate::registry::NetnsId;

/// An open network namespace. While it is open, neither it nor its identity goes away.
#[derive(Debug)]
pub struct Netns {
    file: File,
    id: NetnsId,
    path: PathBuf,
}

/// A path that leads to no pod's network namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The path cannot be opened.
    #[error("cannot open the network namespace {path:?}")]
    Open {
        /// As it was given.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// There is something else at the path.
    #[error("{path:?} is not a network namespace")]
    NotNetns {
        /// As it was given.
        path: PathBuf,
    },
    /// It is where the agent itself is.
    #[error("{path:?} is the host's own network namespace, not a pod's")]
    Host {
        /// As it was given.
        path: PathBuf,
    },
    /// The thread could not enter.
    #[error("cannot enter the network namespace {path:?}")]
    Enter {
        /// As it was given.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// `NSFS_MAGIC` in `linux/magic.h`.
const NSFS: FsType = FsType(0x6e73_6673);

// === impl Netns ===

impl Netns {
    /// Opens the network namespace of a pod.
    ///
    /// # Errors
    /// If the path cannot be opened, leads to something else than a network namespace, or to the caller's own.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        let netns = Self::open_any(path)?;
        let host = Self::current()?;
        if netns.id == host.id {
            return Err(NetnsError::Host { path: path.to_owned() });
        }
        Ok(netns)
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open_any(Path::new("/proc/thread-self/ns/net"))
    }

    /// What tells it apart.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// By which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor's number, for a netlink attribute.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs a closure inside the namespace. The closure is synchronous, so that the thread cannot be given to
    /// another task while it is away from home.
    ///
    /// # Errors
    /// If the thread could not enter; then the closure has not run.
    pub fn run<T>(&self, inside: impl FnOnce() -> T) -> Result<T, NetnsError> {
        let home = Self::current()?;
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(|source| NetnsError::Enter { path: self.path.clone(), source: source.into() })?;
        // Only now: a thread that never left must not fail to come home.
        let home = Home(home);
        let result = inside();
        drop(home);
        Ok(result)
    }

    fn open_any(path: &Path) -> Result<Self, NetnsError> {
        let refuse = |source: nix::Error| NetnsError::Open { path: path.to_owned(), source: source.into() };
        // As a mere location first: opening a device or a pipe for reading can block or have effects.
        let located = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(refuse)?;
        let stat = fstat(&located).map_err(refuse)?;
        let on_nsfs = fstatfs(&located).map_err(refuse)?.filesystem_type() == NSFS;
        let not_netns = || NetnsError::NotNetns { path: path.to_owned() };
        if !on_nsfs {
            return Err(not_netns());
        }
        let file = File::open(format!("/proc/self/fd/{}", located.as_raw_fd()))
            .map_err(|source| NetnsError::Open { path: path.to_owned(), source })?;
        if kind(file.as_fd()).map_err(refuse)? != CloneFlags::CLONE_NEWNET.bits() {
            return Err(not_netns());
        }
        Ok(Self { file, id: NetnsId { dev: stat.st_dev, ino: stat.st_ino }, path: path.to_owned() })
    }
}

/// Brings the thread home when dropped, also by a panic.
struct Home(Netns);

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = setns(&self.0.file, CloneFlags::CLONE_NEWNET) {
            // The thread would go on to configure a pod's network as if it were the host's.
            tracing::error!(%error, "a thread cannot return to the host's network namespace: aborting");
            std::process::abort();
        }
    }
}

#[expect(unsafe_code, reason = "nix has no wrapper for the ioctls of namespaces")]
fn kind(namespace: BorrowedFd<'_>) -> nix::Result<i32> {
    // `NS_GET_NSTYPE` in `linux/nsfs.h`.
    nix::ioctl_none_bad!(ns_get_nstype, 0xb703);
    // SAFETY: the ioctl takes no argument, and the descriptor is borrowed for the length of the call.
    unsafe { ns_get_nstype(namespace.as_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_network_namespace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink("/nowhere", &dangling).unwrap();

        for path in [dir.path(), &file, &fifo, Path::new("/dev/null"), Path::new("/proc/self/ns/mnt")] {
            assert!(matches!(Netns::open(path), Err(NetnsError::NotNetns { .. })), "{path:?}");
        }
        assert!(matches!(Netns::open(&dangling), Err(NetnsError::Open { .. })));
        assert!(matches!(Netns::open(&dir.path().join("gone")), Err(NetnsError::Open { .. })));
    }

    #[test]
    fn the_hosts_own_namespace_is_refused() {
        let error = Netns::open(Path::new("/proc/self/ns/net")).unwrap_err();
        assert!(matches!(error, NetnsError::Host { .. }), "{error}");
    }
}
