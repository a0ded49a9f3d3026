//! Leaving a note for the agent.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use ferrule_proto::deferred::{self, BOOT_ID, DeferredDel, MAX_FILES};
use nix::time::{ClockId, clock_gettime};

use super::Key;

/// Leaves a note, durably, in place of an earlier one about the same attachment.
///
/// `had_link` is whether the kernel had an interface of it. While no agent runs, a runtime that tries to start pods sends DEL
/// after DEL for what never was: those notes leave half of the room to the others.
///
/// # Errors
/// If there are too many, or it cannot be written.
pub(super) fn leave(socket: &Path, key: &Key, had_link: bool) -> io::Result<()> {
    let Key { network, container_id, ifname } = key;
    let path = deferred::path(socket, network, container_id, ifname);
    let directory = deferred::socket_directory(&path);
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let room = if had_link { MAX_FILES } else { MAX_FILES / 2 };
    if !path.exists() && fs::read_dir(directory)?.take(room).count() == room {
        return Err(io::Error::other(format!("{room} wait in {} already", directory.display())));
    }
    let since_boot = std::time::Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
    let note = DeferredDel {
        network: network.to_string(),
        container_id: container_id.to_string(),
        ifname: ifname.to_string(),
        boot_id: fs::read_to_string(BOOT_ID)?.trim_end().to_owned(),
        since_boot_ns: u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX),
    };
    // Hidden until it is whole. Two DELs of one attachment at once write the same.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = directory.join(format!(".{name}"));
    let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&serde_json::to_vec(&note)?)?;
    file.sync_all()?;
    fs::rename(&fresh, &path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use ferrule_proto::names::{ContainerId, IfName, NetworkName};

    use super::*;

    fn key(container: &str) -> Key {
        Key {
            network: NetworkName::new("cluster").unwrap(),
            container_id: ContainerId::new(container).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        }
    }

    #[test]
    fn a_note_says_what_was_deleted_and_when() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        leave(&socket, &key("a"), true).unwrap();
        let read = || -> DeferredDel {
            let bytes = fs::read(dir.path().join("deferred/cluster:a:eth0")).unwrap();
            assert!(bytes.len() < deferred::MAX_BYTES);
            serde_json::from_slice(&bytes).unwrap()
        };
        let first = read();
        assert_eq!((first.container_id.as_str(), first.ifname.as_str()), ("a", "eth0"));
        assert!(!first.boot_id.is_empty() && first.since_boot_ns > 0);
        leave(&socket, &key("a"), false).unwrap();
        assert!(read().since_boot_ns > first.since_boot_ns, "the later DEL counts");
        assert_eq!(fs::read_dir(dir.path().join("deferred")).unwrap().count(), 1);
    }

    #[test]
    fn no_more_notes_are_left_than_an_agent_reads() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        leave(&socket, &key("first"), true).unwrap();
        let fill = |range: std::ops::Range<usize>| {
            range.for_each(|it| fs::write(dir.path().join("deferred").join(it.to_string()), "").unwrap());
        };
        fill(1..MAX_FILES / 2);
        let refused = |had_link| leave(&socket, &key("one-too-many"), had_link).unwrap_err().to_string();
        assert!(refused(false).contains("512 wait"));
        leave(&socket, &key("second"), true).unwrap();
        fill(MAX_FILES / 2..MAX_FILES);
        assert!(refused(true).contains("1024 wait"));
        leave(&socket, &key("first"), true).unwrap();
    }
}
