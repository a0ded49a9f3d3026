//! Asks the API server who a client is (TokenReview), and whether that user may read metrics
//! (SubjectAccessReview), as kube-rbac-proxy does.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Method, Request, header};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::{
    api::{Api, ApiError},
    chain::chain,
};

/// Judges the bearer tokens of clients.
pub struct Guard {
    api: Arc<Api>,
    /// By the digest of the token.
    judged: Mutex<HashMap<Digest, Judged>>,
    /// Those who were allowed before do not wait for strangers.
    known: Semaphore,
    strangers: Semaphore,
}

type Digest = [u8; 32];

#[derive(Debug, Clone)]
struct Judged {
    verdict: Result<(), Refusal>,
    until: Instant,
}

/// Why a client gets no metrics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("send the token of a service account: Authorization: Bearer TOKEN")]
    Unauthenticated,
    #[error("{user} may not read metrics: allow `get` on the non-resource URL /metrics in a ClusterRole")]
    Forbidden { user: String },
    #[error("the API server cannot be asked about the token: {0}")]
    Unknown(String),
    #[error("too many clients with unknown tokens; try again")]
    Busy,
}

/// How long a verdict holds: a permission that is withdrawn ends within this time.
const ALLOWED: Duration = Duration::from_secs(60);
const REFUSED: Duration = Duration::from_secs(10);
/// How long a token that was allowed is no stranger's.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// A token costs two requests to the API server.
const KNOWN: usize = 2;
/// Between the reviews of two strangers' tokens: five a second at most.
const PAUSE: Duration = Duration::from_millis(200);
const DEADLINE: Duration = Duration::from_secs(5);
/// Verdicts kept; a cluster has one or two scrapers.
const MAX_JUDGED: usize = 256;
const REVIEW: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

// === impl Guard ===

impl Guard {
    pub fn new(api: Arc<Api>) -> Self {
        Self { api, judged: Mutex::default(), known: Semaphore::new(KNOWN), strangers: Semaphore::new(1) }
    }

    pub(super) async fn admit(&self, token: &str) -> Result<(), Refusal> {
        if token.is_empty() {
            return Err(Refusal::Unauthenticated);
        }
        let digest: Digest = Sha256::digest(token).into();
        let now = Instant::now();
        let judged = self.judged().get(&digest).cloned();
        if let Some(judged) = judged.as_ref().filter(|it| it.until > now) {
            return judged.verdict.clone();
        }
        let is_known = judged.is_some_and(|it| it.verdict.is_ok());
        let asked = timeout(DEADLINE, async {
            if is_known {
                let _turn = self.known.acquire().await;
                return self.ask(token).await;
            }
            let _turn = self.strangers.acquire().await;
            sleep(PAUSE).await;
            self.ask(token).await
        });
        let verdict = match asked.await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(error)) => return Err(Refusal::Unknown(chain(&error))),
            Err(_) => return Err(Refusal::Busy),
        };
        self.keep(digest, &verdict);
        verdict
    }

    async fn ask(&self, token: &str) -> Result<Result<(), Refusal>, ApiError> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token },
        });
        let review = self.post("review the token of a scraper", REVIEW, &review).await?;
        if review.pointer("/status/authenticated") != Some(&Value::Bool(true)) {
            return Ok(Err(Refusal::Unauthenticated));
        }
        let of = |field: &str| review.pointer(&format!("/status/user/{field}")).cloned().unwrap_or_default();
        let access = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": of("username"), "uid": of("uid"), "groups": of("groups"), "extra": of("extra"),
                "nonResourceAttributes": { "path": "/metrics", "verb": "get" },
            },
        });
        let access = self.post("review the access of a scraper", ACCESS, &access).await?;
        if access.pointer("/status/allowed") == Some(&Value::Bool(true)) {
            return Ok(Ok(()));
        }
        Ok(Err(Refusal::Forbidden { user: of("username").as_str().unwrap_or_default().to_owned() }))
    }

    async fn post(&self, what: &str, path: &str, body: &Value) -> Result<Value, ApiError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| ApiError::Invalid { what: what.to_owned(), why: error.to_string() })?;
        let answer = self.api.write(what, request).await?;
        // What is no JSON allows nothing.
        Ok(serde_json::from_slice(&answer).unwrap_or_default())
    }

    /// Refusals give way to those who are allowed.
    fn keep(&self, digest: Digest, verdict: &Result<(), Refusal>) {
        let now = Instant::now();
        let mut judged = self.judged();
        if judged.len() >= MAX_JUDGED {
            judged.retain(|_, it| it.verdict.is_ok() && it.until + REMEMBERED > now);
        }
        if judged.len() < MAX_JUDGED {
            let until = now + if verdict.is_ok() { ALLOWED } else { REFUSED };
            judged.insert(digest, Judged { verdict: verdict.clone(), until });
        }
    }

    fn judged(&self) -> MutexGuard<'_, HashMap<Digest, Judged>> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
