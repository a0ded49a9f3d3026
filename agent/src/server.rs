//! The unix socket that the agent serves gRPC on: open to root only, with one agent at a time.

mod connections;
mod lock;

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixStream as Probe,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use ferrule_proto::deferred;
use tokio::net::UnixListener;
use tonic::{Request, Status};

pub use connections::{Connection, Peer, incoming, limit};
pub use lock::NodeLock;

use crate::crash::{self, Step};

/// A socket that the agent cannot listen on.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error(
        "another ferrule-agent works in this network namespace{}: stop that agent first (two agents would collect each \
         other's interfaces as orphans)",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    SecondAgent {
        /// `None` if the kernel does not say, as for an agent of another PID namespace.
        pid: Option<i32>,
    },
    #[error("cannot {what} {path:?}")]
    Access {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the socket's directory {path:?} is accessible to other users, and {why}: give the socket a directory of its \
         own (--socket)"
    )]
    Shared { path: PathBuf, why: String },
    #[error("{0:?} exists and is not a socket: remove it, or choose another --socket")]
    NotSocket(PathBuf),
    #[error("another process already listens on {0:?}: stop that process, or choose another --socket")]
    Taken(PathBuf),
    #[error("another process removed or replaced the socket {0:?}: restart the agent to create it again")]
    Displaced(PathBuf),
}

/// The files of an agent's directory. A directory with no other files belongs to the agent.
const OWN_FILES: [&str; 8] = [
    "agent.sock",
    "agent.new",
    "agent.lock",
    "attachments",
    "watch",
    deferred::DIRECTORY,
    deferred::LOCK,
    deferred::TURNSTILE,
];
/// The stores of earlier builds: quarantined and unfinished copies have names that start with these.
const STORES: [&str; 2] = ["registry.redb", "watch.redb"];
/// How often the socket's identity is checked. Without the socket, shims act as if no agent ran.
const CHECK_PERIOD: Duration = Duration::from_secs(2);

/// Listens on a socket that only root can open, in a directory that only root can enter.
///
/// Replaces a stale socket of an earlier agent. The new socket is created under another name, protected and
/// renamed, so that shims always find a socket and other users never find an open one.
///
/// # Errors
/// If another process listens there, the path is not a socket, or the directory belongs to other programs.
pub fn listen(socket: &Path) -> Result<UnixListener, SocketError> {
    close_directory(socket)?;
    check_stale(socket)?;
    let fresh = socket.with_extension("new");
    let failed = |what| {
        let path = socket.to_owned();
        move |source| SocketError::Access { what, path, source }
    };
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove the unfinished socket of")(error));
        }
        _ => {}
    }
    crash::point(Step::SocketPathCleared);
    let listener = UnixListener::bind(&fresh).map_err(failed("listen on"))?;
    crash::point(Step::SocketBound);
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).map_err(failed("set the mode of"))?;
    crash::point(Step::SocketClosed);
    fs::rename(&fresh, socket).map_err(failed("rename the new socket to"))?;
    crash::point(Step::SocketPlaced);
    Ok(listener)
}

/// Waits until the socket's path is gone or leads to another file, so that no shim can find this agent.
///
/// Always returns [`SocketError::Displaced`].
pub async fn displaced(socket: &Path) -> SocketError {
    let identity = || fs::symlink_metadata(socket).map(|it| (it.dev(), it.ino())).ok();
    let bound = identity();
    while bound.is_some() && identity() == bound {
        tokio::time::sleep(CHECK_PERIOD).await;
    }
    SocketError::Displaced(socket.to_owned())
}

