//! The recorder's requests, and its reactions to responses.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::Response;
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::time::Instant;

use super::*;

/// An API server that sends scripted replies, and then 201.
#[derive(Clone, Default)]
struct Server {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

#[derive(Clone, Copy)]
enum Reply {
    Code(u16),
    /// 429, with `Retry-After` in seconds.
    Busy(u64),
    Hang,
}

#[derive(Debug, Clone)]
struct Asked {
    at: Instant,
    method: Method,
    path: String,
    kind: String,
    body: Value,
}

struct Test {
    server: Server,
    metrics: EventMetrics,
    notes: mpsc::Sender<Event>,
}

impl Server {
    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        self.asked.lock().unwrap().push(Asked {
            at: Instant::now(),
            method: head.method,
            path: head.uri.path().to_owned(),
            kind: head.headers[header::CONTENT_TYPE].to_str().unwrap().to_owned(),
            body: serde_json::from_slice(&body).unwrap(),
        });
        let reply = self.replies.lock().unwrap().pop_front().unwrap_or(Reply::Code(201));
        let answer = |code: u16| Response::builder().status(code);
        let answer = match reply {
            Reply::Code(code) => answer(code),
            Reply::Busy(seconds) => answer(429).header(header::RETRY_AFTER, seconds),
            Reply::Hang => std::future::pending().await,
        };
        answer.body(Body::from(b"{}".to_vec())).unwrap()
    }
}

impl Test {
    fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let server = Server::default();
        server.replies.lock().unwrap().extend(replies);
        let metrics = EventMetrics::default();
        let api = Arc::new(Api::with_client(server.client()));
        let (notes, arriving) = mpsc::channel(64);
        tokio::spawn(Recorder::new(api, "node-1", metrics.clone()).run(arriving));
        Self { server, metrics, notes }
    }

    /// Queues an Event about a pod, and lets the recorder run.
    async fn record(&self, pod: &str) {
        self.notes.send(note(pod)).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }

    fn asked(&self) -> Vec<Asked> {
        self.server.asked.lock().unwrap().clone()
    }

    fn counted(&self) -> [u64; 3] {
        [self.metrics.sent.get(), self.metrics.failed.get(), self.metrics.lost.get()]
    }
}

