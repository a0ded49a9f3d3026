//! An HTTP/2 connection over a unix socket, for a single call.
//!
//! Tonic's channel adds reconnection, load balancing, buffering and DNS: start-up time without use in a
//! process that makes one call.

use std::{
    error::Error,
    future::{pending, poll_fn},
    io,
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    thread,
    time::{Duration, Instant},
};

use h2::{
    RecvStream,
    client::{Builder, Connection, SendRequest},
};
use http_body::Frame;
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
};
use tokio::io::BufWriter;
use tonic::{
    Status,
    body::Body,
    codegen::{Body as _, BoxFuture, Bytes, Service, http},
};

use crate::{
    executor::{self, Socket},
    trace::Trace,
};

/// The service behind the generated client.
#[derive(Debug)]
pub(crate) struct Transport {
    sender: SendRequest<Bytes>,
    /// For the first and only request.
    trace: Option<Trace>,
}

/// A connection to the agent.
pub(crate) struct Connected {
    pub(crate) transport: Transport,
    pub(crate) socket: Socket,
    /// Drives the connection.
    pub(crate) connection: Connection<BufWriter<Socket>>,
}

#[derive(Debug)]
pub(crate) struct ResponseBody(RecvStream);

/// Between connection attempts while the agent's accept queue is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

// === impl Connected ===

impl Connected {
    /// Connects to the agent. While its accept queue is full, as when a node starts hundreds of pods, the
    /// call waits until the deadline.
    ///
    /// # Errors
    /// If no process listens on the socket, if opening it is not permitted, or at the deadline.
    pub(crate) fn open(path: &str, trace: Option<Trace>, deadline: Instant) -> io::Result<Self> {
        let socket = Socket::new(connected(path, deadline)?);
        // Buffered, so that preface and request reach the agent in one write and wake it once.
        let builder = Builder::new().enable_push(false).clone();
        let handshake = builder.handshake(BufWriter::new(socket.clone()));
        let agreed = executor::run(&socket, handshake, pending(), deadline)?;
        let (sender, connection) = agreed.ok_or(io::ErrorKind::TimedOut)?.map_err(io::Error::other)?;
        Ok(Self { transport: Transport { sender, trace }, socket, connection })
    }
}

fn connected(path: &str, deadline: Instant) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    loop {
        match connect(stream.as_raw_fd(), &address) {
            // A non-blocking connect to a unix socket fails at once if the accept queue is full.
            Err(Errno::EAGAIN) if Instant::now() < deadline => thread::sleep(RETRY_INTERVAL),
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            outcome => return Ok(outcome.map(|()| UnixStream::from(stream))?),
        }
    }
}

// === impl Transport ===

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<ResponseBody>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.sender.poll_ready(cx).map_err(|e| lost(&e))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        if let Some(trace) = self.trace.take() {
            trace.write(&mut head.headers);
        }
        let started = self.sender.send_request(http::Request::from_parts(head, ()), false);
        Box::pin(async move {
            let (response, mut stream) = started.map_err(|e| lost(&e))?;
            let mut body = pin!(body);
            while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
                // Requests have no trailers. The message is in memory anyway, so h2 may buffer beyond the
                // flow-control window; waiting for the window would separate the message from its headers.
                let data = frame?.into_data().unwrap_or_default();
                if stream.send_data(data, false).is_err() {
                    break;
                }
            }
            // If the stream is broken, the response has the cause.
            let _ = stream.send_data(Bytes::new(), true);
            Ok(response.await.map_err(|e| lost(&e))?.map(ResponseBody))
        })
    }
}

// === impl ResponseBody ===

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match ready!(self.0.poll_data(cx)) {
            // Consumed data reopens the flow-control window.
            Some(data) => data.and_then(|data| {
                self.0.flow_control().release_capacity(data.len())?;
                Ok(Some(Frame::data(data)))
            }),
            None => ready!(self.0.poll_trailers(cx)).map(|trailers| trailers.map(Frame::trailers)),
        };
        Poll::Ready(frame.map_err(|e| lost(&e)).transpose())
    }
}

/// A broken connection: the agent stopped, or the listener does not speak HTTP/2. The client relies on
/// `Unavailable`.
fn lost(error: &dyn Error) -> Status {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Status::unavailable(text)
}
