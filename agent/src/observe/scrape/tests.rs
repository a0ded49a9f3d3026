//! Who gets the metrics, over a real socket and TLS.

use std::{
    convert::Infallible,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use http::{Request, Response as Answer};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName},
    },
};

use super::*;
use crate::api::Api;

const NAME: &str = "node-1";

/// An API server that knows two tokens, and lets one of their users read metrics.
#[derive(Clone, Default)]
struct Reviewer {
    asked: Arc<AtomicUsize>,
    bodies: Arc<Mutex<Vec<Value>>>,
    is_down: bool,
}

impl Reviewer {
    fn api(&self) -> Arc<Api> {
        let reviewer = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let reviewer = reviewer.clone();
            async move { Ok::<_, Infallible>(reviewer.answer(request).await) }
        });
        Arc::new(Api::with_client(kube::Client::new(service, "default")))
    }

    async fn answer(&self, request: Request<Body>) -> Answer<Body> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        self.bodies.lock().unwrap().push(body.clone());
        if self.is_down {
            return Answer::builder().status(503).body(Body::from(b"{}".to_vec())).unwrap();
        }
        let status = if path.ends_with("/tokenreviews") {
            match body["spec"]["token"].as_str().unwrap() {
                "good" => {
                    json!({ "authenticated": true, "user": { "username": "prom", "groups": ["system:authenticated"] } })
                }
                "poor" => json!({ "authenticated": true, "user": { "username": "other" } }),
                _ => json!({ "authenticated": false, "error": "unknown token" }),
            }
        } else {
            assert!(path.ends_with("/subjectaccessreviews"), "{path}");
            json!({ "allowed": body["spec"]["user"] == "prom" })
        };
        let body = json!({ "status": status }).to_string().into_bytes();
        Answer::builder().status(201).body(Body::from(body)).unwrap()
    }
}

struct Server {
    address: SocketAddr,
    root: CertificateDer<'static>,
    reviewer: Reviewer,
}

impl Server {
    async fn start(reviewer: Reviewer) -> Self {
        let (certificate, root) = Certificate::self_signed(NAME).unwrap();
        let guard = Guard::new(reviewer.api());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let scrapes = Scrapes::listen(any, certificate, guard, Metrics::default()).await.unwrap();
        let address = scrapes.listener.local_addr().unwrap();
        tokio::spawn(scrapes.serve());
        Self { address, root, reviewer }
    }

    async fn get(&self, path: &str, token: Option<&str>) -> String {
        get(self.address, self.root.clone(), path, token).await
    }

    fn asked(&self) -> usize {
        self.reviewer.asked.load(Ordering::Relaxed)
    }
}

async fn get(address: SocketAddr, root: CertificateDer<'static>, path: &str, token: Option<&str>) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(NAME).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let token = token.map(|it| format!("Authorization: Bearer {it}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\n{token}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A server may close without a TLS goodbye.
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn only_a_user_whom_the_api_server_allows_reads_metrics() {
    let server = Server::start(Reviewer::default()).await;
    let answer = server.get("/metrics", Some("good")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("# EOF"), "{answer}");
    let refused = server.get("/metrics", Some("poor")).await;
    assert!(
        refused.starts_with("HTTP/1.1 403") && refused.contains("other may not read metrics"),
        "{refused}"
    );
    for token in [None, Some("bad"), Some("")] {
        let refused = server.get("/metrics", token).await;
        assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
        assert!(refused.to_lowercase().contains("www-authenticate: bearer"), "{refused}");
    }
    let access =
        server.reviewer.bodies.lock().unwrap().iter().find(|it| it["kind"] == "SubjectAccessReview").cloned();
    let spec = &access.unwrap()["spec"];
    assert_eq!(spec["nonResourceAttributes"], json!({ "path": "/metrics", "verb": "get" }));
    assert_eq!(spec["groups"], json!(["system:authenticated"]));
}

#[tokio::test]
async fn probes_and_other_paths_are_not_served() {
    let server = Server::start(Reviewer::default()).await;
    for path in ["/", "/healthz", "/readyz", "/debug"] {
        assert!(server.get(path, Some("good")).await.starts_with("HTTP/1.1 404"), "{path}");
    }
    assert_eq!(server.asked(), 0, "the API server is not asked about paths that do not exist");
}

#[tokio::test]
async fn a_verdict_is_asked_for_once_a_minute() {
    let server = Server::start(Reviewer::default()).await;
    for _ in 0..5 {
        server.get("/metrics", Some("good")).await;
        server.get("/metrics", Some("bad")).await;
    }
    assert_eq!(server.asked(), 3, "two reviews of the allowed user, one of the unknown token");
}

#[tokio::test(start_paused = true)]
async fn those_who_were_allowed_do_not_wait_for_strangers() {
    let reviewer = Reviewer::default();
    let guard = Arc::new(Guard::new(reviewer.api()));
    assert_eq!(guard.admit("good").await, Ok(()));
    tokio::time::advance(Duration::from_secs(61)).await;
    for number in 0..300 {
        let guard = Arc::clone(&guard);
        tokio::spawn(async move { guard.admit(&format!("stranger-{number}")).await });
    }
    tokio::task::yield_now().await;
    let began = tokio::time::Instant::now();
    assert_eq!(guard.admit("good").await, Ok(()));
    assert!(began.elapsed() < Duration::from_millis(1), "{:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let asked = reviewer.asked.load(Ordering::Relaxed);
    assert!(
        asked <= 4 + 26,
        "five reviews of strangers a second, for the five seconds of their deadline: {asked}"
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_leave_room_for_those_who_are_allowed() {
    let reviewer = Reviewer::default();
    let guard = Guard::new(reviewer.api());
    for number in 0..300 {
        assert_eq!(guard.admit(&format!("stranger-{number}")).await, Err(Refusal::Unauthenticated));
    }
    assert_eq!(guard.admit("good").await, Ok(()));
    let asked = reviewer.asked.load(Ordering::Relaxed);
    assert_eq!(guard.admit("good").await, Ok(()));
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), asked, "the verdict is kept");
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_permission_ends_after_a_minute_at_most() {
    let reviewer = Reviewer::default();
    let guard = Guard::new(reviewer.api());
    assert_eq!(guard.admit("good").await, Ok(()));
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(guard.admit("good").await, Ok(()));
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), 2);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(guard.admit("good").await, Ok(()));
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn without_the_api_server_no_client_gets_metrics_and_the_reason_is_named() {
    let server = Server::start(Reviewer { is_down: true, ..Reviewer::default() }).await;
    let answer = server.get("/metrics", Some("good")).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("API server"), "{answer}");
    assert!(!answer.contains("good"), "the token is no one's business: {answer}");
}

/// Starts an API server that accepts one token of agents, and lets each client read metrics.
fn accept_only(token: Arc<Mutex<&'static str>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut request = BufReader::new(stream.unwrap());
            let (mut is_accepted, mut len) = (false, 0);
            loop {
                let mut line = String::new();
                request.read_line(&mut line).unwrap();
                let Some((name, value)) = line.trim_end().split_once(": ") else {
                    if line.trim_end().is_empty() {
                        break;
                    }
                    continue;
                };
                match name.to_lowercase().as_str() {
                    "authorization" => is_accepted = value == format!("Bearer {}", token.lock().unwrap()),
                    "content-length" => len = value.parse().unwrap(),
                    _ => {}
                }
            }
            request.read_exact(&mut vec![0; len]).unwrap();
            let status = if is_accepted { "201 Created" } else { "401 Unauthorized" };
            let body = json!({ "status": { "authenticated": true, "allowed": true } }).to_string();
            let len = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
            request.into_inner().write_all((head + &body).as_bytes()).unwrap();
        }
    });
    address
}

