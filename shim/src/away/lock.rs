//! The locks between shims, which leave notes, and an agent that starts, which reads them.

use std::{
    fs::{DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ferrule_proto::deferred::{LOCK, TURNSTILE, socket_directory};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

/// How often to look whether a lock is free: the kernel does not wait with a deadline.
const LOOK: Duration = Duration::from_millis(10);

/// Takes the lock together with other shims.
///
/// # Errors
/// `WouldBlock` if an agent has held it for all of the time; others, if there is no place for it.
pub(super) fn shared(socket: &Path, within: Duration) -> io::Result<Flock<File>> {
    let directory = socket_directory(socket);
    // A reboot has emptied /run. The agent takes no directory that others can enter.
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let end = Instant::now() + within;
    let _turn = take(&directory.join(TURNSTILE), end)?;
    take(&directory.join(LOCK), end)
}

fn take(path: &Path, end: Instant) -> io::Result<Flock<File>> {
    let mut file = File::options().create(true).write(true).truncate(false).mode(0o600).open(path)?;
    loop {
        file = match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < end => file,
            Err((_, errno)) => return Err(errno.into()),
        };
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(30);

    #[test]
    fn shims_share_the_lock_and_wait_for_an_agent_that_starts() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("own/agent.sock");
        let first = shared(&socket, SOON).unwrap();
        drop((shared(&socket, SOON).unwrap(), first));
        for name in [LOCK, TURNSTILE] {
            let agent = File::open(dir.path().join("own").join(name)).unwrap();
            let agent = Flock::lock(agent, FlockArg::LockExclusive).unwrap();
            assert_eq!(shared(&socket, SOON).unwrap_err().kind(), io::ErrorKind::WouldBlock, "{name}");
            let socket = socket.clone();
            let waiting = thread::spawn(move || shared(&socket, Duration::from_secs(20)).map(drop));
            thread::sleep(SOON);
            drop(agent);
            waiting.join().unwrap().unwrap();
        }
    }
}
