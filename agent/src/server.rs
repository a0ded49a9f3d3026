//! The socket that the agent serves on: only root gets in, and only one agent listens.

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

/// The socket cannot be served on.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error(
        "another ferrule-agent works in this network namespace; two would take each other's pods for leftovers"
    )]
    SecondAgent,
    #[error("cannot {what} {path:?}")]
    Access {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the socket's directory {path:?} is open to others, and {why}, so it is not ours to close: give the socket a \
         directory of its own"
    )]
    Shared { path: PathBuf, why: String },
    #[error("there is something at {0:?} that is not a socket; it is not ours to remove")]
    NotSocket(PathBuf),
    #[error("somebody listens on {0:?} already")]
    Taken(PathBuf),
    #[error(
        "somebody has removed or replaced {0:?} while the agent was listening on it: a new agent will make another one"
    )]
    Displaced(PathBuf),
}

/// What an agent has in its directory, so that one with nothing else is its own.
const OURS: [&str; 6] =
    ["agent.sock", "agent.new", "agent.lock", deferred::DIRECTORY, deferred::LOCK, deferred::TURNSTILE];
/// And the stores, with what the names of those begin with that were set aside, or are not in their places yet.
const STORES: [&str; 2] = ["registry.redb", "watch.redb"];
/// How often to look whether the socket is there. Without it shims do without the agent, which then knows nothing of it.
const LOOK: Duration = Duration::from_secs(2);

/// Listens on a socket that only root can open, in a directory that only root can enter.
///
/// A socket that an earlier agent left is replaced. The new one is made under another name and then renamed, so that
/// there is never one that others could open, nor none.
///
/// # Errors
/// If somebody listens there, or something else is in the way.
pub fn listen(socket: &Path) -> Result<UnixListener, SocketError> {
    close_directory(socket)?;
    check_stale(socket)?;
    let fresh = socket.with_extension("new");
    let failed = |what| {
        let path = socket.to_owned();
        move |source| SocketError::Access { what, path, source }
    };
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("make way for")(error)),
        _ => {}
    }
    crash::point(Step::SocketWayMade);
    let listener = UnixListener::bind(&fresh).map_err(failed("listen on"))?;
    crash::point(Step::SocketBound);
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    crash::point(Step::SocketClosed);
    fs::rename(&fresh, socket).map_err(failed("put in place"))?;
    crash::point(Step::SocketPlaced);
    Ok(listener)
}

/// Waits until a socket is no longer where it was bound, or another one is there. Then nobody finds the one that is listened on.
///
/// # Errors
/// What is there instead, as it does not end otherwise.
pub async fn displaced(socket: &Path) -> SocketError {
    let now = || fs::symlink_metadata(socket).map(|it| (it.dev(), it.ino())).ok();
    let bound = now();
    while bound.is_some() && now() == bound {
        tokio::time::sleep(LOOK).await;
    }
    SocketError::Displaced(socket.to_owned())
}

/// Makes the directory of a socket, or sees to it that only root can enter it.
///
/// # Errors
/// If it is open to others and has other things in it.
pub fn close_directory(socket: &Path) -> Result<(), SocketError> {
    let directory = deferred::socket_directory(socket);
    let failed = |what| move |source| SocketError::Access { what, path: directory.to_owned(), source };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("make the directory"))?;
    crash::point(Step::SocketDirectoryMade);
    let metadata = fs::symlink_metadata(directory).map_err(failed("look at"))?;
    let shared = |why: String| Err(SocketError::Shared { path: directory.to_owned(), why });
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return shared(format!("it belongs to the user {}", metadata.uid()));
    }
    if metadata.is_dir() && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(failed("look into"))? {
        let name = entry.map_err(failed("look into"))?.file_name();
        let is_store = |it: &str| name.as_encoded_bytes().starts_with(it.as_bytes());
        if !OURS.iter().any(|ours| name == *ours) && !STORES.iter().any(|it| is_store(it)) {
            return shared(format!("there is {name:?} in it"));
        }
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed("close to others"))?;
    crash::point(Step::SocketDirectoryClosed);
    Ok(())
}

/// Accepts a request of root, or of the agent's own user, by SO_PEERCRED: a second barrier behind the socket's mode.
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

/// Root, or who the agent runs as.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

fn check_stale(socket: &Path) -> Result<(), SocketError> {
    let metadata = match fs::symlink_metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(SocketError::Access { what: "look at", path: socket.to_owned(), source }),
        Ok(metadata) => metadata,
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotSocket(socket.to_owned()));
    }
    match Probe::connect(socket) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(source) => Err(SocketError::Access {
            what: "tell whether anybody listens on",
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
    async fn the_socket_and_its_directory_are_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("own/agent.sock");
        let _listener = listen(&socket).unwrap();
        assert_eq!(mode(&socket), 0o600);
        assert_eq!(mode(socket.parent().unwrap()), 0o700);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        drop(listen(&socket).unwrap());
        let _listener = listen(&socket).unwrap();
        assert!(matches!(listen(&socket), Err(SocketError::Taken(_))));
    }

    #[tokio::test]
    async fn what_is_no_socket_is_not_removed() {
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
    async fn a_directory_with_other_things_in_it_is_not_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("resolv.conf"), "").unwrap();
        let error = listen(&dir.path().join("agent.sock")).unwrap_err();
        assert!(matches!(error, SocketError::Shared { .. }), "{error}");
        assert_eq!(mode(dir.path()), 0o755);
        assert!(listen(Path::new("/tmp/agent.sock")).is_err());
    }

    #[tokio::test]
    async fn a_directory_of_its_own_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("agent.lock"), "").unwrap();
        let _listener = listen(&dir.path().join("agent.sock")).unwrap();
        assert_eq!(mode(dir.path()), 0o700);
    }

    #[tokio::test]
    async fn a_directory_with_a_damaged_store_in_it_is_closed_to_others_too() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["registry.redb.corrupt-12", "registry.redb.new", "watch.redb", "watch.redb.broken"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let _listener = listen(&dir.path().join("agent.sock")).unwrap();
        assert_eq!(mode(dir.path()), 0o700);
    }
}
