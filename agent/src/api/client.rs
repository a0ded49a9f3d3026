//! The API client: requests through kube's client, with timeouts, size limits and errors of our own.
//!
//! The connection is created again after its configuration or its credential has changed. Until the new one
//! is complete, requests use the old one.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::{
    runtime::Handle,
    sync::{self, Notify, futures::Notified},
    task::{JoinHandle, spawn, spawn_blocking},
    time::{Instant, timeout, timeout_at},
};

use super::{
    error::{ApiError, Status},
    exec_plugin::{self, PluginError},
    transport,
};
use crate::chain::chain;

/// A client of the API server, shared by the whole agent.
pub struct Api {
    kubeconfig: Option<PathBuf>,
    current: Mutex<Current>,
    /// Creates connections, one at a time.
    connector: sync::Mutex<Connector>,
    /// Reads the configuration before there is a connection, once at a time.
    reading: sync::Mutex<Option<Attempt<Config>>>,
    plugin_timeout: Duration,
    /// Whether the latest request to end had no answer.
    is_away: AtomicBool,
    answers_again: Notify,
}

#[derive(Clone)]
struct Connection {
    client: Client,
    url: String,
    /// When the credential has to be renewed.
    expires: Option<Instant>,
}

#[derive(Default)]
struct Current {
    connection: Option<Connection>,
    is_stale: bool,
    /// The start of the latest attempt to connect.
    tried_at: Option<Instant>,
}

#[derive(Default)]
struct Connector {
    /// The attempt in progress.
    attempt: Option<Attempt<Connection>>,
    /// The latest failure of the exec plugin, and its time.
    failed: Option<(Instant, Arc<PluginError>)>,
}

/// The start of an attempt, and the attempt.
type Attempt<T> = (Instant, JoinHandle<Result<T, ApiError>>);

/// The timeout of the exec plugin, and its cooldown after a failure.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that reading the configuration may take besides the plugin.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(2);
/// The shortest interval between reloads after connect errors. Address or certificate may have changed, but
/// more likely the network is down.
const CONNECT_INTERVAL: Duration = Duration::from_secs(60);
/// The shortest interval between reloads after refused credentials: each may start an exec plugin, and
/// clients of the metrics cause requests.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(1);
/// For the head of a response. The API server itself gives up after a minute.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// For a whole response that is no stream.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a response that is no stream. 500 usual pods need a hundredth; a list without pages may need
/// more.
const MAX_RESPONSE: usize = 256 << 20;
/// Bytes of a response that is an error.
const MAX_ERROR: usize = 1 << 20;
const USER_AGENT: &str = concat!("ferrule-agent/", env!("CARGO_PKG_VERSION"));

// === impl Api ===

impl Api {
    /// Uses a kubeconfig file, or the service account of the agent's pod. Connects with the first request.
    pub fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self {
            kubeconfig,
            current: Mutex::default(),
            connector: sync::Mutex::default(),
            reading: sync::Mutex::default(),
            plugin_timeout: PLUGIN_TIMEOUT,
            is_away: AtomicBool::new(false),
            answers_again: Notify::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_client(client: Client) -> Self {
        let api = Self::new(None);
        let url = "http://test".to_owned();
        api.current().connection = Some(Connection { client, url, expires: None });
        api
    }

    #[cfg(test)]
    pub(super) fn with_plugin_timeout(self, plugin_timeout: Duration) -> Self {
        Self { plugin_timeout, ..self }
    }

    #[cfg(test)]
    pub(super) fn reload(&self) {
        self.current().is_stale = true;
    }

    #[cfg(test)]
    pub(super) async fn connected_to(&self) -> Result<String, ApiError> {
        Ok(self.connection().await?.url)
    }

    /// The URL of the API server: of the connection, or of the configuration while there is none. The exec
    /// plugin is not needed, so that an agent that restarts finds its checkpoints while the plugin fails.
    ///
    /// # Errors
    /// If the configuration is unusable.
    pub async fn url(&self) -> Result<String, ApiError> {
        if self.current().connection.is_some() {
            return Ok(self.connection().await?.url);
        }
        let mut reading = self.reading.lock().await;
        let (began, task) =
            reading.get_or_insert_with(|| (Instant::now(), spawn(load(self.kubeconfig.clone()))));
        // As in `connect`, a hanging attempt keeps its thread.
        let Ok(read) = timeout_at(*began + CONFIG_TIMEOUT, task).await else {
            return Err(too_slow(CONFIG_TIMEOUT));
        };
        *reading = None;
        Ok(read.unwrap_or_else(|error| Err(unusable(&error)))?.cluster_url.to_string())
    }

    /// Waits until the server answers a request after one without an answer.
    pub fn answers_again(&self) -> Notified<'_> {
        self.answers_again.notified()
    }

