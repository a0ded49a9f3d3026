//! The connections to the socket: so many and no more, and each only while it has something to do.
//!
//! Only root gets in; but root's programs have defects too, and one that opens connections without end, or says nothing on
//! them, must not keep a pod from its network. So a connection without a call in work is closed after a while, and when there
//! are too many, the one that has been idle for longest makes room for a new one. A plugin calls at once, and is never
//! among those.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    sync::oneshot,
    time::{Instant, Sleep, sleep, sleep_until},
};
use tokio_stream::Stream;
use tonic::{Request, transport::server::Connected};

/// New connections, for ever.
pub struct Incoming {
    listener: UnixListener,
    open: Arc<Open>,
    /// After the kernel has refused one.
    pause: Option<Pin<Box<Sleep>>>,
    is_refused: bool,
}

/// A connection. It is at its end for us before its peer says so, if it is idle for too long.
pub struct Connection {
    stream: UnixStream,
    caller: Caller,
    idle: Pin<Box<Sleep>>,
    evicted: oneshot::Receiver<()>,
    _listed: Listed,
}

/// Who is at the other end. Each of its requests has this among its extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    /// `None` if the kernel does not say.
    pub uid: Option<u32>,
    at_work: Arc<Mutex<AtWork>>,
}

/// A call in work, until it is dropped.
#[derive(Debug)]
pub struct InWork(Caller);

#[derive(Debug)]
struct AtWork {
    calls: u32,
    /// When the last one ended, or the connection began.
    since: Instant,
}

/// All connections.
#[derive(Default)]
struct Open {
    next: AtomicU64,
    connections: Mutex<HashMap<u64, (Caller, oneshot::Sender<()>)>>,
}

/// A place among all connections.
struct Listed {
    open: Arc<Open>,
    number: u64,
}

/// As many as the verbs take calls at once (see `attach::Engine`), each of which comes on a connection of its own.
const MAX_CONNECTIONS: usize = 2048;
/// How long a connection may be without a call in work.
const IDLE: Duration = Duration::from_secs(5);
/// How long to wait when the kernel has no descriptor or memory for another one.
const PAUSE: Duration = Duration::from_millis(50);

// === impl Incoming ===

impl Incoming {
    pub fn new(listener: UnixListener) -> Self {
        Self { listener, open: Arc::default(), pause: None, is_refused: false }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((stream, _)) => {
                    self.is_refused = false;
                    return Poll::Ready(Some(Ok(self.open.admit(stream))));
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_refused, true) {
                        tracing::warn!(%error, "no connection can be accepted; trying again");
                    }
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

// === impl Caller ===

impl Caller {
    fn new(uid: Option<u32>) -> Self {
        Self { uid, at_work: Arc::new(Mutex::new(AtWork { calls: 0, since: Instant::now() })) }
    }

    /// Notes that a request has been read and is in work. Before, it is only somebody who may never say what he wants.
    pub fn begin<T>(request: &Request<T>) -> Option<InWork> {
        let caller = request.extensions().get::<Self>()?.clone();
        caller.at_work().calls += 1;
        Some(InWork(caller))
    }

    /// Since when there is no call in work; `None` if there is one.
    fn idle_since(&self) -> Option<Instant> {
        let at_work = self.at_work();
        (at_work.calls == 0).then_some(at_work.since)
    }

    fn at_work(&self) -> MutexGuard<'_, AtWork> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InWork {
    fn drop(&mut self) {
        let mut at_work = self.0.at_work();
        at_work.calls = at_work.calls.saturating_sub(1);
        at_work.since = Instant::now();
    }
}

// === impl Open ===

impl Open {
    fn admit(self: &Arc<Self>, stream: UnixStream) -> Connection {
        let caller = Caller::new(stream.peer_cred().ok().map(|peer| peer.uid()));
        let (evict, evicted) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connections = self.connections();
        if connections.len() >= MAX_CONNECTIONS {
            let idle = connections.iter().filter_map(|(number, (it, _))| Some((it.idle_since()?, *number)));
            // If all are at work, there are more calls than are taken, and it is told so.
            if let Some((_, longest)) = idle.min() {
                // To drop the sender is to evict.
                connections.remove(&longest);
            }
        }
        connections.insert(number, (caller.clone(), evict));
        drop(connections);
        let idle = Box::pin(sleep(IDLE));
        Connection { stream, caller, idle, evicted, _listed: Listed { open: Arc::clone(self), number } }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, (Caller, oneshot::Sender<()>)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.open.connections().remove(&self.number);
    }
}

// === impl Connection ===

impl Connection {
    /// Whether it is of no use any more. To be asked whenever something may come.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if Pin::new(&mut self.evicted).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        while self.idle.as_mut().poll(cx).is_ready() {
            let end = self.caller.idle_since().unwrap_or_else(Instant::now) + IDLE;
            if end <= Instant::now() {
                return Poll::Ready(());
            }
            self.idle = Box::pin(sleep_until(end));
        }
        Poll::Pending
    }

    /// The same for writing: a peer that does not read what it asks for keeps us from reading, too.
    fn poll_usable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.poll_end(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::BrokenPipe.into()),
            Poll::Pending => Ok(()),
        })
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.poll_end(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_usable(cx))?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_usable(cx))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_usable(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    fn admit(open: &Arc<Open>) -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (open.admit(ours), theirs)
    }

    fn request(of: &Connection) -> Request<()> {
        let mut request = Request::new(());
        request.extensions_mut().insert(of.connect_info());
        request
    }

    /// How long until a connection ends.
    async fn end(connection: &mut Connection) -> Duration {
        let start = Instant::now();
        assert_eq!(connection.read(&mut [0; 16]).await.unwrap(), 0);
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_or_little_is_given_up_and_who_is_at_work_is_not() {
        let open = Arc::<Open>::default();
        let (mut silent, _silent) = admit(&open);
        assert!(end(&mut silent).await <= IDLE + PAUSE);

        let (mut slow, mut theirs) = admit(&open);
        let dripping = tokio::spawn(async move {
            for _ in 0..100 {
                sleep(IDLE / 5).await;
                if theirs.write_all(b"P").await.is_err() {
                    break;
                }
            }
        });
        let start = Instant::now();
        while slow.read(&mut [0; 16]).await.unwrap() > 0 {}
        assert!(start.elapsed() <= 2 * IDLE, "bytes are no call");
        drop(slow);
        dripping.await.unwrap();

        let (mut working, _working) = admit(&open);
        let call = Caller::begin(&request(&working));
        let read = timeout(10 * IDLE, working.read(&mut [0; 16])).await;
        assert!(read.is_err(), "it waits for its answer");
        drop(call);
        let took = end(&mut working).await;
        assert!(took >= IDLE - PAUSE && took <= 2 * IDLE, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_makes_room_and_nothing_is_kept_of_those_that_are_gone() {
        let open = Arc::<Open>::default();
        let mut all = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            all.push(admit(&open));
            tokio::time::advance(Duration::from_micros(1)).await;
        }
        let busy = Caller::begin(&request(&all[0].0));
        let one_more = admit(&open);
        assert_eq!(open.connections().len(), MAX_CONNECTIONS);
        assert_eq!(end(&mut all[1].0).await, Duration::ZERO, "the first is at work");
        let read = timeout(Duration::from_secs(1), all[2].0.read(&mut [0; 16])).await;
        assert!(read.is_err(), "one was enough");
        drop((all, one_more, busy));
        assert!(open.connections().is_empty());
    }
}
