//! Probes and metrics over a real socket.

use std::{io, sync::Arc, time::Duration};

use axum::body::{Body, to_bytes};
use http::{Method, Request};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};
use tower::ServiceExt as _;

use super::{connections::*, *};
use crate::{
    api::Api,
    cluster::Pod,
    metrics::SourceLabels,
    watch::{Change, Checkpoint, CheckpointStore, SaveError, Scope, Settings, Sink, Update, Watches},
};

fn observed() -> Observed {
    Observed { health: Health::default(), metrics: Metrics::default(), liveness: Liveness::new(|| Ok(())) }
}

async fn request(observed: &Observed, method: Method, path: &str) -> (u16, String, String) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let response = router(observed.clone()).oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let kind = response.headers().get(header::CONTENT_TYPE).map(|it| it.to_str().unwrap().to_owned());
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (code, kind.unwrap_or_default(), String::from_utf8(body.into()).unwrap())
}

async fn get(observed: &Observed, path: &str) -> (u16, String) {
    let (code, _, body) = request(observed, Method::GET, path).await;
    (code, body)
}

#[tokio::test]
async fn metrics_are_served_as_openmetrics() {
    let observed = observed();
    observed.metrics.watch.lists.get_or_create(&SourceLabels { source: "pods" }).inc();
    let (code, kind, body) = request(&observed, Method::GET, "/metrics").await;
    assert_eq!((code, kind.as_str()), (200, OPENMETRICS));
    assert!(body.contains("ferrule_watch_lists_total{source=\"pods\"} 1\n"), "{body}");
    assert!(body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn readyz_lists_each_component_that_blocks_add() {
    let observed = observed();
    let ranges = observed.health.component("ranges", true, "waiting for the node's spec.podCIDRs");
    let socket = observed.health.component("socket", true, "not yet");
    let uplink = observed.health.component("uplink", false, "");
    uplink.unhealthy("changes are missed");
    let expected = "ranges: waiting for the node's spec.podCIDRs\nsocket: not yet\n";
    assert_eq!(get(&observed, "/readyz").await, (503, expected.to_owned()));
    ranges.healthy("10.0.0.0/24");
    socket.healthy("serving");
    assert_eq!(get(&observed, "/readyz").await, (200, "ok\n".to_owned()));
    let verbose = "[+] ranges (healthy, needed for ADD): 10.0.0.0/24\n\
                   [+] socket (healthy, needed for ADD): serving\n\
                   [-] uplink (unhealthy): changes are missed\n";
    assert_eq!(get(&observed, "/readyz?verbose").await, (200, verbose.to_owned()));
}

#[tokio::test]
async fn full_node_does_not_hold_up_the_rollout_of_agents() {
    let observed = observed();
    let ipam = observed.health.component_of_room("ipam", "not counted yet");
    ipam.unhealthy("every IPv4 address is in use");
    assert_eq!(get(&observed, "/readyz").await, (200, "ok\n".to_owned()));
    let verbose = "[-] ipam (unhealthy, needed for ADD): every IPv4 address is in use\n";
    assert_eq!(get(&observed, "/readyz?verbose").await, (200, verbose.to_owned()));
    assert_eq!(observed.health.obstacles(), ["ipam: every IPv4 address is in use"], "STATUS fails");
}

#[tokio::test]
async fn healthz_gives_the_reason_of_a_failure() {
    let mut observed = observed();
    assert_eq!(get(&observed, "/healthz").await, (200, "ok\n".to_owned()));
    observed.liveness = Liveness::new(|| Err("no netlink".to_owned()));
    assert_eq!(get(&observed, "/healthz").await, (503, "no netlink\n".to_owned()));
}

#[tokio::test]
async fn methods_other_than_get_and_head_are_refused() {
    let observed = observed();
    let (code, _, body) = request(&observed, Method::HEAD, "/metrics").await;
    assert_eq!((code, body.as_str()), (200, ""));
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        assert_eq!(request(&observed, method, "/readyz").await.0, 405);
    }
    assert_eq!(get(&observed, "/").await.0, 404);
}

struct Nothing;

impl Sink<Pod> for Nothing {
    fn apply(&self, _: Change<Pod>) {}
}

impl CheckpointStore for Nothing {
    fn load(&self, _: &str, _: &str) -> Option<Checkpoint> {
        None
    }

    fn has(&self, _: &str) -> bool {
        false
    }

    fn save(&self, _: &str, _: &str, _: &Update) -> Result<(), SaveError> {
        Ok(())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_does_not_depend_on_the_api_server() {
    let observed = observed();
    let (health, metrics) = (observed.health.clone(), observed.metrics.watch.clone());
    let settings = Settings {
        retry_timeout: Duration::from_secs(60),
        read_timeout: Duration::from_secs(90),
        max_backoff: Duration::from_secs(30),
    };
    let api = Arc::new(Api::new(Some("/nowhere".into())));
    let watches = Watches::new(api, Arc::new(Nothing), settings, metrics, health);
    watches.add(Scope { name: "pods", path: "/api/v1/pods", selector: None }, Nothing);
    sleep(Duration::from_secs(300)).await;
    let pods = observed.health.components()["pods"].clone();
    assert_eq!(pods.state, health::State::Unhealthy, "{}", pods.why);
    assert_eq!(get(&observed, "/readyz").await, (200, "ok\n".to_owned()));
    assert_eq!(get(&observed, "/healthz").await.0, 200);
}

async fn served() -> SocketAddr {
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, observed()));
    address
}

async fn exchange(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A peer that closes with unread data resets the connection.
    let _ = timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn a_connection_carries_one_request_without_a_body() {
    let address = served().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let answer = exchange(&mut stream, "GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n"), "{answer}");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let endless = "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\nabc";
    let answer = exchange(&mut stream, endless).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "expected an answer without waiting for the body: {answer}");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let answer = exchange(&mut stream, &format!("GET /readyz?{} HTTP/1.1\r\n", "a".repeat(MAX_HEAD))).await;
    assert!(answer.starts_with("HTTP/1.1 414 ") || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

/// Whether the peer has closed the connection.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(timeout(Duration::from_secs(30), stream.read(&mut [0; 1])).await, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn silent_connections_time_out() {
    let address = served().await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert!(is_closed(&mut silent).await);
}

#[tokio::test]
async fn a_probe_is_served_although_a_user_holds_all_connections() {
    let address = served().await;
    let mut held = Vec::new();
    let is_open = |stream: &TcpStream| {
        stream.try_read(&mut [0; 1]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    for number in 0..256 {
        if number == 255 {
            let mut last = TcpStream::connect(address).await.unwrap();
            exchange(&mut last, "GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert!(held.iter().all(is_open), "256 connections are served at once");
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Half of them have sent a part of a request.
        if number % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n").await.unwrap();
        }
        held.push(stream);
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    let answer = exchange(&mut stream, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.ends_with("ok\n"), "{answer}");
    assert!(held.iter().skip(1).all(is_open), "only the oldest makes room");
    assert!(is_closed(&mut held[0]).await);
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_the_flag() {
    let address = served().await;
    let error = listen(address).await.unwrap_err();
    assert!(
        error.to_string().contains("--http") && error.to_string().contains(&address.to_string()),
        "{error}"
    );
}
