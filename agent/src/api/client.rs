//! The way to the API server: kube's client carries the requests, and every answer is looked at here.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::{
    runtime::Handle,
    sync,
    task::{JoinHandle, spawn, spawn_blocking},
    time::{Instant, timeout, timeout_at},
};

use super::{
    error::{ApiError, Status},
    exec_plugin::{self, PluginError},
};
use crate::chain::chain;

/// How to reach the API server, and as whom. It may be shared.
pub struct Api {
    kubeconfig: Option<PathBuf>,
    ways: Mutex<Ways>,
    /// Makes the next client: one at a time, for all who ask.
    maker: sync::Mutex<Maker>,
    patience: Duration,
}

/// A client, and the URL that it goes to.
#[derive(Clone)]
struct Way {
    client: Client,
    url: String,
    /// When there should be a newer one.
    until: Option<Instant>,
}

#[derive(Default)]
struct Ways {
    /// Kept until there is a newer one.
    way: Option<Way>,
    /// Whether there should be a newer one.
    is_stale: bool,
    /// When the making of one began last.
    tried_at: Option<Instant>,
}

#[derive(Default)]
struct Maker {
    /// When it began, and the client.
    making: Option<(Instant, JoinHandle<Result<Way, ApiError>>)>,
    /// When a plugin gave no credential, and why.
    failed: Option<(Instant, Arc<PluginError>)>,
}

/// How long the configuration's plugin may take, and how long it is left alone when it has failed.
const PLUGIN: Duration = Duration::from_secs(10);
/// How much longer the making of a client may take, until those who wait for it do without.
const MAKE: Duration = Duration::from_secs(2);
/// How often a client is made because nobody answers.
const DOUBT: Duration = Duration::from_secs(60);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the head of an answer may take; the API server gives up itself after a minute.
const ANSWER: Duration = Duration::from_secs(30);
/// How long an answer that is not a stream may take.
const WHOLE: Duration = Duration::from_secs(60);
/// The longest such answer: five hundred pods of the largest size that etcd takes would be more, of any usual size
/// a hundredth.
const MOST: usize = 256 << 20;
/// Names the agent in the API server's audit log.
const USER_AGENT: &str = concat!("ferrule-agent/", env!("CARGO_PKG_VERSION"));

// === impl Api ===

