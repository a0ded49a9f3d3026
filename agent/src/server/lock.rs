//! One agent per network namespace, whatever directories it is configured with.
//!
//! The lock is a name in the abstract socket namespace: every network namespace has its own (unix(7)), and
//! the kernel releases the name when the agent dies. Any local user can bind a free name first. So a holder
//! that is neither root nor the agent's user does not keep the agent from starting.
//!
//! The kernel tells a holder's user to those whose connection has a place in its queue. An agent accepts and
//! closes connections, so that no user can keep its queue full: a queue that stays full is not an agent's.

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
    sys::{
        socket::{
            AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt, setsockopt,
            socket,
            sockopt::{PeerCredentials, SendTimeout},
        },
        time::TimeVal,
    },
};
use tokio::{net::UnixListener as Listener, task::JoinHandle, time::sleep};

use super::{SocketError, is_trusted};

/// The lock on this network namespace, held until dropped; the runtime releases the name a moment later.
#[derive(Debug)]
pub struct NodeLock {
    /// `None` if another program holds the name.
    _name: Option<Name>,
}

/// The name, and the task that owns it and keeps its queue short.
#[derive(Debug)]
struct Name(JoinHandle<()>);

const NAME: &str = "ferrule-agent";
/// A starting agent has bound the name before it listens; a stopping agent may release it between two
/// attempts.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);
/// The wait of one attempt for a place in the holder's queue. An agent makes room in much less.
const WAIT: Duration = Duration::from_millis(200);
/// Connections that are accepted without a pause, and the pause: who connects without end costs the agent
/// little.
const BATCH: usize = 1024;
const BETWEEN_BATCHES: Duration = Duration::from_millis(5);

// === impl NodeLock ===

impl NodeLock {
    /// Takes the lock. Must precede every access to the network namespace. Blocks for a second at most, and
    /// needs a runtime.
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
                Ok(listener) => return Ok(Self { _name: Some(Name::new(listener).map_err(failed)?) }),
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
                // The holder's queue was full during the whole wait, or a signal has ended the wait.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        // An agent would listen and accept by now.
        tracing::warn!(
            name,
            "an unknown process holds the name of the agent's lock and does not accept connections; continuing without \
             the lock. Find the process (`ss -xlp`) and end it, and start no other agent in this network namespace"
        );
        Ok(Self { _name: None })
    }
}

// === impl Name ===

impl Name {
    fn new(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self(tokio::spawn(accept_all(Listener::from_std(listener)?))))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Accepts and closes connections without end.
async fn accept_all(listener: Listener) {
    loop {
        for _ in 0..BATCH {
            // An error is a lack of file descriptors or memory, which the pause is for.
            if listener.accept().await.is_err() {
                break;
            }
        }
        sleep(BETWEEN_BATCHES).await;
    }
}

/// The credentials of the process that listens on a name. Waits for a place in its queue, but not for long.
fn holder(name: &str) -> nix::Result<UnixCredentials> {
    let probe = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let wait = TimeVal::new(0, WAIT.subsec_micros().into());
    setsockopt(&probe, SendTimeout, &wait)?;
    connect(probe.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    getsockopt(&probe, PeerCredentials)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use nix::sys::socket::{Backlog, bind, listen};
    use tokio::task::{spawn_blocking, yield_now};

    use super::*;

    /// Unique to the test process: tests share the machine's namespace.
    fn name(of: &str) -> String {
        format!("ferrule-test-{of}-{}", std::process::id())
    }

    fn connects(name: &str) -> bool {
        let client = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
        connect(client.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).is_ok()
    }

    async fn take(name: &str) -> Result<NodeLock, SocketError> {
        let name = name.to_owned();
        spawn_blocking(move || NodeLock::take_name(&name)).await.unwrap()
    }

    fn is_refused(taken: Result<NodeLock, SocketError>) -> bool {
        let named = format!("works in this network namespace (pid {}): stop", std::process::id());
        taken.is_err_and(|error| error.to_string().contains(&named))
    }

    #[tokio::test]
    async fn the_lock_is_exclusive_and_released_on_drop() {
        let name = name("one");
        let first = take(&name).await.unwrap();
        assert!(first._name.is_some());
        assert!(is_refused(take(&name).await));
        drop(first);
        // The task that owns the name ends.
        yield_now().await;
        assert!(take(&name).await.unwrap()._name.is_some());
    }

    #[tokio::test]
    async fn a_holder_that_does_not_listen_or_accept_does_not_block_the_agent() {
        let name = name("silent");
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        assert!(take(&name).await.unwrap()._name.is_none(), "the holder does not listen");
        listen(&socket, Backlog::new(0).unwrap()).unwrap();
        // A closed connection keeps its place in the queue.
        while connects(&name) {}
        assert!(take(&name).await.unwrap()._name.is_none(), "the holder does not accept");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn users_who_connect_without_end_do_not_let_a_second_agent_in() {
        let name = name("flood");
        let first = take(&name).await.unwrap();
        let (flood, attempts) = (name.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&attempts);
        let flood = spawn_blocking(move || {
            while counted.fetch_add(1, Ordering::Relaxed) < 200_000 {
                connects(&flood);
            }
        });
        // More than any queue has.
        while attempts.load(Ordering::Relaxed) < 10_000 {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(is_refused(take(&name).await), "the queue is full at times");
        flood.await.unwrap();
        assert!(is_refused(take(&name).await));
        drop(first);
    }
}
