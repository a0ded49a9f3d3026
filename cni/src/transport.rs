//! One HTTP/2 connection over a unix socket, for one call.
//!
//! Tonic's own channel brings reconnection, balancing, buffering and DNS, none of which a process that makes a
//! single call can use, and all of which it would pay for at each start.

use std::{
    error::Error,
    io,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixStream, time};
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
};

/// A connection to the agent, as the generated client wants it.
#[derive(Debug)]
pub(crate) struct Transport(SendRequest<Body>);

/// How long to wait before trying again to get into the agent's queue of connections.
const RETRY: Duration = Duration::from_millis(10);

// === impl Transport ===

impl Transport {
    /// Connects, and leaves the connection to a task of its own.
    ///
    /// # Errors
    /// If nobody listens on the socket, or it may not be opened. While the agent's queue of connections is full
    /// it waits; so the caller sets the deadline.
    pub(crate) async fn connect(socket: &str) -> io::Result<Self> {
        let stream = loop {
            match UnixStream::connect(socket).await {
                // A unix socket is not awaited by the kernel: a full queue is an error at once. A node that
                // starts hundreds of pods fills it.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => time::sleep(RETRY).await,
                connected => break connected?,
            }
        };
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // Its error is also the call's.
        tokio::spawn(async { drop(connection.await) });
        Ok(Self(sender))
    }
}

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<Incoming>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.0.poll_ready(cx).map_err(|e| lost(&e))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let response = self.0.send_request(request);
        Box::pin(async move { response.await.map_err(|e| lost(&e)) })
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
