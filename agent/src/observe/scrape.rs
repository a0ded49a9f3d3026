//! Metrics for clients beyond the node: HTTPS, for those whom the API server allows to read them.

mod certificate;
mod guard;

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse as _, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode, header};
use tokio::net::TcpListener;

pub use certificate::{Certificate, CertificateError};
pub use guard::Guard;

use guard::Refusal;

use super::http::{HttpError, connections, encoded, listen, plain};
use crate::metrics::Metrics;

/// What serves.
pub struct Scrapes {
    listener: TcpListener,
    certificate: Certificate,
    router: Router,
}

#[derive(Clone)]
struct Source {
    guard: Arc<Guard>,
    metrics: Metrics,
}

/// Connections of one address; a scraper has one.
const OF_ONE_CLIENT: usize = 8;

// === impl Scrapes ===

impl Scrapes {
    /// # Errors
    /// If the address is in use, or not this node's.
    pub async fn listen(
        address: SocketAddr,
        certificate: Certificate,
        guard: Guard,
        metrics: Metrics,
    ) -> Result<Self, HttpError> {
        let listener = listen(address).await?;
        let source = Source { guard: Arc::new(guard), metrics };
        let router = Router::new().route("/metrics", get(metrics_of)).with_state(source);
        Ok(Self { listener, certificate, router })
    }

    /// Serves until dropped.
    pub async fn serve(self) {
        let Self { listener, certificate, router } = self;
        connections::each(listener, OF_ONE_CLIENT, move |stream| {
            let (router, acceptor) = (router.clone(), certificate.acceptor());
            async move {
                // Errors of clients need no report.
                let Ok(stream) = acceptor.accept(stream).await else { return };
                drop(connections::one(stream, router).await);
            }
        })
        .await;
    }
}

async fn metrics_of(State(source): State<Source>, headers: HeaderMap) -> Response {
    let given = headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    let token = given.and_then(|it| it.strip_prefix("Bearer ")).unwrap_or_default();
    match source.guard.admit(token).await {
        Ok(()) => encoded(source.metrics).await,
        Err(refusal @ Refusal::Unauthenticated) => {
            let answer = plain(StatusCode::UNAUTHORIZED, refusal.to_string());
            ([(header::WWW_AUTHENTICATE, "Bearer")], answer).into_response()
        }
        Err(refusal @ Refusal::Forbidden { .. }) => plain(StatusCode::FORBIDDEN, refusal.to_string()),
        Err(refusal @ (Refusal::Unknown(_) | Refusal::Busy)) => {
            plain(StatusCode::SERVICE_UNAVAILABLE, refusal.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
