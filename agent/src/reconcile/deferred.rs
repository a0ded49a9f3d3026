//! Deferred DELs: files that shims left while no agent ran, one for each DEL that a shim answered alone. Read
//! and matched here; [`recover`](super::recover) detaches their attachments.
//!
//! [`ferrule_proto::deferred`] documents the locks between shims and a starting agent.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use ferrule_proto::{
    deferred::{BOOT_ID, DIRECTORY, DeferredDel, LOCK, MAX_BYTES, MAX_FILES, TURNSTILE, socket_directory},
    names::{ContainerId, IfName, NetworkName},
};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag},
};

use crate::{
    chain::chain,
    crash::{self, Step},
    metrics::StoreMetrics,
    registry::{Attachment, Key},
};

/// The deferred DELs, and the lock that keeps shims from deferring more.
pub struct DeferredDels {
    files: HashMap<Key, DeferredFile>,
    invalid: Vec<PathBuf>,
    /// Held until calls are served.
    lock: Option<Flock<File>>,
}

struct DeferredFile {
    path: PathBuf,
    since_boot: Duration,
}

/// The directory of deferred DELs cannot be read or locked.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {path:?} for the deferred DELs of the CNI plugin")]
struct DeferredDelsError {
    operation: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The longest wait for shims that are deferring a DEL: each deletes an interface under the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// flock(2) has no deadline, so the lock is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

// === impl DeferredDels ===

impl DeferredDels {
    /// Locks out shims, and reads all deferred DELs beside a socket, whose directory must exist. May block.
    ///
    /// Nothing here prevents the start: a file that cannot be locked or read is logged and counted. Garbage
    /// collection finds the attachments of lost deferred DELs once their namespaces are gone.
    pub fn read(socket: &Path, metrics: &StoreMetrics) -> Self {
        let beside = socket_directory(socket);
        let end = Instant::now() + LOCK_TIMEOUT;
        let locked = |name| {
            lock(&beside.join(name), end).unwrap_or_else(|error| {
                metrics.start_failures.inc();
                tracing::error!(
                    error = chain(&error),
                    "starting without the lock against CNI plugins: remove what has the name of the lock file"
                );
                None
            })
        };
        // Held while waiting for the shims that hold the lock, so that no later shim takes it.
        let turn = locked(TURNSTILE);
        let lock = locked(LOCK);
        drop(turn);
        let mut deferred = Self { files: HashMap::new(), invalid: Vec::new(), lock };
        if let Err(error) = deferred.read_all(&beside.join(DIRECTORY)) {
            metrics.start_failures.inc();
            tracing::error!(
                error = chain(&error),
                "starting without the remaining deferred DELs: garbage collection removes their attachments"
            );
        }
        deferred
    }

    fn read_all(&mut self, directory: &Path) -> Result<(), DeferredDelsError> {
        let failed = |source| DeferredDelsError { operation: "read", path: directory.to_owned(), source };
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        let boot_id = fs::read_to_string(BOOT_ID).unwrap_or_default();
        // Each file may have an unfinished one beside it.
        for entry in entries.take(2 * MAX_FILES) {
            let path = entry.map_err(failed)?.path();
            match parse(&path, boot_id.trim_end()) {
                Ok((key, since_boot)) => {
                    self.files.insert(key, DeferredFile { path, since_boot });
                }
                Err(why) => {
                    tracing::warn!(file = %path.display(), why, "ignoring an invalid deferred DEL");
                    self.invalid.push(path);
                }
            }
        }
        Ok(())
    }

    /// Whether a deferred DEL covers an attachment: the attachment was created before the DEL, not after it
    /// under the same key.
    pub fn covers(&self, attachment: &Attachment) -> bool {
        let created = Duration::from_nanos(attachment.created_since_boot_ns);
        self.files.get(&attachment.runtime_key()).is_some_and(|file| created < file.since_boot)
    }

    /// Removes the files, except for those that cover one of the remaining attachments: the next start
    /// retries these.
    pub fn remove_applied(&self, remaining: &[Attachment]) {
        let pending: HashSet<_> =
            remaining.iter().filter(|it| self.covers(it)).map(Attachment::runtime_key).collect();
        let applied = self.files.iter().filter(|(key, _)| !pending.contains(key)).map(|(_, file)| &file.path);
        for path in applied.chain(&self.invalid) {
            if let Err(error) = fs::remove_file(path) {
                // Harmless: every later attachment is newer than the DEL.
                tracing::warn!(file = %path.display(), %error, "cannot remove an applied deferred DEL");
            }
            crash::point(Step::DeferredRemoved);
        }
    }

    /// Unlocks: shims may defer DELs again. To be called once calls are served.
    pub fn end(self) {
        drop(self.lock);
    }
}

/// Waits for the shims that hold a lock, until the deadline; `None` if one still holds it then.
fn lock(path: &Path, end: Instant) -> Result<Option<Flock<File>>, DeferredDelsError> {
    let failed = |source| DeferredDelsError { operation: "lock", path: path.to_owned(), source };
    let open = File::options().create(true).write(true).truncate(false).mode(0o600).open(path);
    let mut file = open.map_err(failed)?;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < end => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                let path = path.display();
                tracing::warn!(%path, "a CNI plugin holds the lock beyond the deadline; starting without its deferred DEL");
                return Ok(None);
            }
            Err((_, errno)) => return Err(failed(errno.into())),
        };
        thread::sleep(POLL_INTERVAL);
    }
}