fn note(pod: &str) -> Event {
    Event {
        about: About::Pod,
        namespace: "shop".to_owned(),
        name: pod.to_owned(),
        uid: format!("uid-{pod}"),
        reason: "CNIPlugFailed",
        is_warning: true,
        note: "the kernel refused".to_owned(),
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn an_event_has_the_fields_that_the_api_server_requires() {
    let test = Test::start([]);
    test.record("web-0").await;
    let [asked] = test.asked().try_into().unwrap();
    assert_eq!((asked.method, asked.kind.as_str()), (Method::POST, "application/json"));
    assert_eq!(asked.path, "/apis/events.k8s.io/v1/namespaces/shop/events");
    let mut body = asked.body;
    let name = body["metadata"]["name"].take();
    let (pod, hex) = name.as_str().unwrap().rsplit_once('.').unwrap();
    assert!(pod == "web-0" && hex.len() == 16 && u64::from_str_radix(hex, 16).is_ok(), "{name}");
    let time = body["eventTime"].take();
    let time = time.as_str().unwrap();
    assert!(time.len() == "2026-01-02T03:04:05.123456Z".len() && time.ends_with('Z'), "{time}");
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "namespace": "shop", "name": null }, "eventTime": null,
        "reportingController": "ferrule-agent", "reportingInstance": "node-1", "action": "Add",
        "reason": "CNIPlugFailed", "type": "Warning", "note": "the kernel refused",
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "uid-web-0",
        },
    });
    assert_eq!(body, expected);
    assert_eq!(test.counted(), [1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn long_fields_are_truncated_to_the_limits_of_the_api_server() {
    let test = Test::start([]);
    let long =
        Event { name: format!("{}-{}", "a".repeat(235), "b".repeat(17)), note: "ü".repeat(800), ..note("") };
    test.notes.send(long).await.unwrap();
    sleep(secs(1)).await;
    let body = &test.asked()[0].body;
    let (pod, _) = body["metadata"]["name"].as_str().unwrap().rsplit_once('.').unwrap();
    assert_eq!(pod, "a".repeat(235), "a name must not end in a dash before the dot");
    assert_eq!(body["note"].as_str().unwrap().len(), 1024);
    assert_eq!(body["regarding"]["name"].as_str().unwrap().len(), 253);
}

#[tokio::test(start_paused = true)]
async fn repetitions_are_counted_on_the_first_event_once_a_minute() {
    let test = Test::start([]);
    test.record("a").await;
    for _ in 0..30 {
        sleep(secs(5)).await;
        test.record("a").await;
    }
    test.record("b").await;
    sleep(secs(100)).await;
    let asked = test.asked();
    let methods: Vec<_> = asked.iter().map(|it| it.method.as_str()).collect();
    assert_eq!(
        methods,
        ["POST", "PATCH", "PATCH", "POST", "PATCH"],
        "the last count needs no further repetition"
    );
    let name = asked[0].body["metadata"]["name"].as_str().unwrap();
    let patches: Vec<_> = asked.iter().filter(|it| it.method == Method::PATCH).collect();
    for patch in &patches {
        assert_eq!(patch.path, format!("/apis/events.k8s.io/v1/namespaces/shop/events/{name}"));
        assert_eq!(patch.kind, "application/merge-patch+json");
        assert!(patch.body["series"]["lastObservedTime"].as_str().unwrap().ends_with('Z'));
    }
    let counts: Vec<_> = patches.iter().map(|it| it.body["series"]["count"].as_u64().unwrap()).collect();
    assert!(counts[0] >= 2 && counts.is_sorted() && counts.last() == Some(&31), "{counts:?}");
    assert!(patches[1].at - patches[0].at >= secs(60));
}

#[tokio::test(start_paused = true)]
async fn another_reason_pod_or_time_starts_a_new_series() {
    let test = Test::start([]);
    test.record("a").await;
    test.notes.send(Event { uid: "its-successor".to_owned(), ..note("a") }).await.unwrap();
    test.notes.send(Event { reason: "CNIWaitingForVIF", is_warning: false, ..note("a") }).await.unwrap();
    sleep(secs(601)).await;
    test.record("a").await;
    let asked = test.asked();
    assert!(asked.len() == 4 && asked.iter().all(|it| it.method == Method::POST), "{asked:?}");
    assert_eq!(asked[2].body["type"], "Normal");
}

#[tokio::test(start_paused = true)]
async fn a_node_where_every_add_fails_does_not_flood_the_api_server() {
    let test = Test::start([]);
    for pod in 0..200 {
        test.record(&pod.to_string()).await;
    }
    assert_eq!(test.counted(), [25, 0, 175]);
    for pod in 0..200 {
        test.record(&pod.to_string()).await;
    }
    sleep(secs(3600)).await;
    let asked = test.asked().len();
    assert!((50..=25 + 360).contains(&asked), "{asked} requests in an hour; each of 25 series was counted");
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_a_busy_api_server_is_respected() {
    let test = Test::start([Reply::Busy(20), Reply::Busy(40)]);
    test.record("a").await;
    test.record("b").await;
    sleep(secs(300)).await;
    let asked = test.asked();
    assert_eq!(asked.len(), 3, "one retry, then the next Event");
    assert!(asked[1].at - asked[0].at >= secs(20) && asked[2].at - asked[1].at >= secs(40), "{asked:?}");
    assert_eq!(
        asked[0].body["metadata"], asked[1].body["metadata"],
        "the retry has the same name, so that it creates no duplicate"
    );
    assert_eq!(test.counted(), [1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn permanent_refusals_are_not_retried() {
    let test = Test::start([Reply::Code(403), Reply::Code(422)]);
    test.record("a").await;
    test.record("a").await;
    test.record("a").await;
    assert_eq!((test.asked().len(), test.counted()), (3, [1, 2, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_event_is_created_again() {
    let test = Test::start([Reply::Code(201), Reply::Code(404)]);
    test.record("a").await;
    test.record("a").await;
    sleep(secs(100)).await;
    test.record("a").await;
    let methods: Vec<_> = test.asked().iter().map(|it| it.method.clone()).collect();
    assert_eq!(methods, [Method::POST, Method::PATCH, Method::POST]);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_api_server_does_not_block_callers() {
    let test = Test::start([Reply::Hang, Reply::Hang]);
    test.record("a").await;
    for pod in 0..64 {
        test.notes.try_send(note(&pod.to_string())).unwrap();
    }
    sleep(secs(200)).await;
    let [sent, failed, lost] = test.counted();
    assert_eq!((failed, sent + lost), (1, 64));
}

#[tokio::test(start_paused = true)]
async fn failures_that_may_pass_are_retried_once_and_others_not() {
    for (code, requests) in
        [(401, 2), (408, 2), (429, 2), (500, 2), (503, 2), (400, 1), (403, 1), (404, 1), (409, 1), (422, 1)]
    {
        let test = Test::start([Reply::Code(code), Reply::Code(code)]);
        test.record("a").await;
        sleep(secs(120)).await;
        assert_eq!((test.asked().len(), test.counted()), (requests, [0, 1, 0]), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_count_is_due_sixty_seconds_after_the_first_event() {
    let test = Test::start([]);
    test.record("a").await;
    sleep(secs(5)).await;
    test.record("a").await;
    sleep(secs(100)).await;
    let [first, count] = test.asked().try_into().unwrap();
    let after = (count.at - first.at).as_secs_f64();
    assert!((60.0..60.1).contains(&after), "{after} s");
    assert_eq!(count.body["series"]["count"], 2);
}

#[tokio::test(start_paused = true)]
async fn the_longest_names_are_kept() {
    let server = Server::default();
    let api = Arc::new(Api::with_client(server.client()));
    let (notes, arriving) = mpsc::channel(64);
    tokio::spawn(Recorder::new(api, &"n".repeat(200), EventMetrics::default()).run(arriving));
    for length in [236, 237] {
        notes.send(note(&"a".repeat(length))).await.unwrap();
    }
    sleep(secs(1)).await;
    let asked = server.asked.lock().unwrap().clone();
    for asked in &asked {
        assert_eq!(asked.body["reportingInstance"], "n".repeat(128));
        let name = asked.body["metadata"]["name"].as_str().unwrap();
        assert_eq!((name.len(), name.rsplit_once('.').unwrap().0.len()), (253, 236));
    }
    assert_eq!(asked.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_recorder_ends_with_its_queue() {
    let (notes, arriving) = mpsc::channel(1);
    let api = Arc::new(Api::with_client(Server::default().client()));
    let recorder = tokio::spawn(Recorder::new(api, "node-1", EventMetrics::default()).run(arriving));
    drop(notes);
    tokio::time::timeout(secs(60), recorder).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_retry_waits_for_one_to_two_times_800_milliseconds() {
    let test = Test::start([Reply::Code(500)]);
    test.record("a").await;
    sleep(secs(60)).await;
    let [first, retry] = test.asked().try_into().unwrap();
    let after = (retry.at - first.at).as_millis();
    assert!((800..=1602).contains(&after), "{after} ms");
    assert_eq!(test.counted(), [1, 0, 0]);
}
