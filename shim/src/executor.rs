//! Runs one call on one socket, with poll(2) instead of an event loop.
//!
//! A runtime costs a process that makes a single call a third of its system calls, and a wake-up whenever the
//! agent reads: its event loop also reports room for writing.

use std::{
    cell::Cell,
    io::{self, Read as _, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A non-blocking socket. Only [`run`] waits for it. Clones share the socket.
#[derive(Debug, Clone)]
pub(crate) struct Socket(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    stream: UnixStream,
    /// There may be something to read.
    is_readable: Cell<bool>,
    /// A write has found no room.
    is_full: Cell<bool>,
}

/// Whether a future can proceed without the socket.
struct Woken(AtomicBool);

/// Runs `call` to its end, and `connection`, which drives the socket, meanwhile. `None` at the deadline.
///
/// # Errors
/// If the connection ends and leaves the call without an answer, or poll(2) fails.
pub(crate) fn run<T>(
    socket: &Socket,
    call: impl Future<Output = T>,
    connection: impl Future<Output = ()>,
    deadline: Instant,
) -> io::Result<Option<T>> {
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let (mut call, mut connection) = (pin!(call), pin!(connection));
    let mut is_connected = true;
    loop {
        if let Poll::Ready(outcome) = call.as_mut().poll(&mut cx) {
            return Ok(Some(outcome));
        }
        if is_connected {
            is_connected = connection.as_mut().poll(&mut cx).is_pending();
        }
        if woken.0.swap(false, Ordering::Relaxed) {
            continue;
        }
        if !is_connected {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if !socket.wait(deadline)? {
            return Ok(None);
        }
    }
}

// === impl Socket ===

impl Socket {
    /// Takes a stream that is non-blocking already.
    pub(crate) fn new(stream: UnixStream) -> Self {
        let shared = Shared { stream, is_readable: Cell::new(false), is_full: Cell::new(false) };
        Self(Rc::new(shared))
    }

    /// Waits until there is something to read, or room for a write that found none; `false` at the deadline.
    fn wait(&self, deadline: Instant) -> io::Result<bool> {
        let Shared { stream, is_readable, is_full } = &*self.0;
        let room = if is_full.get() { PollFlags::POLLOUT } else { PollFlags::empty() };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up: a timeout of less than a millisecond would not wait.
            let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN | room)];
            match poll(&mut polled, timeout) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => {
                    // Of a broken connection, too: the read reports the error.
                    is_readable.set(true);
                    is_full.set(false);
                    return Ok(true);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Shared { stream, is_readable, .. } = &*self.0;
        if !is_readable.get() {
            return Poll::Pending;
        }
        let room = buffer.initialize_unfilled();
        let size = room.len();
        match (&*stream).read(room) {
            Ok(count) => {
                // A short read has emptied the socket.
                is_readable.set(count == 0 || count == size);
                buffer.advance(count);
                Poll::Ready(Ok(()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                is_readable.set(false);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Shared { stream, is_full, .. } = &*self.0;
        match (&*stream).write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                is_full.set(true);
                Poll::Pending
            }
            written => Poll::Ready(written),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The end of the process closes the connection.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

// === impl Woken ===

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn pair() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Socket::new(ours), theirs)
    }

    #[test]
    fn a_call_waits_for_its_answer_and_no_longer_than_its_deadline() {
        let (socket, mut agent) = pair();
        let mut stream = socket.clone();
        let answer = async move {
            stream.write_all(b"request").await.unwrap();
            let mut answer = [0; 6];
            stream.read_exact(&mut answer).await.unwrap();
            answer
        };
        let answering = std::thread::spawn(move || {
            agent.read_exact(&mut [0; 7]).unwrap();
            agent.write_all(b"ans").unwrap();
            std::thread::sleep(Duration::from_millis(20));
            agent.write_all(b"wer").unwrap();
            agent
        });
        let answer = run(&socket, answer, pending(), Instant::now() + SOON).unwrap();
        assert_eq!(answer.as_ref(), Some(b"answer"));
        let _agent = answering.join().unwrap();

        let (start, timeout) = (Instant::now(), Duration::from_millis(50));
        assert_eq!(run(&socket, pending::<()>(), pending(), start + timeout).unwrap(), None);
        assert!(start.elapsed() >= timeout);
    }

    #[test]
    fn a_request_larger_than_the_sockets_buffer_arrives_whole() {
        const SIZE: usize = 8 << 20;
        let (socket, mut agent) = pair();
        let mut stream = socket.clone();
        let reading = std::thread::spawn(move || {
            let mut all = vec![0; SIZE];
            agent.read_exact(&mut all).unwrap();
            all.iter().all(|it| *it == 7)
        });
        let request = async move { stream.write_all(&vec![7; SIZE]).await.is_ok() };
        assert_eq!(run(&socket, request, pending(), Instant::now() + SOON).unwrap(), Some(true));
        assert!(reading.join().unwrap());
    }

    #[test]
    fn a_connection_that_ends_fails_the_call_at_once() {
        let (socket, agent) = pair();
        let mut stream = socket.clone();
        drop(agent);
        let connection = async move { drop(stream.read_u8().await) };
        let start = Instant::now();
        let lost = run(&socket, pending::<()>(), connection, start + SOON).unwrap_err();
        assert_eq!(lost.kind(), io::ErrorKind::ConnectionAborted);
        assert!(start.elapsed() < SOON / 2);
    }
}
