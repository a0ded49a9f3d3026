//! What monitoring systems and the kubelet ask by HTTP: `/metrics`, `/readyz`, `/healthz`.
//!
//! Whoever reaches the address may ask, so that all is bounded: connections, their length, and what is read of them. Each
//! carries one request.

use std::{fmt::Write as _, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, Uri, header};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::live::Liveness;
use crate::{
    health::{self, Affects, Health},
    metrics::Metrics,
};

/// What answers are made from.
#[derive(Clone)]
pub struct Observed {
    pub health: Health,
    pub metrics: Metrics,
    pub liveness: Liveness,
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for metrics and probes; give an address that is this node's and free by --http"
)]
pub struct HttpError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// More than a monitoring system and the kubelet ever have at once.
const CONNECTIONS: usize = 32;
/// How long the head of a request may take to come, and a connection in all: /healthz waits for two seconds.
const HEAD: Duration = Duration::from_secs(3);
const WHOLE: Duration = Duration::from_secs(10);
/// The largest head of a request; hyper takes no less.
const MOST: usize = 8 * 1024;
/// How long to wait when there are no descriptors left.
const RETRY: Duration = Duration::from_millis(100);
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Listens on an address.
///
/// # Errors
/// If it is taken, or not this node's.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, HttpError> {
    TcpListener::bind(address).await.map_err(|source| HttpError { address, source })
}

/// Serves, for ever.
pub async fn serve(listener: TcpListener, observed: Observed) {
    let router = router(observed);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Who finds no room waits in the kernel. It is never closed.
        let place = Arc::clone(&room).acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = serve_one(stream, router.clone());
                tokio::spawn(async move {
                    // What a client does wrong is its own concern.
                    let _ = timeout(WHOLE, serving).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection for metrics or probes cannot be accepted");
                sleep(RETRY).await;
            }
        }
    }
}

async fn serve_one(stream: TcpStream, router: Router) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .max_buf_size(MOST)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}

/// Takes GET and HEAD only, and reads no bodies.
fn router(observed: Observed) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/readyz", get(readyz))
        .route("/healthz", get(healthz))
        .with_state(observed)
}

async fn metrics(State(observed): State<Observed>) -> Response {
    match observed.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn readyz(State(Observed { health, .. }): State<Observed>, uri: Uri) -> Response {
    let code = if health.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let query = uri.query().unwrap_or_default();
    let text = if form_urlencoded::parse(query.as_bytes()).any(|(key, _)| key == "verbose") {
        components(&health)
    } else if code == StatusCode::OK {
        "ok".to_owned()
    } else {
        health.obstacles().join("\n")
    };
    plain(code, text)
}

async fn healthz(State(observed): State<Observed>) -> Response {
    match observed.liveness.check().await {
        Ok(()) => plain(StatusCode::OK, "ok".to_owned()),
        Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

/// One line for each, as the API server's own `/readyz?verbose` has them.
fn components(health: &Health) -> String {
    let mut text = String::new();
    for (name, it) in health.components() {
        let sign = if it.state == health::State::Healthy { '+' } else { '-' };
        let needed = match it.affects {
            Affects::Nothing => "",
            Affects::NewPods => ", needed for ADD",
            Affects::AllPods => ", needed by all pods",
        };
        let _ = writeln!(text, "[{sign}] {name} ({}{needed}): {}", it.state.as_str(), it.why);
    }
    text
}

fn plain(code: StatusCode, mut text: String) -> Response {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    (code, [(header::CONTENT_TYPE, TEXT)], text).into_response()
}

#[cfg(test)]
mod tests;
