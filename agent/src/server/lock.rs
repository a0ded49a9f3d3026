//! One agent per network namespace, whatever directories it is configured with.
//!
//! The lock is a name in the abstract socket namespace: every network namespace has its own (unix(7)), and
//! the kernel releases the name when the agent dies. Any local user can bind a free name first. So a holder
//! that is neither root nor the agent's user does not keep the agent from starting.

use std::{
    io,
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt, socket,
        sockopt::PeerCredentials,
    },
};

use super::{SocketError, is_trusted};

/// The lock on this network namespace, held until dropped.
#[derive(Debug)]
pub struct NodeLock {
    /// `None` if another program holds the name.
    _name: Option<UnixListener>,
}

const NAME: &str = "ferrule-agent";
/// A starting agent has bound the name before it listens; a stopping agent may release it between two
/// attempts.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);

// === impl NodeLock ===

impl NodeLock {
    /// Takes the lock. Must precede every access to the network namespace.
    ///
    /// # Errors
    /// If another agent holds the lock.
    pub fn take() -> Result<Self, SocketError> {
        Self::take_name(NAME)
    }

    fn take_name(name: &str) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Access { what: "take the lock", path: name.into(), source };
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        for _ in 0..ATTEMPTS {
            match UnixListener::bind_addr(&address) {
                Ok(name) => return Ok(Self { _name: Some(name) }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(failed(error)),
            }
            match holder(name) {
                Ok(it) if is_trusted(it.uid()) => {
                    return Err(SocketError::SecondAgent { pid: Some(it.pid()).filter(|pid| *pid != 0) });
                }
                Ok(it) => {
                    tracing::warn!(
                        pid = it.pid(),
                        uid = it.uid(),
                        name,
                        "an unprivileged process holds the name of the agent's lock; continuing without the lock. End \
                         that process, and start no other agent in this network namespace"
                    );
                    return Ok(Self { _name: None });
                }
                // The holder does not listen, or has released the name.
                Err(Errno::ECONNREFUSED) => thread::sleep(PAUSE),
                // The queue of connections is full: assume an agent.
                Err(Errno::EAGAIN) => return Err(SocketError::SecondAgent { pid: None }),
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        // An agent would listen by now.
        tracing::warn!(
            name,
            "an unknown process holds the name of the agent's lock and does not listen; continuing without the lock. \
             Find the process (`ss -xlp`) and end it, and start no other agent in this network namespace"
        );
        Ok(Self { _name: None })
    }
}

/// The credentials of the process that listens on a name. Does not wait for a place in its queue.
fn holder(name: &str) -> nix::Result<UnixCredentials> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(probe.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    getsockopt(&probe, PeerCredentials)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    /// Unique to the test process: tests share the machine's namespace.
    fn name(of: &str) -> String {
        format!("ferrule-test-{of}-{}", std::process::id())
    }

    #[test]
    fn the_lock_is_exclusive_and_released_on_drop() {
        let name = name("one");
        let first = NodeLock::take_name(&name).unwrap();
        assert!(first._name.is_some());
        let refused = NodeLock::take_name(&name).unwrap_err().to_string();
        let named = format!("works in this network namespace (pid {}): stop", std::process::id());
        assert!(refused.contains(&named), "{refused}");
        drop(first);
        assert!(NodeLock::take_name(&name).unwrap()._name.is_some());
    }

    #[test]
    fn a_holder_that_does_not_listen_does_not_block_the_agent() {
        let name = name("silent");
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        assert!(NodeLock::take_name(&name).unwrap()._name.is_none(), "the holder does not listen");
        listen(&socket, Backlog::new(0).unwrap()).unwrap();
        let mut waiting = Vec::new();
        while let Ok(client) = {
            let client =
                super::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
            connect(client.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).map(|()| client)
        } {
            waiting.push(client);
        }
        let refused = NodeLock::take_name(&name);
        assert!(
            matches!(refused, Err(SocketError::SecondAgent { pid: None })),
            "a full queue counts as an agent"
        );
    }
}