fn write_kubeconfig(path: &Path, server: SocketAddr, token: &str) {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{server}") } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": { "token": token } }],
    });
    std::fs::write(path, config.to_string()).unwrap();
}

#[tokio::test]
async fn after_the_agents_credential_was_refused_the_kubeconfig_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let token = Arc::new(Mutex::new("first"));
    let server = accept_only(Arc::clone(&token));
    write_kubeconfig(&path, server, "first");
    let guard = Guard::new(Arc::new(Api::new(Some(path.clone()))));
    assert_eq!(guard.admit("one").await, Ok(()));
    *token.lock().unwrap() = "second";
    write_kubeconfig(&path, server, "second");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    let refused = guard.admit("two").await;
    assert!(matches!(&refused, Err(Refusal::Unknown(why)) if why.contains("401")), "{refused:?}");
    assert_eq!(guard.admit("two").await, Ok(()));
}

#[tokio::test]
async fn a_certificate_that_changes_on_disk_is_used_from_the_next_connection_on() {
    let dir = tempfile::tempdir().unwrap();
    let (chain, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    let write = || {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let encode = |label: &str, der: &[u8]| {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
        };
        std::fs::write(&key, encode("PRIVATE KEY", &made.signing_key.serialize_der())).unwrap();
        std::fs::write(&chain, encode("CERTIFICATE", made.cert.der())).unwrap();
        made.cert.der().clone()
    };
    let first = write();
    let certificate = Certificate::of_files(chain.clone(), key.clone()).unwrap();
    let guard = Guard::new(Reviewer::default().api());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let scrapes = Scrapes::listen(any, certificate, guard, Metrics::default()).await.unwrap();
    let address = scrapes.listener.local_addr().unwrap();
    tokio::spawn(scrapes.serve());
    assert!(get(address, first, "/metrics", Some("good")).await.starts_with("HTTP/1.1 200"));
    thread::sleep(Duration::from_millis(20));
    let second = write();
    assert!(get(address, second.clone(), "/metrics", Some("good")).await.starts_with("HTTP/1.1 200"));
    // Half of a renewal keeps what works.
    thread::sleep(Duration::from_millis(20));
    std::fs::write(&chain, "no certificate").unwrap();
    assert!(get(address, second, "/metrics", Some("good")).await.starts_with("HTTP/1.1 200"));
}

#[test]
fn unusable_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tls.crt");
    let error = |()| Certificate::of_files(path.clone(), path.clone()).err().unwrap().to_string();
    assert!(error(()).contains("tls.crt"), "{}", error(()));
    std::fs::write(&path, "nothing").unwrap();
    assert!(error(()).contains("tls.crt"), "{}", error(()));
}
