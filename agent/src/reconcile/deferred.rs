//! What shims have left while no agent ran: notes of the DELs that they have answered by themselves.
//!
//! [`ferrule_proto::deferred`] tells how shims and a starting agent keep out of each other's way.

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
    crash::{self, Step},
    registry::{Attachment, Key},
};

/// The notes that were there, and the right that no other is left meanwhile.
pub struct DeferredDels {
    of: HashMap<Key, Left>,
    /// Those that tell nothing.
    worthless: Vec<PathBuf>,
    /// Kept until calls are served again.
    lock: Option<Flock<File>>,
}

/// One note.
struct Left {
    path: PathBuf,
    since_boot: Duration,
}

/// The notes cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path:?}, where the CNI plugin leaves notes for the agent")]
pub struct DeferredDelsError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// How long shims may take that are about to leave a note: they delete an interface meanwhile.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// How often to look whether the lock is free: the kernel does not wait with a deadline.
const LOOK: Duration = Duration::from_millis(5);

// === impl DeferredDels ===

impl DeferredDels {
    /// Reads all notes beside a socket, and keeps shims from leaving others. The socket's directory must exist. It may block.
    ///
    /// # Errors
    /// If the directory cannot be read. A note that cannot be understood is no reason not to start.
    pub fn read(socket: &Path) -> Result<Self, DeferredDelsError> {
        let end = Instant::now() + LOCK_WAIT;
        // Kept while we wait for the shims that are before us, so that none gets in between.
        let turn = lock(&socket_directory(socket).join(TURNSTILE), end)?;
        let lock = lock(&socket_directory(socket).join(LOCK), end)?;
        drop(turn);
        let mut notes = Self { of: HashMap::new(), worthless: Vec::new(), lock };
        let directory = socket_directory(socket).join(DIRECTORY);
        let failed = |source| DeferredDelsError { what: "read", path: directory.clone(), source };
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(notes),
            entries => entries.map_err(failed)?,
        };
        let boot_id = fs::read_to_string(BOOT_ID).unwrap_or_default();
        // One more for each that was never finished.
        for entry in entries.take(2 * MAX_FILES) {
            let path = entry.map_err(failed)?.path();
            match parse(&path, boot_id.trim_end()) {
                Ok((key, since_boot)) => drop(notes.of.insert(key, Left { path, since_boot })),
                Err(why) => {
                    tracing::warn!(note = %path.display(), why, "a note of a deleted container is passed over");
                    notes.worthless.push(path);
                }
            }
        }
        Ok(notes)
    }

    /// Whether an attachment was deleted: this one, and not an earlier one of the same key.
    pub fn covers(&self, attachment: &Attachment) -> bool {
        let made = Duration::from_nanos(attachment.created_since_boot_ns);
        self.of.get(&attachment.runtime_key()).is_some_and(|left| made < left.since_boot)
    }

    /// Removes the notes, but for those about attachments that are among these still: the next start tries again.
    pub fn remove_applied(&self, attachments: &[Attachment]) {
        let open: HashSet<_> =
            attachments.iter().filter(|it| self.covers(it)).map(Attachment::runtime_key).collect();
        let settled = self.of.iter().filter(|(key, _)| !open.contains(key)).map(|(_, left)| &left.path);
        for path in settled.chain(&self.worthless) {
            if let Err(error) = fs::remove_file(path) {
                // It can do no harm: what it is about is older than all that will be attached, but for what is made anew after the
                // registry was lost.
                tracing::warn!(note = %path.display(), %error, "a note of a deleted container cannot be removed");
            }
            crash::point(Step::NoteRemoved);
        }
    }

    /// Lets shims leave notes again, when calls are served.
    pub fn end(self) {
        drop(self.lock);
    }
}

/// Waits for the shims that are about to leave a note; but not for one that never does.
fn lock(path: &Path, end: Instant) -> Result<Option<Flock<File>>, DeferredDelsError> {
    let failed = |source| DeferredDelsError { what: "lock", path: path.to_owned(), source };
    let open = File::options().create(true).write(true).truncate(false).mode(0o600).open(path);
    let mut file = open.map_err(failed)?;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < end => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                tracing::warn!(path = %path.display(), "a CNI plugin keeps its lock: starting without its note");
                return Ok(None);
            }
            Err((_, errno)) => return Err(failed(errno.into())),
        };
        thread::sleep(LOOK);
    }
}

