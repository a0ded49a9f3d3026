//! Serves connections of strangers: their number, their lifetime and the size of a request are bounded, and
//! each carries one request. A new connection is always served, if need be instead of the oldest.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::{sleep, timeout},
};

/// Concurrent connections; monitoring and kubelet use a few. A probe is answered within a millisecond, in
/// which no user can open so many.
pub const MAX_CONNECTIONS: usize = 256;
/// Deadlines for the request head, and for the whole connection; /healthz takes up to two seconds.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request head; the minimum that hyper accepts.
pub const MAX_HEAD: usize = 8 * 1024;
/// The pause after a failed accept, most likely for lack of file descriptors.
const RETRY: Duration = Duration::from_millis(100);

/// Serves each connection by a future, until dropped. A client address has at most `of_one` connections;
/// further ones are closed.
pub async fn each<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    of_one: usize,
    serve: impl Fn(TcpStream) -> F,
) {
    // Oldest first.
    let mut open: VecDeque<(IpAddr, AbortHandle)> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let client = client.ip().to_canonical();
                open.retain(|(_, connection)| !connection.is_finished());
                if open.iter().filter(|(of, _)| *of == client).count() >= of_one {
                    continue;
                }
                if open.len() >= MAX_CONNECTIONS {
                    open.pop_front().inspect(|(_, oldest)| oldest.abort());
                }
                let serving = serve(stream);
                let serving = async { drop(timeout(CONNECTION_TIMEOUT, serving).await) };
                open.push_back((client, tokio::spawn(serving).abort_handle()));
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection for metrics or probes");
                sleep(RETRY).await;
            }
        }
    }
}

/// Answers one request.
///
/// # Errors
/// If the client violates the protocol, which needs no report.
pub async fn one(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    router: Router,
) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}
