//! The requests by which a node says that it serves, and when they are sent.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Mutex, PoisonError},
};

use http::Response;
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::sync::watch::{Sender, channel};

use super::*;
use crate::health::{Health, State};

/// An API server with one Node, which it does not change. It answers with scripted codes, and then with 200.
#[derive(Clone)]
struct Server {
    node: Value,
    codes: Arc<Mutex<VecDeque<u16>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// Seconds, method, path and body.
type Asked = (u64, Method, String, Value);

struct Test {
    server: Server,
    marks: Sender<Marks>,
    ready: Sender<bool>,
    obstacle: Sender<Option<String>>,
    health: Health,
}

impl Server {
    async fn answer(self, started: Instant, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        let at = started.elapsed().as_secs();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.push((at, head.method, head.uri.path().to_owned(), body));
        let code = self.codes.lock().unwrap().pop_front().unwrap_or(200);
        let answer = Body::from(self.node.to_string().into_bytes());
        Response::builder().status(code).body(answer).unwrap()
    }
}

impl Test {
    fn start(duties: Duties, node: Value, codes: &[u16]) -> Self {
        let codes = Arc::new(Mutex::new(codes.iter().copied().collect()));
        let server = Server { node, codes, asked: Arc::default() };
        let (serving, started) = (server.clone(), Instant::now());
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = serving.clone();
            async move { Ok::<_, Infallible>(server.answer(started, request).await) }
        });
        let api = Arc::new(Api::with_client(kube::Client::new(service, "default")));
        let health = Health::default();
        let reporter = health.component("node-status", false, "not said yet");
        let ((marks, follows), (ready, readiness)) = (channel(Marks::default()), channel(false));
        let (obstacle, obstacles) = channel(None);
        let node = "node-1".to_owned();
        let announcer = Announcer { api, node, duties, marks: follows, health: reporter };
        tokio::spawn(announcer.run(readiness, obstacles));
        Self { server, marks, ready, obstacle, health }
    }

    fn asked(&self) -> Vec<Asked> {
        self.server.asked.lock().unwrap().clone()
    }
}

fn marks(is_network_unavailable: Option<bool>, has_startup_taint: bool) -> Marks {
    Marks { is_known: true, is_network_unavailable, has_startup_taint }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_ready_agent_clears_the_condition_and_then_the_taint_and_leaves_other_taints() {
    let ours = json!({ "key": STARTUP_TAINT, "effect": "NoSchedule" });
    let also = json!({ "key": STARTUP_TAINT, "effect": "NoExecute", "value": "x" });
    let node = json!({ "spec": { "taints": [ours, { "key": "other" }, also] } });
    let test = Test::start(Duties::TaintAndCondition, node, &[]);
    test.marks.send_replace(marks(Some(true), true));
    sleep(secs(60)).await;
    assert_eq!(test.asked().len(), 0, "the agent is not ready");
    test.ready.send_replace(true);
    sleep(Duration::from_millis(500)).await;
    let asked = test.asked();
    let [(_, patch, status, condition), (_, get, _, _), (_, _, path, removal)] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    assert_eq!((patch, get), (&Method::PATCH, &Method::GET));
    assert_eq!((status.as_str(), path.as_str()), ("/api/v1/nodes/node-1/status", "/api/v1/nodes/node-1"));
    let condition = &condition["status"]["conditions"][0];
    assert_eq!(condition["type"], "NetworkUnavailable");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("FerruleIsUp")));
    assert!(condition["lastTransitionTime"].as_str().unwrap().ends_with('Z'));
    assert_eq!(
        *removal,
        json!([
            { "op": "test", "path": "/spec/taints/2", "value": also },
            { "op": "remove", "path": "/spec/taints/2" },
            { "op": "test", "path": "/spec/taints/0", "value": ours },
            { "op": "remove", "path": "/spec/taints/0" },
        ])
    );
    test.marks.send_replace(marks(Some(false), false));
    sleep(secs(3600)).await;
    assert_eq!(test.asked().len(), 3, "the Node says so");
    assert_eq!(test.health.components()["node-status"].state, State::Healthy);
    test.marks.send_replace(Marks::default());
    sleep(secs(1)).await;
    let component = test.health.components()["node-status"].clone();
    assert_eq!((test.asked().len(), component.state), (3, State::Unhealthy), "no Node, nothing to say");
    assert!(component.why.contains("was deleted"), "{}", component.why);
    test.marks.send_replace(marks(Some(false), false));
    sleep(secs(1)).await;
    assert_eq!(test.health.components()["node-status"].state, State::Healthy);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_network_does_not_work_is_not_announced_and_says_why() {
    let test = Test::start(Duties::TaintAndCondition, json!({}), &[]);
    test.obstacle.send_replace(Some("port 4789 is taken".to_owned()));
    test.ready.send_replace(true);
    test.marks.send_replace(marks(Some(true), true));
    sleep(secs(60)).await;
    assert!(test.asked().is_empty());
    let component = test.health.components()["node-status"].clone();
    assert_eq!(component.state, State::Unhealthy);
    assert!(component.why.contains("port 4789 is taken"), "{}", component.why);
    test.obstacle.send_replace(None);
    sleep(Duration::from_millis(500)).await;
    assert!(!test.asked().is_empty());
    test.marks.send_replace(marks(Some(false), false));
    sleep(secs(60)).await;
    test.obstacle.send_replace(Some("port 4789 is taken".to_owned()));
    sleep(secs(60)).await;
    let component = test.health.components()["node-status"].clone();
    assert_eq!(component.state, State::Healthy, "nothing is due: {}", component.why);
}

