//! One agent per network namespace, whatever directories it was told to use.
//!
//! An agent has a name in the abstract namespace of sockets, which every network namespace has one of (unix(7)), and which nobody has to
//! remove. But names there are anybody's who comes first: one that somebody else has keeps no agent from starting.

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

/// The right to be the agent of this network namespace, for as long as it lives.
#[derive(Debug)]
pub struct NodeLock {
    /// `None` if somebody who is no agent has the name.
    _name: Option<UnixListener>,
}

const NAME: &str = "ferrule-agent";
/// An agent that has just taken the name does not listen yet, and one that ends may do so between two looks.
const LOOKS: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);

// === impl NodeLock ===

impl NodeLock {
    /// Takes the right, before anything of this network namespace is looked at.
    ///
    /// # Errors
    /// If another agent has it.
    pub fn take() -> Result<Self, SocketError> {
        Self::take_name(NAME)
    }

    fn take_name(name: &str) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Access { what: "take the lock", path: name.into(), source };
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        for _ in 0..LOOKS {
            match UnixListener::bind_addr(&address) {
                Ok(name) => return Ok(Self { _name: Some(name) }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(failed(error)),
            }
            match holder(name) {
                Ok(it) if is_trusted(it.uid()) => return Err(SocketError::SecondAgent),
                Ok(it) => {
                    tracing::warn!(
                        pid = it.pid(),
                        uid = it.uid(),
                        name,
                        "a process that is not root's has the name by which an agent keeps others out of this network namespace: going on \
                         without it. End that process, and see to it that no other agent is started here"
                    );
                    return Ok(Self { _name: None });
                }
                // It has the name and does not listen, or nobody has it any more.
                Err(Errno::ECONNREFUSED) => thread::sleep(PAUSE),
                // Nobody takes connections, and a queue for thousands is full: an agent's, for all that can be told.
                Err(Errno::EAGAIN) => return Err(SocketError::SecondAgent),
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        // An agent listens.
        tracing::warn!(
            name,
            "a process that cannot be told has the name by which an agent keeps others out of this network namespace: going on without it. \
             Find it (`ss -xlp`) and end it, and see to it that no other agent is started here"
        );
        Ok(Self { _name: None })
    }
}

/// Who listens by a name. Does not wait for a place in the queue.
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

    /// Nobody else's: the name space is that of the machine.
    fn name(of: &str) -> String {
        format!("ferrule-test-{of}-{}", std::process::id())
    }

    #[test]
    fn a_name_is_one_agents_and_free_when_that_has_ended() {
        let name = name("one");
        let first = NodeLock::take_name(&name).unwrap();
        assert!(first._name.is_some());
        assert!(matches!(NodeLock::take_name(&name), Err(SocketError::SecondAgent)));
        drop(first);
        assert!(NodeLock::take_name(&name).unwrap()._name.is_some());
    }

    #[test]
    fn a_name_that_nobody_listens_by_keeps_no_agent_from_starting() {
        let name = name("silent");
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        assert!(NodeLock::take_name(&name).unwrap()._name.is_none(), "it does not listen");
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
            matches!(refused, Err(SocketError::SecondAgent)),
            "an agent's queue, filled by whom ever, lets no second one in"
        );
    }
}