    /// Requests a stream.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn open(&self, what: &str, path: &str) -> Result<Response<Body>, ApiError> {
        self.send(what, get(what, path)?).await
    }

    /// Requests a whole response.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn get(&self, what: &str, path: &str) -> Result<Vec<u8>, ApiError> {
        self.whole(what, get(what, path)?).await
    }

    /// Creates (`POST`) or changes (`PATCH`) an object.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn write(&self, what: &str, request: Request<Vec<u8>>) -> Result<Vec<u8>, ApiError> {
        self.whole(what, request.map(Body::from)).await
    }

    async fn whole(&self, what: &str, request: Request<Body>) -> Result<Vec<u8>, ApiError> {
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        let response = self.send(what, request).await?;
        let late = |_| ApiError::Timeout { what: what.to_owned(), after: RESPONSE_TIMEOUT, has_begun: true };
        timeout_at(deadline, collect(what, response, MAX_RESPONSE)).await.map_err(late)?
    }

    /// Sends a request, and reads the configuration again before the next one where the error says that it
    /// may have changed: address, token and certificates.
    async fn send(&self, what: &str, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        self.try_send(what, request).await.inspect_err(|error| self.reload_after(error))
    }

    pub(super) fn reload_after(&self, error: &ApiError) {
        let interval = match error {
            ApiError::Connect { .. } => CONNECT_INTERVAL,
            error if error.is_unauthorized() => REFUSAL_INTERVAL,
            _ => return,
        };
        let mut current = self.current();
        current.is_stale |= current.tried_at.is_none_or(|at| at.elapsed() >= interval);
    }

    async fn try_send(&self, what: &str, mut request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT, header::HeaderValue::from_static("application/json"));
        // A decompressed response would have no size limit, and the network path is short.
        headers.insert(header::ACCEPT_ENCODING, header::HeaderValue::from_static("identity"));
        headers.insert(header::USER_AGENT, header::HeaderValue::from_static(USER_AGENT));
        let Connection { client, .. } = self.connection().await?;
        let answer = timeout(HEAD_TIMEOUT, client.send(request)).await;
        let is_away = !matches!(answer, Ok(Ok(_)));
        if self.is_away.swap(is_away, Ordering::Relaxed) && !is_away {
            self.answers_again.notify_waiters();
        }
        let response = match answer {
            Ok(Ok(response)) => response,
            Ok(Err(source)) => {
                return Err(ApiError::Connect { what: what.to_owned(), source: Box::new(source) });
            }
            Err(_) => {
                let (what, after) = (what.to_owned(), HEAD_TIMEOUT);
                return Err(ApiError::Timeout { what, after, has_begun: false });
            }
        };
        if response.status().is_success() { Ok(response) } else { Err(refusal(what, response).await) }
    }

    async fn connection(&self) -> Result<Connection, ApiError> {
        if let Some(connection) = self.current().fresh() {
            return Ok(connection);
        }
        let mut connector = self.connector.lock().await;
        // The previous holder of the lock may have connected.
        if let Some(connection) = self.current().fresh() {
            return Ok(connection);
        }
        let connected = self.connect(&mut connector).await;
        let mut current = self.current();
        let connection = match (connected, current.connection.take()) {
            (Ok(connection), _) => connection,
            (Err(error), None) => return Err(error),
            (Err(error), Some(mut old)) => {
                tracing::warn!(%error, "cannot open a new connection to the API server; keeping the current one");
                // Otherwise, each request would try to connect again.
                if old.has_expired() {
                    old.expires = Some(Instant::now() + self.plugin_timeout);
                }
                old
            }
        };
        (current.connection, current.is_stale) = (Some(connection.clone()), false);
        Ok(connection)
    }

    async fn connect(&self, connector: &mut Connector) -> Result<Connection, ApiError> {
        if connector.attempt.is_none()
            && let Some((at, source)) = &connector.failed
            && at.elapsed() < self.plugin_timeout
        {
            return Err(ApiError::Credential { source: Arc::clone(source) });
        }
        let (began, task) = connector.attempt.get_or_insert_with(|| {
            let began = Instant::now();
            self.current().tried_at = Some(began);
            (began, spawn(connect(self.kubeconfig.clone(), self.plugin_timeout)))
        });
        let limit = self.plugin_timeout + CONFIG_TIMEOUT;
        // A hanging attempt keeps its thread. No second one starts, and later requests do not wait for it.
        let Ok(connected) = timeout_at(*began + limit, task).await else {
            return Err(too_slow(limit));
        };
        connector.attempt = None;
        let connected = connected.unwrap_or_else(|error| Err(unusable(&error)));
        connector.failed = match &connected {
            Err(ApiError::Credential { source }) => Some((Instant::now(), Arc::clone(source))),
            _ => None,
        };
        connected
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Current ===

impl Current {
    fn fresh(&self) -> Option<Connection> {
        self.connection.clone().filter(|connection| !self.is_stale && !connection.has_expired())
    }
}

// === impl Connection ===

impl Connection {
    fn has_expired(&self) -> bool {
        self.expires.is_some_and(|expires| Instant::now() >= expires)
    }
}

async fn connect(kubeconfig: Option<PathBuf>, plugin_timeout: Duration) -> Result<Connection, ApiError> {
    let mut config = load(kubeconfig).await?;
    let lifetime = exec_plugin::authenticate(&mut config.auth_info, plugin_timeout).await;
    let lifetime = lifetime.map_err(|source| ApiError::Credential { source: Arc::new(source) })?;
    let expires = lifetime.map(|lifetime| Instant::now() + lifetime);
    let url = config.cluster_url.to_string();
    // Reads files, and panics over a token that is no valid header.
    let client =
        spawn_blocking(move || transport::client(&config)).await.map_err(|error| unusable(&error))?;
    Ok(Connection { client: client.map_err(|error| unusable(&error))?, url, expires })
}

/// Reads the configuration on a thread of its own: the file system may hang.
async fn load(kubeconfig: Option<PathBuf>) -> Result<Config, ApiError> {
    let read = spawn_blocking(move || Handle::current().block_on(read(kubeconfig.as_deref())));
    read.await.map_err(|error| unusable(&error))?
}

async fn read(kubeconfig: Option<&Path>) -> Result<Config, ApiError> {
    let Some(path) = kubeconfig else { return Config::incluster().map_err(|error| unusable(&error)) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| match error {
        // The parser's message quotes the text around the error, which may be a key.
        KubeconfigError::Parse(error) => {
            let line = error
                .location()
                .map(|at| format!(": syntax error in line {}", at.line()))
                .unwrap_or_default();
            ApiError::Config { why: format!("{} is no kubeconfig{line}", path.display()) }
        }
        error => unusable(&error),
    })?;
    let has_proxy = has_proxy(&kubeconfig);
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| unusable(&error))?;
    if !has_proxy {
        // Of `HTTPS_PROXY` in the environment, whatever `NO_PROXY` says: kube looks at one of them only.
        config.proxy_url = None;
    }
    Ok(config)
}