#[tokio::test(start_paused = true)]
async fn an_absent_condition_is_set_and_one_that_is_false_is_left() {
    for (before, requests) in [(None, 1), (Some(false), 0)] {
        let test = Test::start(Duties::TaintAndCondition, json!({}), &[]);
        test.ready.send_replace(true);
        test.marks.send_replace(marks(before, false));
        sleep(Duration::from_millis(500)).await;
        assert_eq!(test.asked().len(), requests, "{before:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_about_a_node_that_is_not_known() {
    let test = Test::start(Duties::TaintAndCondition, json!({}), &[]);
    test.ready.send_replace(true);
    sleep(secs(60)).await;
    assert!(test.asked().is_empty());
    assert_eq!(test.health.components()["node-status"].state, State::Starting);
}

#[tokio::test(start_paused = true)]
async fn where_others_route_the_condition_is_theirs() {
    let node = json!({ "spec": { "taints": [{ "key": STARTUP_TAINT }] } });
    let test = Test::start(Duties::Taint, node, &[]);
    test.ready.send_replace(true);
    test.marks.send_replace(marks(Some(true), true));
    sleep(Duration::from_millis(500)).await;
    assert!(test.asked().iter().all(|(_, _, path, _)| path == "/api/v1/nodes/node-1"), "{:?}", test.asked());
    assert_eq!(test.asked().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refused_patch_is_retried_with_backoff_and_the_missing_role_is_named() {
    let test = Test::start(Duties::TaintAndCondition, json!({}), &[403; 100]);
    test.ready.send_replace(true);
    test.marks.send_replace(marks(Some(true), false));
    sleep(secs(600)).await;
    let component = test.health.components()["node-status"].clone();
    assert_eq!(component.state, State::Unhealthy);
    assert!(
        component.why.contains("the role in deploy/") && component.why.contains("node-1"),
        "{}",
        component.why
    );
    assert!(test.health.is_ready());
    let asked = test.asked().len();
    assert!((5..15).contains(&asked), "{asked} requests in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_component_that_undoes_each_patch_does_not_lead_to_a_stream_of_them() {
    let test = Test::start(Duties::TaintAndCondition, json!({}), &[]);
    test.ready.send_replace(true);
    for _ in 0..6000 {
        test.marks.send_replace(marks(Some(true), false));
        sleep(Duration::from_millis(100)).await;
    }
    let asked = test.asked().len();
    assert!((5..15).contains(&asked), "{asked} requests in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_was_moved_or_removed_meanwhile_is_read_again() {
    let node = json!({ "spec": { "taints": [{ "key": STARTUP_TAINT }] } });
    // The first patch finds another taint at its place.
    let test = Test::start(Duties::Taint, node, &[200, 422]);
    test.ready.send_replace(true);
    test.marks.send_replace(marks(None, true));
    sleep(secs(2)).await;
    let methods: Vec<_> = test.asked().into_iter().map(|(_, method, ..)| method).collect();
    assert_eq!(methods[..4], [Method::GET, Method::PATCH, Method::GET, Method::PATCH]);
    assert_eq!(removal(&[json!({ "key": "other" })]), None);
    assert_eq!(removal(&[]), None);
}