fn parse(path: &Path, boot_id: &str) -> Result<(Key, Duration), String> {
    let name = path.file_name().unwrap_or_default();
    if name.as_encoded_bytes().starts_with(b".") {
        return Err("unfinished".to_owned());
    }
    let mut text = Vec::new();
    // Only root can write here; the flags keep a symlink or a FIFO from misleading or blocking the start all
    // the same.
    let open =
        File::options().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path);
    let file = open.map_err(|error| error.to_string())?;
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() > MAX_BYTES {
        return Err(format!("longer than {MAX_BYTES} bytes"));
    }
    let del: DeferredDel = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if del.boot_id != boot_id {
        return Err("from before a reboot".to_owned());
    }
    let key = Key {
        network: NetworkName::new(&del.network).map_err(|error| error.to_string())?,
        container_id: ContainerId::new(&del.container_id).map_err(|error| error.to_string())?,
        ifname: IfName::new(&del.ifname).map_err(|error| error.to_string())?,
    };
    Ok((key, Duration::from_nanos(del.since_boot_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing;

    fn read(socket: &Path) -> DeferredDels {
        DeferredDels::read(socket, &StoreMetrics::default())
    }

    fn key(container: &str) -> Key {
        Key::try_from(format!("net/{container}/eth0")).unwrap()
    }

    fn defer(socket: &Path, container: &str, since_boot_ns: u64, boot_id: &str) {
        let del = DeferredDel {
            network: "net".into(),
            container_id: container.into(),
            ifname: "eth0".into(),
            boot_id: boot_id.into(),
            since_boot_ns,
        };
        let Key { network, container_id, ifname } = key(container);
        let path = ferrule_proto::deferred::path(socket, &network, &container_id, &ifname);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, serde_json::to_vec(&del).unwrap()).unwrap();
    }

    fn boot_id() -> String {
        fs::read_to_string(BOOT_ID).unwrap().trim_end().to_owned()
    }

    fn attachment(container: &str, with: Option<Key>, created_since_boot_ns: u64) -> Attachment {
        let any = testing::attachment("eth0", None, 2);
        Attachment { key: key(container), with, created_since_boot_ns, ..any }
    }

    #[test]
    fn deferred_del_covers_older_attachments_only() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        defer(&socket, "a", 1000, &boot_id());
        let deferred = read(&socket);
        assert!(deferred.covers(&attachment("a", None, 999)));
        assert!(!deferred.covers(&attachment("a", None, 1000)), "the container ID was reused");
        assert!(!deferred.covers(&attachment("b", None, 1)));
        let additional = Key { ifname: IfName::new("net1").unwrap(), ..key("a") };
        let additional = Attachment { key: additional, ..attachment("x", Some(key("a")), 999) };
        assert!(deferred.covers(&additional), "additional interfaces go with the requested one");
    }

    #[test]
    fn file_is_removed_once_its_attachment_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        for container in ["gone", "stays"] {
            defer(&socket, container, 1000, &boot_id());
        }
        let deferred = read(&socket);
        let newer = attachment("gone", None, 2000);
        deferred.remove_applied(&[attachment("stays", None, 1), newer]);
        deferred.end();
        let again = read(&socket);
        assert!(!again.covers(&attachment("gone", None, 1)));
        assert!(again.covers(&attachment("stays", None, 1)));
    }

    #[test]
    fn invalid_files_and_those_of_another_boot_are_ignored_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        defer(&socket, "other-boot", 1000, "00000000-0000-4000-8000-000000000000");
        let directory = dir.path().join(DIRECTORY);
        fs::write(directory.join("garbage"), "{").unwrap();
        fs::write(directory.join(".half"), "{").unwrap();
        fs::write(directory.join("huge"), vec![b' '; MAX_BYTES + 1]).unwrap();
        nix::unistd::mkfifo(&directory.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.join("link")).unwrap();
        let read = read(&socket);
        assert!(!read.covers(&attachment("other-boot", None, 1)));
        read.remove_applied(&[]);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    }

    #[test]
    fn missing_directory_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let metrics = StoreMetrics::default();
        let deferred = DeferredDels::read(&dir.path().join("agent.sock"), &metrics);
        assert_eq!(metrics.start_failures.get(), 0);
        assert!(!deferred.covers(&attachment("a", None, 0)));
    }

    #[test]
    fn file_of_at_most_four_kilobytes_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        for (container, length, is_read) in [("fits", 4096, true), ("long", 4097, false)] {
            defer(&socket, container, 1000, &boot_id());
            let path = dir.path().join(format!("deferred/net:{container}:eth0"));
            let mut text = fs::read(&path).unwrap();
            text.resize(length, b' ');
            fs::write(path, text).unwrap();
            assert_eq!(read(&socket).covers(&attachment(container, None, 1)), is_read, "{container}");
        }
    }

    #[test]
    fn shims_cannot_defer_while_the_agent_starts() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let deferred = read(&socket);
        let shim = || Flock::lock(File::open(dir.path().join(LOCK)).unwrap(), FlockArg::LockSharedNonblock);
        assert!(shim().is_err());
        deferred.end();
        assert!(shim().is_ok());
    }

    #[test]
    fn stray_in_the_place_of_a_lock_or_of_the_directory_does_not_prevent_the_start() {
        for stray in ["deferred.lock", "deferred.turn", "deferred"] {
            let dir = tempfile::tempdir().unwrap();
            let (socket, path) = (dir.path().join("agent.sock"), dir.path().join(stray));
            if stray == "deferred" {
                fs::write(path, "").unwrap();
            } else {
                fs::create_dir(path).unwrap();
                defer(&socket, "a", 1000, &boot_id());
            }
            let metrics = StoreMetrics::default();
            let deferred = DeferredDels::read(&socket, &metrics);
            assert_eq!(metrics.start_failures.get(), 1, "{stray}");
            assert_eq!(deferred.covers(&attachment("a", None, 1)), stray != "deferred", "{stray}");
        }
    }
}
