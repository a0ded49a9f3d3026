//! Notices changes of directories, by inotify(7).

use std::{io, os::fd::OwnedFd, path::Path};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// Watches directories for one change.
pub struct Watch(AsyncFd<OwnedFd>);

// === impl Watch ===

impl Watch {
    /// Must precede the look at the directories, so that no change falls between.
    ///
    /// # Errors
    /// If a directory does not exist, or the limit `fs.inotify.max_user_instances` is reached.
    pub fn new(directories: &[&Path]) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        // IN_CLOSE_WRITE instead of IN_MODIFY: a half-written file is of no interest.
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        for directory in directories {
            inotify.add_watch(*directory, changes)?;
        }
        #[expect(
            deprecated,
            reason = "the successor is unsafe for types that lend their descriptor; this one owns it"
        )]
        let watched = AsyncFd::new(inotify.into())?;
        Ok(Self(watched))
    }

    /// Waits for the first change since [`Self::new`].
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn changed(self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn each_kind_of_change_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        let changes: [(&str, &dyn Fn() -> io::Result<()>); 6] = [
            ("created", &|| fs::write(a.join("file"), "")),
            ("written", &|| fs::write(a.join("file"), "more")),
            ("renamed", &|| fs::rename(a.join("file"), a.join("other"))),
            ("deleted", &|| fs::remove_file(a.join("other"))),
            ("in the second directory", &|| fs::write(b.join("file"), "")),
            ("the directory itself", &|| fs::remove_dir(&a)),
        ];
        for (what, change) in changes {
            let watch = Watch::new(&[&a, &b]).unwrap();
            change().unwrap();
            timeout(Duration::from_secs(30), watch.changed()).await.expect(what).unwrap();
        }
        assert!(Watch::new(&[&a]).is_err(), "the directory is gone");
    }
}