/// Whether the kubeconfig itself names a proxy for its current cluster.
fn has_proxy(kubeconfig: &Kubeconfig) -> bool {
    let current = kubeconfig.current_context.as_ref();
    let named = kubeconfig.contexts.iter().find(|it| Some(&it.name) == current);
    let cluster = named.and_then(|it| Some(&it.context.as_ref()?.cluster));
    let cluster = kubeconfig.clusters.iter().find(|it| Some(&it.name) == cluster);
    cluster.and_then(|it| it.cluster.as_ref()).is_some_and(|it| it.proxy_url.is_some())
}

fn too_slow(limit: Duration) -> ApiError {
    let seconds = limit.as_secs_f32();
    ApiError::Config {
        why: format!("reading it takes longer than {seconds} s; check the file system that holds it"),
    }
}

fn unusable(error: &dyn std::error::Error) -> ApiError {
    ApiError::Config { why: chain(error) }
}

fn get(what: &str, path: &str) -> Result<Request<Body>, ApiError> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().map_err(|error| ApiError::Invalid {
        what: what.to_owned(),
        why: format!("invalid request path {path:?}: {error}"),
    })?;
    Ok(request)
}

async fn collect(what: &str, response: Response<Body>, limit: usize) -> Result<Vec<u8>, ApiError> {
    let body = Limited::new(response.into_body(), limit);
    let broken = |why: Box<dyn std::error::Error + Send + Sync>| match why.downcast_ref::<LengthLimitError>()
    {
        Some(_) => ApiError::TooLarge { what: what.to_owned(), limit },
        None => ApiError::Broken { what: what.to_owned(), why: chain(why.as_ref()) },
    };
    Ok(body.collect().await.map_err(broken)?.to_bytes().into())
}

/// Reads the error in a response.
async fn refusal(what: &str, response: Response<Body>) -> ApiError {
    let code = response.status();
    let after = response.headers().get(header::RETRY_AFTER);
    let after = after.and_then(|after| after.to_str().ok()?.trim().parse().ok()).map(Duration::from_secs);
    let body = timeout(HEAD_TIMEOUT, collect(what, response, MAX_ERROR))
        .await
        .ok()
        .and_then(Result::ok)
        .unwrap_or_default();
    // A proxy in between may send no `Status`.
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