/// Creates the socket's directory with mode 0700, or sets that mode on a directory of the agent's own.
///
/// # Errors
/// If the directory is accessible to other users and holds files of other programs.
pub fn close_directory(socket: &Path) -> Result<(), SocketError> {
    let directory = deferred::socket_directory(socket);
    let failed = |what| move |source| SocketError::Access { what, path: directory.to_owned(), source };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("create the directory"))?;
    crash::point(Step::SocketDirectoryCreated);
    let metadata = fs::symlink_metadata(directory).map_err(failed("inspect"))?;
    let shared = |why: String| Err(SocketError::Shared { path: directory.to_owned(), why });
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return shared(format!("belongs to user {}", metadata.uid()));
    }
    if metadata.is_dir() && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(failed("list"))? {
        let name = entry.map_err(failed("list"))?.file_name();
        let is_store = |it: &str| name.as_encoded_bytes().starts_with(it.as_bytes());
        if !OWN_FILES.iter().any(|own| name == *own) && !STORES.iter().any(|it| is_store(it)) {
            return shared(format!("holds the unrelated file {name:?}"));
        }
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed("set the mode of"))?;
    crash::point(Step::SocketDirectoryClosed);
    Ok(())
}

/// Accepts a request of root, or of the agent's own user, by SO_PEERCRED: a second barrier behind the
/// socket's mode.
///
/// # Errors
/// `PERMISSION_DENIED` for every other user.
pub fn check_peer(request: Request<()>) -> Result<Request<()>, Status> {
    let peer = request.extensions().get::<Peer>();
    match peer.and_then(|peer| peer.uid) {
        Some(uid) if is_trusted(uid) => {
            peer.inspect(|peer| peer.record_request());
            Ok(request)
        }
        Some(uid) => {
            tracing::warn!(uid, "refused a call: only root may call the agent");
            Err(Status::permission_denied(format!("only root may call the agent, not user {uid}")))
        }
        None => {
            Err(Status::permission_denied("only root may call the agent, and the peer's user is unknown"))
        }
    }
}

/// Root, or the agent's own user.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

fn check_stale(socket: &Path) -> Result<(), SocketError> {
    let metadata = match fs::symlink_metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(SocketError::Access { what: "inspect", path: socket.to_owned(), source }),
        Ok(metadata) => metadata,
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotSocket(socket.to_owned()));
    }
    match Probe::connect(socket) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(source) => Err(SocketError::Access {
            what: "find out whether a process listens on",
            path: socket.to_owned(),
            source,
        }),
        Ok(_) => Err(SocketError::Taken(socket.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[tokio::test]
    async fn socket_and_directory_are_accessible_to_root_only() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("own/agent.sock");
        let _listener = listen(&socket).unwrap();
        assert_eq!(mode(&socket), 0o600);
        assert_eq!(mode(socket.parent().unwrap()), 0o700);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        drop(listen(&socket).unwrap());
        let _listener = listen(&socket).unwrap();
        assert!(matches!(listen(&socket), Err(SocketError::Taken(_))));
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        fs::write(&socket, "precious").unwrap();
        assert!(matches!(listen(&socket), Err(SocketError::NotSocket(_))));
        assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
        let link = dir.path().join("link.sock");
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        assert!(matches!(listen(&link), Err(SocketError::NotSocket(_))));
    }

    #[tokio::test]
    async fn a_directory_with_unrelated_files_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("resolv.conf"), "").unwrap();
        let error = listen(&dir.path().join("agent.sock")).unwrap_err();
        assert!(matches!(error, SocketError::Shared { .. }), "{error}");
        assert_eq!(mode(dir.path()), 0o755);
        assert!(listen(Path::new("/tmp/agent.sock")).is_err());
    }

    #[tokio::test]
    async fn a_directory_with_only_own_files_becomes_private() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("agent.lock"), "").unwrap();
        let _listener = listen(&dir.path().join("agent.sock")).unwrap();
        assert_eq!(mode(dir.path()), 0o700);
    }

    #[tokio::test]
    async fn a_directory_with_a_quarantined_store_becomes_private() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["registry.redb.corrupt-12", "registry.redb.new", "watch.redb", "watch.redb.broken"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let _listener = listen(&dir.path().join("agent.sock")).unwrap();
        assert_eq!(mode(dir.path()), 0o700);
    }
}
