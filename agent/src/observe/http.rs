//! `/metrics`, `/readyz` and `/healthz` over HTTP, for monitoring systems and the kubelet.
//!
//! Every local user can connect: a user who holds connections open cannot keep the kubelet's probes waiting.

pub mod connections;

use std::{fmt::Write as _, io, net::SocketAddr};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, Uri, header};
use tokio::{net::TcpListener, sync::Mutex, task::spawn_blocking};

use super::liveness::Liveness;
use crate::{
    health::{self, Affects, Health},
    metrics::Metrics,
};

/// The sources of the answers.
#[derive(Clone)]
pub struct Observed {
    pub health: Health,
    pub metrics: Metrics,
    pub liveness: Liveness,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for metrics and probes; choose a free address of this node with --http")]
pub struct HttpError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// # Errors
/// If the address is in use, or not this node's.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, HttpError> {
    TcpListener::bind(address).await.map_err(|source| HttpError { address, source })
}

/// Serves until dropped.
pub async fn serve(listener: TcpListener, observed: Observed) {
    let router = router(observed);
    // All local clients have the same address.
    connections::each(listener, usize::MAX, |stream| {
        let router = router.clone();
        async { drop(connections::one(stream, router).await) }
    })
    .await;
}

/// Accepts GET and HEAD only, and reads no bodies.
fn router(observed: Observed) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/readyz", get(readyz))
        .route("/healthz", get(healthz))
        .with_state(observed)
}

async fn metrics(State(observed): State<Observed>) -> Response {
    encoded(observed.metrics).await
}

/// Reads maps: on the pool, and for one client after another, so that scrapes take no time from calls.
pub async fn encoded(metrics: Metrics) -> Response {
    static ONE: Mutex<()> = Mutex::const_new(());
    let _turn = ONE.lock().await;
    match spawn_blocking(move || metrics.encode()).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Ok(Err(error)) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn readyz(State(Observed { health, .. }): State<Observed>, uri: Uri) -> Response {
    let code = if health.is_serving() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
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

/// One line per component, in the format of the API server's `/readyz?verbose`.
fn components(health: &Health) -> String {
    let mut text = String::new();
    for (name, it) in health.components() {
        let sign = if it.state == health::State::Healthy { '+' } else { '-' };
        let needed = match it.affects {
            Affects::Nothing => "",
            Affects::NewPods | Affects::NewPodsWhileFull => ", needed for ADD",
            Affects::AllPods => ", needed by all pods",
        };
        let _ = writeln!(text, "[{sign}] {name} ({}{needed}): {}", it.state.as_str(), it.why);
    }
    text
}

pub fn plain(code: StatusCode, mut text: String) -> Response {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    (code, [(header::CONTENT_TYPE, TEXT)], text).into_response()
}

#[cfg(test)]
mod tests;
