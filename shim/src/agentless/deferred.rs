//! Recording a deferred DEL.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use ferrule_proto::deferred::{self, BOOT_ID, DeferredDel, MAX_FILES};
use nix::time::{ClockId, clock_gettime};

use super::key::Key;

/// Records a DEL durably, replacing an earlier record of the same attachment.
///
/// `had_link` tells whether the attachment had an interface. While no agent runs, a runtime that tries to
/// start pods sends many DELs of attachments that never existed: those may only fill half of the directory.
///
/// # Errors
/// If the directory is full or the file cannot be written.
pub(super) fn record(socket: &Path, key: &Key, had_link: bool) -> io::Result<()> {
    let Key { network, container_id, ifname } = key;
    let path = deferred::path(socket, network, container_id, ifname);
    let directory = deferred::socket_directory(&path);
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let limit = if had_link { MAX_FILES } else { MAX_FILES / 2 };
    if !path.exists() && fs::read_dir(directory)?.take(limit).count() == limit {
        return Err(io::Error::other(format!("{} is full: limit of {limit} files", directory.display())));
    }
    let since_boot = std::time::Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
    let del = DeferredDel {
        network: network.to_string(),
        container_id: container_id.to_string(),
        ifname: ifname.to_string(),
        boot_id: fs::read_to_string(BOOT_ID)?.trim_end().to_owned(),
        since_boot_ns: u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX),
    };
    // Atomic by rename(2). Concurrent DELs of one attachment write equivalent files.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = directory.join(format!(".{name}"));
    let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&serde_json::to_vec(&del)?)?;
    file.sync_all()?;
    fs::rename(&temporary, &path)?;
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
    fn record_names_the_attachment_and_the_time_of_the_last_del() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        record(&socket, &key("a"), true).unwrap();
        let read = || -> DeferredDel {
            let bytes = fs::read(dir.path().join("deferred/cluster:a:eth0")).unwrap();
            assert!(bytes.len() < deferred::MAX_BYTES);
            serde_json::from_slice(&bytes).unwrap()
        };
        let first = read();
        assert_eq!((first.container_id.as_str(), first.ifname.as_str()), ("a", "eth0"));
        assert!(!first.boot_id.is_empty() && first.since_boot_ns > 0);
        record(&socket, &key("a"), false).unwrap();
        assert!(read().since_boot_ns > first.since_boot_ns);
        assert_eq!(fs::read_dir(dir.path().join("deferred")).unwrap().count(), 1);
    }

    #[test]
    fn full_directory_refuses_new_records_but_replaces_old_ones() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        record(&socket, &key("first"), true).unwrap();
        let fill = |range: std::ops::Range<usize>| {
            range.for_each(|it| fs::write(dir.path().join("deferred").join(it.to_string()), "").unwrap());
        };
        fill(1..MAX_FILES / 2);
        let refused = |had_link| record(&socket, &key("one-too-many"), had_link).unwrap_err().to_string();
        assert!(refused(false).contains("limit of 512 files"));
        record(&socket, &key("second"), true).unwrap();
        fill(MAX_FILES / 2..MAX_FILES);
        assert!(refused(true).contains("limit of 1024 files"));
        record(&socket, &key("first"), true).unwrap();
    }
}