impl Api {
    /// By a kubeconfig file, or, without one, as a pod by its service account.
    pub fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self { kubeconfig, ways: Mutex::default(), maker: sync::Mutex::default(), patience: PLUGIN }
    }

    /// By a client that is there already.
    #[cfg(test)]
    pub(crate) fn with_client(client: Client) -> Self {
        let api = Self::new(None);
        api.ways().way = Some(Way { client, url: "http://test".to_owned(), until: None });
        api
    }

    #[cfg(test)]
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The URL of the API server.
    ///
    /// # Errors
    /// If there is none in the configuration.
    pub async fn url(&self) -> Result<String, ApiError> {
        Ok(self.way().await?.url)
    }

    /// Reads the configuration anew before the next request: token, certificates and all.
    pub fn reload(&self) {
        self.ways().is_stale = true;
    }

    /// The same, unless that was done a moment ago: nobody answers, perhaps because the address or a certificate is
    /// another one now, but more likely because the network is away.
    pub fn reload_after_connect_error(&self) {
        let mut ways = self.ways();
        ways.is_stale |= ways.tried_at.is_none_or(|at| at.elapsed() >= DOUBT);
    }

    /// Opens an answer that comes piece by piece.
    ///
    /// # Errors
    /// If there is no answer, or an error for one.
    pub async fn open(&self, what: &str, path: &str) -> Result<Response<Body>, ApiError> {
        self.send(what, get(what, path)?).await
    }

    /// Gets a whole answer.
    ///
    /// # Errors
    /// If there is no answer, or an error for one.
    pub async fn get(&self, what: &str, path: &str) -> Result<Vec<u8>, ApiError> {
        self.whole(what, get(what, path)?).await
    }

    /// Sends an object, to be created (`POST`) or changed (`PATCH`).
    ///
    /// # Errors
    /// If there is no answer, or an error for one.
    pub async fn write(&self, what: &str, request: Request<Vec<u8>>) -> Result<Vec<u8>, ApiError> {
        self.whole(what, request.map(Body::from)).await
    }

    async fn whole(&self, what: &str, request: Request<Body>) -> Result<Vec<u8>, ApiError> {
        let whole = async { collect(what, self.send(what, request).await?).await };
        let slow = |_| ApiError::Timeout { what: what.to_owned(), after: WHOLE };
        timeout(WHOLE, whole).await.map_err(slow)?
    }

    async fn send(&self, what: &str, mut request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT, header::HeaderValue::from_static("application/json"));
        // What is unpacked has no bound, and the way is short.
        headers.insert(header::ACCEPT_ENCODING, header::HeaderValue::from_static("identity"));
        headers.insert(header::USER_AGENT, header::HeaderValue::from_static(USER_AGENT));
        let Way { client, .. } = self.way().await?;
        let response = match timeout(ANSWER, client.send(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(source)) => {
                return Err(ApiError::Connect { what: what.to_owned(), source: Box::new(source) });
            }
            Err(_) => return Err(ApiError::Timeout { what: what.to_owned(), after: ANSWER }),
        };
        if response.status().is_success() { Ok(response) } else { Err(refusal(what, response).await) }
    }

    async fn way(&self) -> Result<Way, ApiError> {
        if let Some(way) = self.ways().fresh() {
            return Ok(way);
        }
        let mut maker = self.maker.lock().await;
        // Somebody else may have waited for it.
        if let Some(way) = self.ways().fresh() {
            return Ok(way);
        }
        let made = self.make(&mut maker).await;
        let mut ways = self.ways();
        let way = match (made, ways.way.take()) {
            (Ok(way), _) => way,
            (Err(error), None) => return Err(error),
            (Err(error), Some(mut old)) => {
                tracing::warn!(%error, "the way to the API server is as it was");
                // Else the next refusal asks again.
                if old.has_ended() {
                    old.until = Some(Instant::now() + self.patience);
                }
                old
            }
        };
        (ways.way, ways.is_stale) = (Some(way.clone()), false);
        Ok(way)
    }

    async fn make(&self, maker: &mut Maker) -> Result<Way, ApiError> {
        if maker.making.is_none()
            && let Some((at, source)) = &maker.failed
            && at.elapsed() < self.patience
        {
            return Err(ApiError::Credential { source: Arc::clone(source) });
        }
        let (began, task) = maker.making.get_or_insert_with(|| {
            let began = Instant::now();
            self.ways().tried_at = Some(began);
            (began, spawn(connect(self.kubeconfig.clone(), self.patience)))
        });
        let limit = self.patience + MAKE;
        // What hangs is waited for once, keeps its thread, and gets no second one.
        let Ok(made) = timeout_at(*began + limit, task).await else {
            let seconds = limit.as_secs_f32();
            let why =
                format!("it has been read for more than {seconds} s: does a file system hang that it is on?");
            return Err(ApiError::Config { why });
        };
        maker.making = None;
        let made = made.unwrap_or_else(|error| Err(unusable(&error)));
        maker.failed = match &made {
            Err(ApiError::Credential { source }) => Some((Instant::now(), Arc::clone(source))),
            _ => None,
        };
        made
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ways ===

impl Ways {
    fn fresh(&self) -> Option<Way> {
        self.way.clone().filter(|way| !self.is_stale && !way.has_ended())
    }
}

// === impl Way ===

impl Way {
    fn has_ended(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

async fn connect(kubeconfig: Option<PathBuf>, patience: Duration) -> Result<Way, ApiError> {
    let read = spawn_blocking(move || Handle::current().block_on(read(kubeconfig.as_deref())));
    let mut config = read.await.map_err(|error| unusable(&error))??;
    let lasts = exec_plugin::ask(&mut config.auth_info, patience).await;
    let lasts = lasts.map_err(|source| ApiError::Credential { source: Arc::new(source) })?;
    let until = lasts.map(|lasts| Instant::now() + lasts);
    config.connect_timeout = Some(CONNECT);
    // It is for the callers to say when and how often to try again.
    config.default_retry = false;
    let url = config.cluster_url.to_string();
    // It reads files too, and panics at a token that cannot be sent.
    let made = spawn_blocking(move || Client::try_from(config)).await.map_err(|error| unusable(&error))?;
    Ok(Way { client: made.map_err(|error| unusable(&error))?, url, until })
}

/// Reads files.
async fn read(kubeconfig: Option<&Path>) -> Result<Config, ApiError> {
    let Some(path) = kubeconfig else { return Config::incluster().map_err(|error| unusable(&error)) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| match error {
        // Its text quotes what is around the error, which may be a key.
        KubeconfigError::Parse(error) => {
            let place = error.location().map(|at| format!(", in line {}", at.line())).unwrap_or_default();
            ApiError::Config { why: format!("{} is no kubeconfig{place}", path.display()) }
        }
        error => unusable(&error),
    })?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    config.map_err(|error| unusable(&error))
}

fn unusable(error: &dyn std::error::Error) -> ApiError {
    ApiError::Config { why: chain(error) }
}

fn get(what: &str, path: &str) -> Result<Request<Body>, ApiError> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().map_err(|error| ApiError::Invalid {
        what: what.to_owned(),
        why: format!("{path:?} is no path: {error}"),
    })?;
    Ok(request)
}

async fn collect(what: &str, response: Response<Body>) -> Result<Vec<u8>, ApiError> {
    let body = http_body_util::Limited::new(response.into_body(), MOST);
    let broken = |why: Box<dyn std::error::Error + Send + Sync>| ApiError::Broken {
        what: what.to_owned(),
        why: chain(why.as_ref()),
    };
    Ok(body.collect().await.map_err(broken)?.to_bytes().into())
}

/// Reads the error that an answer is.
async fn refusal(what: &str, response: Response<Body>) -> ApiError {
    let code = response.status();
    let after = response.headers().get(header::RETRY_AFTER);
    let after = after.and_then(|after| after.to_str().ok()?.trim().parse().ok()).map(Duration::from_secs);
    let body = timeout(ANSWER, collect(what, response)).await.ok().and_then(Result::ok).unwrap_or_default();
    // What is between us and the API server need not answer as it does.
    let status = serde_json::from_slice(&body).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(&body).into_owned(),
        ..Status::default()
    });
    let reason = if status.reason.is_empty() { canonical(code) } else { status.reason };
    ApiError::refused(what, Status { code: code.as_u16(), reason, ..status }, after)
}

fn canonical(code: StatusCode) -> String {
    code.canonical_reason().unwrap_or_default().to_owned()
}
