//! The connections to the socket: a bounded number, and none that stays without a call.
//!
//! Only root can connect, but a program of root's can leak connections or stall, and must not keep the shims
//! out.
//!
//! * A connection that sends no request is closed after [`FIRST_REQUEST`], or as soon as a new connection
//!   needs its slot. A shim sends its request at once, so that neither hits a shim.
//! * Later, tonic's limits hold: a connection stops taking calls after [`MAX_AGE`] and closes once its calls
//!   are answered, and a peer that answers no HTTP/2 ping is cut off (see [`limit`]).

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Timeout, sleep, timeout},
};
use tonic::transport::{Server, server::Connected};

/// A connection and its slot.
pub struct Connection {
    stream: UnixStream,
    peer: Peer,
    /// Ends the connection unless it has sent a request: by eviction or after [`FIRST_REQUEST`].
    end: Pin<Box<Timeout<oneshot::Receiver<()>>>>,
    is_over: bool,
    _slot: OwnedSemaphorePermit,
}

/// The process at the other end of a connection. An extension of each of its requests.
#[derive(Debug, Clone)]
pub struct Peer {
    /// By SO_PEERCRED; `None` if the kernel does not know it.
    pub uid: Option<u32>,
    has_called: Arc<AtomicBool>,
}

/// The slots for connections.
struct Slots {
    free: Arc<Semaphore>,
    /// The connections that have not sent a request, oldest first, and some that have.
    silent: Mutex<VecDeque<Silent>>,
}

struct Silent {
    peer: Peer,
    /// Evicts the connection when dropped.
    evict: oneshot::Sender<()>,
}

/// Twice the calls that `attach::Engine` accepts at a time, each of which has a connection of its own.
const MAX_CONNECTIONS: usize = 2048;
const FIRST_REQUEST: Duration = Duration::from_secs(5);
const MAX_AGE: Duration = Duration::from_secs(10);
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Long enough for a shim that gets no CPU on an overloaded node.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The wait after the kernel had no file descriptor or memory for a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Sets the limits of connections that have sent a request.
pub fn limit<L>(server: Server<L>) -> Server<L> {
    server
        .max_connection_age(MAX_AGE)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
}

/// Accepts connections without end.
pub fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<Connection>> {
    stream::unfold((listener, Slots::new(MAX_CONNECTIONS)), async |(listener, slots)| {
        let stream = accept(&listener).await;
        let connection = slots.admit(stream).await;
        Some((connection, (listener, slots)))
    })
}

async fn accept(listener: &UnixListener) -> UnixStream {
    let mut is_reported = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(%error, "cannot accept a connection; retrying");
                }
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

// === impl Peer ===

impl Peer {
    /// Records that the peer has sent a request, so that its connection is neither evicted nor closed as
    /// silent.
    pub fn record_request(&self) {
        self.has_called.store(true, Ordering::Relaxed);
    }

    fn has_called(&self) -> bool {
        self.has_called.load(Ordering::Relaxed)
    }
}

// === impl Slots ===

impl Slots {
    fn new(slots: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(slots)), silent: Mutex::default() }
    }

    /// Gives a connection a slot. If all are taken, the oldest silent connection is evicted; if none is
    /// silent, the new one waits, and later ones stay in the kernel's queue.
    async fn admit(&self, stream: UnixStream) -> io::Result<Connection> {
        if self.free.available_permits() == 0 {
            self.evict();
        }
        let slot = Arc::clone(&self.free).acquire_owned().await.map_err(io::Error::other)?;
        let uid = stream.peer_cred().ok().map(|peer| peer.uid());
        let peer = Peer { uid, has_called: Arc::default() };
        let (evict, evicted) = oneshot::channel();
        self.with_silent(|silent| silent.push_back(Silent { peer: peer.clone(), evict }));
        Ok(Connection {
            stream,
            peer,
            end: Box::pin(timeout(FIRST_REQUEST, evicted)),
            is_over: false,
            _slot: slot,
        })
    }

    fn evict(&self) {
        drop(self.with_silent(VecDeque::pop_front));
    }

    /// Changes the queue once closed connections and those that have called are gone from its front.
    fn with_silent<T>(&self, change: impl FnOnce(&mut VecDeque<Silent>) -> T) -> T {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        while silent.front().is_some_and(|it| it.evict.is_closed() || it.peer.has_called()) {
            silent.pop_front();
        }
        change(&mut silent)
    }
}

// === impl Connection ===

impl Connection {
    /// Fails once the connection is evicted or has been silent for too long. Checked for writes too: a peer
    /// that floods without reading replies would keep the server from reading.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A future must not be polled after it is ready.
        self.is_over = self.is_over || !self.peer.has_called() && self.end.as_mut().poll(cx).is_ready();
        Poll::Ready(if self.is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) })
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::Instant,
    };
    use tonic::transport::Endpoint;
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };

    use super::*;

    async fn admit(slots: &Slots) -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (slots.admit(ours).await.unwrap(), theirs)
    }

    async fn is_open(connection: &mut Connection) -> bool {
        timeout(Duration::from_millis(1), connection.read(&mut [0; 16])).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_even_if_it_sends_bytes() {
        let slots = Slots::new(1);
        let (mut slow, mut theirs) = admit(&slots).await;
        let dripping = tokio::spawn(async move {
            while theirs.write_all(b"P").await.is_ok() {
                sleep(FIRST_REQUEST / 5).await;
            }
        });
        let start = Instant::now();
        while slow.read(&mut [0; 16]).await.is_ok() {}
        assert!(start.elapsed() <= FIRST_REQUEST + FIRST_REQUEST / 5);
        drop(slow);
        dripping.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_request_stays_open() {
        let slots = Slots::new(1);
        let (mut calling, _theirs) = admit(&slots).await;
        calling.connect_info().record_request();
        sleep(10 * FIRST_REQUEST).await;
        assert!(is_open(&mut calling).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_evicts_the_oldest_silent_one_and_waits_if_there_is_none() {
        let slots = Slots::new(3);
        let (mut calling, _calling) = admit(&slots).await;
        calling.connect_info().record_request();
        let (mut oldest, _oldest) = admit(&slots).await;
        let (mut second, _second) = admit(&slots).await;
        let newest = tokio::join!(admit(&slots), async move {
            assert!(!is_open(&mut oldest).await);
        });
        assert!(is_open(&mut calling).await && is_open(&mut second).await);
        for connection in [&second, &newest.0.0] {
            connection.connect_info().record_request();
        }
        assert!(timeout(Duration::from_secs(60), admit(&slots)).await.is_err(), "all slots have calls");
        drop(calling);
        admit(&slots).await;
    }

    #[tokio::test]
    async fn a_call_in_flight_outlives_the_maximum_age_of_its_connection() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (reporter, health) = tonic_health::server::health_reporter();
        let mut server = limit(Server::builder()).max_connection_age(Duration::from_millis(50));
        tokio::spawn(server.add_service(health).serve_with_incoming(incoming(listener)));
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://agent").connect_with_connector(connect).await.unwrap();
        let watch = HealthClient::new(channel).watch(HealthCheckRequest::default()).await;
        let mut watch = watch.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
        sleep(Duration::from_millis(300)).await;
        reporter.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    }
}
