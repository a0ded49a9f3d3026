//! One HTTP/2 connection over a unix socket, for one call.
//!
//! Tonic's own channel brings reconnection, balancing, buffering and DNS, none of which a process that makes a
//! single call can use, and all of which it would pay for at each start.

use std::{
    error::Error,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use h2::{
    RecvStream,
    client::{Builder, SendRequest},
};
use http_body::Frame;
use tokio::{io::BufWriter, net::UnixStream, time};
use tonic::{
    Status,
    body::Body,
    codegen::{Body as _, BoxFuture, Bytes, Service, http},
};

use crate::trace::Trace;

/// A connection to the agent, as the generated client wants it.
#[derive(Debug)]
pub(crate) struct Transport {
    sender: SendRequest<Bytes>,
    /// Goes with the first request, which is the only one.
    trace: Option<Trace>,
}

/// The body of the agent's answer.
#[derive(Debug)]
pub(crate) struct Answer(RecvStream);

/// How long to wait before trying again to get into the agent's queue of connections.
const RETRY: Duration = Duration::from_millis(10);

// === impl Transport ===

impl Transport {
    /// Connects, and leaves the connection to a task of its own.
    ///
    /// # Errors
    /// If nobody listens on the socket, or it may not be opened. While the agent's queue of connections is full
    /// it waits; so the caller sets the deadline.
    pub(crate) async fn connect(socket: &str, trace: Option<Trace>) -> io::Result<Self> {
        let stream = loop {
            match UnixStream::connect(socket).await {
                // A unix socket is not awaited by the kernel: a full queue is an error at once. A node that
                // starts hundreds of pods fills it.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => time::sleep(RETRY).await,
                connected => break connected?,
            }
        };
        // Buffered until h2 has nothing more to write: the greeting and the request wake the agent once.
        let (sender, connection) = Builder::new()
            .enable_push(false)
            .handshake(BufWriter::new(stream))
            .await
            .map_err(io::Error::other)?;
        // Its error is also the call's.
        tokio::spawn(async { drop(connection.await) });
        Ok(Self { sender, trace })
    }
}

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<Answer>;
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
                // A client has no trailers. The message is in memory as it is, so h2 may hold what the agent has
                // no room for yet; waiting for the room would part the message from its headers.
                let data = frame?.into_data().unwrap_or_default();
                if stream.send_data(data, false).is_err() {
                    break;
                }
            }
            // If the stream is broken, the response tells why.
            let _ = stream.send_data(Bytes::new(), true);
            Ok(response.await.map_err(|e| lost(&e))?.map(Answer))
        })
    }
}

// === impl Answer ===

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match ready!(self.0.poll_data(cx)) {
            // What is taken makes room for more.
            Some(data) => data.and_then(|data| {
                self.0.flow_control().release_capacity(data.len())?;
                Ok(Some(Frame::data(data)))
            }),
            None => ready!(self.0.poll_trailers(cx)).map(|trailers| trailers.map(Frame::trailers)),
        };
        Poll::Ready(frame.map_err(|e| lost(&e)).transpose())
    }
}

/// A connection that broke: the agent stopped, or what listens there does not speak HTTP/2.
fn lost(error: &dyn Error) -> Status {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Status::unavailable(text)
}