fn parse(path: &Path, boot_id: &str) -> Result<(Key, Duration), String> {
    let name = path.file_name().unwrap_or_default();
    if name.as_encoded_bytes().starts_with(b".") {
        return Err("it was never finished".to_owned());
    }
    let mut text = Vec::new();
    // Nobody but root can put anything here; a pipe would be waited for all the same.
    let open =
        File::options().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path);
    let file = open.map_err(|error| error.to_string())?;
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    let note: DeferredDel = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if note.boot_id != boot_id {
        return Err("it is of before a reboot".to_owned());
    }
    let key = Key {
        network: NetworkName::new(&note.network).map_err(|error| error.to_string())?,
        container_id: ContainerId::new(&note.container_id).map_err(|error| error.to_string())?,
        ifname: IfName::new(&note.ifname).map_err(|error| error.to_string())?,
    };
    Ok((key, Duration::from_nanos(note.since_boot_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::PodRef;
    use crate::registry::{HostSide, NetnsId, State};
    use ferrule_vif::{Addresses, Mac, Vif, VifKind};

    fn key(container: &str) -> Key {
        Key::try_from(format!("net/{container}/eth0")).unwrap()
    }

    fn leave(socket: &Path, container: &str, since_boot_ns: u64, boot_id: &str) {
        let note = DeferredDel {
            network: "net".into(),
            container_id: container.into(),
            ifname: "eth0".into(),
            boot_id: boot_id.into(),
            since_boot_ns,
        };
        let Key { network, container_id, ifname } = key(container);
        let path = ferrule_proto::deferred::path(socket, &network, &container_id, &ifname);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, serde_json::to_vec(&note).unwrap()).unwrap();
    }

    fn boot_id() -> String {
        fs::read_to_string(BOOT_ID).unwrap().trim_end().to_owned()
    }

    fn attachment(container: &str, with: Option<Key>, created_since_boot_ns: u64) -> Attachment {
        let addresses = Addresses { v4: Some([10, 0, 0, 2].into()), v6: None };
        let (mac, gateways) = (Mac([2, 0, 0, 0, 0, 2]), Addresses::default());
        Attachment {
            key: key(container),
            state: State::Attached,
            pod: PodRef::default(),
            netns: "/run/netns/x".into(),
            netns_id: NetnsId { dev: 4, ino: 7 },
            vif: Vif {
                kind: VifKind::Veth,
                mac,
                mtu: 1500,
                addresses,
                gateways,
                is_default: true,
                routes: Vec::new(),
            },
            with,
            host: HostSide::Unplugged,
            created_at_ms: 0,
            created_since_boot_ns,
        }
    }

    #[test]
    fn a_note_is_about_what_was_there_and_not_about_what_came_later() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        leave(&socket, "a", 1000, &boot_id());
        let notes = DeferredDels::read(&socket).unwrap();
        assert!(notes.covers(&attachment("a", None, 999)));
        assert!(!notes.covers(&attachment("a", None, 1000)), "the same ID, used again");
        assert!(!notes.covers(&attachment("b", None, 1)));
        let further = Key { ifname: IfName::new("net1").unwrap(), ..key("a") };
        let further = Attachment { key: further, ..attachment("x", Some(key("a")), 999) };
        assert!(notes.covers(&further), "what came with it goes with it");
    }

    #[test]
    fn a_note_is_removed_when_what_it_is_about_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        for container in ["gone", "stays"] {
            leave(&socket, container, 1000, &boot_id());
        }
        let notes = DeferredDels::read(&socket).unwrap();
        let newer = attachment("gone", None, 2000);
        notes.remove_applied(&[attachment("stays", None, 1), newer]);
        notes.end();
        let again = DeferredDels::read(&socket).unwrap();
        assert!(!again.covers(&attachment("gone", None, 1)));
        assert!(again.covers(&attachment("stays", None, 1)));
    }

    #[test]
    fn what_is_no_note_of_this_boot_is_passed_over_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        leave(&socket, "other-boot", 1000, "00000000-0000-4000-8000-000000000000");
        let notes = dir.path().join(DIRECTORY);
        fs::write(notes.join("garbage"), "{").unwrap();
        fs::write(notes.join(".half"), "{").unwrap();
        fs::write(notes.join("huge"), vec![b' '; MAX_BYTES + 1]).unwrap();
        nix::unistd::mkfifo(&notes.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", notes.join("link")).unwrap();
        let read = DeferredDels::read(&socket).unwrap();
        assert!(!read.covers(&attachment("other-boot", None, 1)));
        read.remove_applied(&[]);
        assert_eq!(fs::read_dir(notes).unwrap().count(), 0);
    }

    #[test]
    fn no_note_is_left_while_the_agent_starts() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let notes = DeferredDels::read(&socket).unwrap();
        let shim = || Flock::lock(File::open(dir.path().join(LOCK)).unwrap(), FlockArg::LockSharedNonblock);
        assert!(shim().is_err());
        notes.end();
        assert!(shim().is_ok());
    }
}
