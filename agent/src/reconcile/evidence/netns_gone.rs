//! Whether a path still leads to a network namespace.

use std::{fs, io, path::Path};

use super::proof::Proof;
use crate::{
    chain::chain,
    plug::netns::{Netns, NetnsError},
    registry::NetnsId,
};

pub(super) fn netns_gone(path: &Path, id: NetnsId) -> Proof {
    let is_missing =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    match Netns::open(path) {
        Ok(found) => leads_elsewhere(path, found.id(), id),
        Err(error @ (NetnsError::NotNetns { .. } | NetnsError::Host { .. })) => Proof::yes(chain(&error)),
        // `Netns::open` also fails if `/proc` is not mounted, so the path itself must be missing.
        Err(_) if fs::metadata(path).is_err_and(|error| is_missing(&error)) => {
            Proof::yes(format!("{path:?} does not exist"))
        }
        Err(error) => Proof::no(chain(&error)),
    }
}

fn leads_elsewhere(path: &Path, found: NetnsId, expected: NetnsId) -> Proof {
    if found == expected {
        Proof::no(format!("{path:?} leads to the namespace {expected}"))
    } else {
        Proof::yes(format!("{path:?} leads to the namespace {found}, expected {expected}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netns_is_identified_by_device_and_inode() {
        let gone = |dev, ino| {
            leads_elsewhere(Path::new("/run/netns/x"), NetnsId { dev, ino }, NetnsId { dev: 4, ino: 7 }).holds
        };
        assert!(!gone(4, 7));
        assert!(gone(4, 8) && gone(5, 7));
    }

    #[test]
    fn netns_is_gone_when_its_path_leads_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let own = Netns::current().unwrap().id();
        let other = NetnsId { dev: own.dev, ino: own.ino + 1 };
        let file = dir.path().join("unmounted");
        fs::write(&file, "").unwrap();
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink("/nowhere", &dangling).unwrap();
        for path in [
            &dir.path().join("removed"),
            &file,
            &dangling,
            &file.join("below"),
            Path::new("/proc/self/ns/net"),
        ] {
            let proof = netns_gone(path, other);
            assert!(proof.holds, "{path:?}: {}", proof.observed);
        }
    }

    #[test]
    fn unreadable_path_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let circle = dir.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        let long = dir.path().join("x".repeat(300));
        for path in [circle, long] {
            let proof = netns_gone(&path, NetnsId { dev: 4, ino: 1 });
            assert!(!proof.holds, "{path:?}: {}", proof.observed);
        }
    }
}
