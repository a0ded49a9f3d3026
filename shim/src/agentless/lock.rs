//! The locks between shims that record a deferred DEL and an agent that starts.

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

/// flock(2) has no deadline, so the lock is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Takes the lock, which shims share.
///
/// # Errors
/// `WouldBlock` if an agent holds the lock until the timeout; others if the lock files cannot be created.
pub(super) fn shared(socket: &Path, timeout: Duration) -> io::Result<Flock<File>> {
    let directory = socket_directory(socket);
    // A reboot empties /run. The agent refuses a directory that other users can enter.
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let deadline = Instant::now() + timeout;
    let _turnstile = lock(&directory.join(TURNSTILE), deadline)?;
    lock(&directory.join(LOCK), deadline)
}

fn lock(path: &Path, deadline: Instant) -> io::Result<Flock<File>> {
    let mut file = File::options().create(true).write(true).truncate(false).mode(0o600).open(path)?;
    loop {
        file = match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file,
            Err((_, errno)) => return Err(errno.into()),
        };
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn shims_share_the_lock_and_wait_for_a_starting_agent() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("own/agent.sock");
        let first = shared(&socket, SHORT).unwrap();
        drop((shared(&socket, SHORT).unwrap(), first));
        for name in [LOCK, TURNSTILE] {
            let agent = File::open(dir.path().join("own").join(name)).unwrap();
            let agent = Flock::lock(agent, FlockArg::LockExclusive).unwrap();
            assert_eq!(shared(&socket, SHORT).unwrap_err().kind(), io::ErrorKind::WouldBlock, "{name}");
            let socket = socket.clone();
            let waiting = thread::spawn(move || shared(&socket, Duration::from_secs(20)).map(drop));
            thread::sleep(SHORT);
            drop(agent);
            waiting.join().unwrap().unwrap();
        }
    }
}
