//! A pod's network namespace: opened once, compared by identity, entered by one thread at a time.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::{Path, PathBuf},
    ptr,
};

use nix::{
    fcntl::{OFlag, open},
    libc,
    sched::{CloneFlags, setns},
    sys::{
        socket::{AddressFamily, SockFlag, SockType, socket},
        stat::{Mode, fstat},
        statfs::{FsType, fstatfs},
    },
};

use crate::registry::NetnsId;

/// An open network namespace. The descriptor keeps the namespace and its identity alive.
#[derive(Debug)]
pub struct Netns {
    file: File,
    id: NetnsId,
    path: PathBuf,
}

/// A path that does not lead to a pod's network namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("cannot open the network namespace {path:?}")]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path:?} is not a network namespace")]
    NotNetns { path: PathBuf },
    /// The path leads to the agent's own namespace.
    #[error("{path:?} is the host's own network namespace, not a pod's")]
    Host { path: PathBuf },
    #[error("cannot enter the network namespace {path:?}")]
    Enter {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// `NSFS_MAGIC` in `linux/magic.h`.
const NSFS: FsType = FsType(0x6e73_6673);

/// `SO_NETNS_COOKIE` in `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;
const OWN: &str = "/proc/thread-self/ns/net";

/// Names the namespace of the calling thread, as in `net:[4026531840] cookie 1`. The kernel reuses the inode
/// number once a namespace is gone, and the cookie never; it has cookies from Linux 5.14 on.
///
/// # Errors
/// If `/proc` is not mounted, or the kernel refuses a socket.
pub fn identity() -> io::Result<String> {
    let inode = fs::read_link(OWN)?.to_string_lossy().into_owned();
    let any = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    Ok(match cookie(any.as_fd()) {
        Ok(cookie) => format!("{inode} cookie {cookie}"),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => inode,
        Err(error) => return Err(error),
    })
}

// === impl Netns ===

impl Netns {
    /// Opens the network namespace of a pod.
    ///
    /// # Errors
    /// If the path cannot be opened, is not a network namespace, or leads to the caller's own.
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
        let path = Path::new(OWN);
        let failed = |source| NetnsError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let stat = fstat(&file).map_err(|source| failed(source.into()))?;
        Ok(Self { file, id: NetnsId { dev: stat.st_dev, ino: stat.st_ino }, path: path.to_owned() })
    }

    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the descriptor, for a netlink attribute.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs a closure inside the namespace. The closure is synchronous, so the runtime cannot move another
    /// task to the thread before the thread has returned.
    ///
    /// # Errors
    /// If the thread could not enter; then the closure did not run.
    pub fn run<T>(&self, inside: impl FnOnce() -> T) -> Result<T, NetnsError> {
        let home = Self::current()?;
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(|source| NetnsError::Enter { path: self.path.clone(), source: source.into() })?;
        // Only after `setns`: a thread that never left must not fail to return.
        let home = Home(home);
        let result = inside();
        drop(home);
        Ok(result)
    }

    fn open_any(path: &Path) -> Result<Self, NetnsError> {
        let refuse = |source: nix::Error| NetnsError::Open { path: path.to_owned(), source: source.into() };
        // With `O_PATH` first: opening a device or a pipe for reading can block or have side effects.
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

/// Returns the thread to its own namespace when dropped, also during a panic.
struct Home(Netns);

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = setns(&self.0.file, CloneFlags::CLONE_NEWNET) {
            // The thread would go on and configure the pod's network as if it were the host's.
            tracing::error!(%error, "cannot return to the host's network namespace: aborting");
            std::process::abort();
        }
    }
}

#[expect(unsafe_code, reason = "nix has no wrapper for the ioctls of namespaces")]
fn kind(namespace: BorrowedFd<'_>) -> nix::Result<i32> {
    // `NS_GET_NSTYPE` in `linux/nsfs.h`.
    nix::ioctl_none_bad!(ns_get_nstype, 0xb703);
    // SAFETY: the ioctl takes no argument, and the call borrows the descriptor.
    unsafe { ns_get_nstype(namespace.as_raw_fd()) }
}

/// The cookie of a socket's network namespace.
#[expect(unsafe_code, reason = "nix has no wrapper for this socket option")]
fn cookie(of: BorrowedFd<'_>) -> io::Result<u64> {
    let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: `cookie` is writable for `length` bytes, and the call borrows the descriptor.
    let result = unsafe {
        libc::getsockopt(
            of.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_names_inode_and_cookie() {
        let own = identity().unwrap();
        let inode = fs::read_link("/proc/self/ns/net").unwrap();
        let cookie = own.strip_prefix(&format!("{} cookie ", inode.display()));
        assert!(cookie.is_some_and(|it| it.parse::<u64>().is_ok_and(|it| it > 0)), "{own}");
    }

    #[test]
    fn paths_that_are_not_network_namespaces_are_refused() {
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
    fn the_hosts_namespace_is_refused() {
        let error = Netns::open(Path::new("/proc/self/ns/net")).unwrap_err();
        assert!(matches!(error, NetnsError::Host { .. }), "{error}");
    }
}
