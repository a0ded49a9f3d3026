//! Fault injection of the test API server.

use std::{
    io::{self, Read as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use ferrule_tests::apiserver::{
    ApiServer, Garbage, History, Options, Refusal, Resource::Pods, Switch, Which, objects,
};
use ferrule_tests::sys::wait_until;
use serde_json::{Value, json};

use crate::client::{ALL, PODS, get, pod, request, request_with, start, start_with_pods, text, watch};

#[test]
fn tokens_and_permissions_can_be_revoked() {
    let tokens = Some(vec!["old".to_owned()]);
    let server = ApiServer::start(Options { tokens, ..Options::default() }).unwrap();
    let ask =
        |token: &str| request_with(&server, "GET", PODS, &format!("Authorization: Bearer {token}\r\n"), "");
    assert_eq!((get(&server, PODS).status, ask("old").status), (401, 200));
    server.switch(Switch::SetTokens { tokens: Some(vec!["new".to_owned(), "other".to_owned()]) });
    assert_eq!(text(&ask("old").json()["reason"]), "Unauthorized");
    server.switch(Switch::Deny { resource: Pods, token: Some("new".to_owned()) });
    let denied = ask("new");
    assert_eq!((denied.status, text(&denied.json()["reason"]).as_str()), (403, "Forbidden"));
    assert_eq!(ask("other").status, 200);
    server.switch(Switch::DenyNothing {});
    assert_eq!(ask("new").status, 200);
}

#[test]
fn refusal_carries_retry_after() {
    let server = start();
    let refusal = Refusal { status: 429, times: Some(2), retry_after: Some(7), ..Refusal::default() };
    server.switch(Switch::Refuse(Refusal { watches_only: true, resource: Some(Pods), ..refusal.clone() }));
    assert_eq!(get(&server, PODS).status, 200, "a list was refused");
    let target = format!("{PODS}?watch=true&timeoutSeconds=1");
    let refused = get(&server, &target);
    assert_eq!((refused.status, &refused.json()["details"]["retryAfterSeconds"]), (429, &json!(7)));
    assert!(refused.head.contains("retry-after: 7"), "{}", refused.head);
    assert_eq!(get(&server, &target).status, 429);
    watch(&server, PODS, "");
    server.switch(Switch::Refuse(Refusal { plain_text: true, times: None, ..refusal }));
    assert_eq!(get(&server, PODS).body, b"Too many requests, please try again later.\n");
    server.switch(Switch::RefuseNothing {});
    assert_eq!(get(&server, PODS).status, 200);
}

#[test]
fn cut_watch_ends_in_the_middle_of_a_line() {
    let server = start_with_pods();
    let (mut first, mut second) = (watch(&server, PODS, ""), watch(&server, PODS, ""));
    for watch in [&mut first, &mut second] {
        (0..5).for_each(|_| assert_eq!(watch.next().0, "ADDED"));
    }
    assert_eq!(server.open_watches()[&Pods], 2);
    server.switch(Switch::CutWatches { which: Which { resource: Some(Pods), count: Some(1) } });
    let mut rest = Vec::new();
    let error = first.0.read_to_end(&mut rest).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.starts_with(r#"{"type":"MODIFIED","object":{"#) && !rest.ends_with('\n'), "{rest:?}");
    assert!(second.is_silent(&server));
}

#[test]
fn stalled_watch_sends_all_changes_after_resuming() {
    let server = start();
    let mut watch = watch(&server, PODS, "");
    server.switch(Switch::StallWatches {});
    server.create(Pods, pod("a", "n1")).unwrap();
    assert!(watch.is_stalled());
    server.switch(Switch::ResumeWatches {});
    assert_eq!(watch.next().1, "a");
    server.switch(Switch::SlowWatches { delay_ms: 50 });
    let started = Instant::now();
    server.create(Pods, pod("b", "n1")).unwrap();
    assert_eq!(watch.next().1, "b");
    assert!(started.elapsed() >= Duration::from_millis(50));
}

#[test]
fn malformed_events_keep_a_watch_open_and_errors_end_it() {
    let server = start();
    let mut watch = watch(&server, PODS, "");
    for garbage in [Garbage::NotJson, Garbage::BadObject, Garbage::UnknownType, Garbage::Huge(2)] {
        server.switch(Switch::SendGarbage { garbage, which: ALL });
    }
    assert!(serde_json::from_str::<Value>(&watch.line().unwrap()).is_err());
    assert!(watch.event()["object"]["metadata"]["name"].is_number());
    assert_eq!(watch.next_type(), "RENAMED");
    assert!(watch.line().unwrap().len() > 2 << 20);
    server.create(Pods, pod("a", "n1")).unwrap();
    assert_eq!(watch.next().1, "a");
    server.switch(Switch::SendError { code: 504, retry_after: Some(3), which: ALL });
    let error = watch.event();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(504)));
    assert_eq!(error["object"]["details"]["retryAfterSeconds"], 3);
    assert!(watch.has_ended_cleanly());
}

#[test]
fn dropped_connections_are_closed() {
    let server = start();
    for (reset, kind) in [(true, io::ErrorKind::ConnectionReset), (false, io::ErrorKind::UnexpectedEof)] {
        let mut watch = watch(&server, PODS, "");
        server.switch(Switch::DropConnections { reset });
        assert_eq!(watch.line().unwrap_err().kind(), kind);
    }
    let gone = || server.open_watches().is_empty();
    wait_until("no watch is open", Duration::from_secs(5), || Ok(gone())).unwrap();
}

#[test]
fn slow_client_is_disconnected() {
    let options = Options { slow_watch_limit: Duration::from_millis(50), ..Options::default() };
    let server = ApiServer::start(options).unwrap();
    let _unread = watch(&server, PODS, "");
    server.create(Pods, pod("a", "n1")).unwrap();
    for turn in 0..400 {
        let large = objects::annotation("large", &format!("{turn}{}", "x".repeat(100_000)));
        server.patch(Pods, "shop", "a", large).unwrap();
    }
    let gone = || server.open_watches().is_empty();
    wait_until("the watch is closed", Duration::from_secs(5), || Ok(gone())).unwrap();
}

#[test]
fn restart_keeps_or_compacts_the_history() {
    let server = start_with_pods();
    let past = server.resource_version() - 1;
    let mut open = watch(&server, PODS, &format!("resourceVersion={past}"));
    assert_eq!(open.next().1, "e");
    server.switch(Switch::Restart { pause_ms: 100, history: History::Kept });
    assert!(open.line().is_err());
    assert!(TcpStream::connect(server.address()).is_err(), "the server is still listening");
    thread::sleep(Duration::from_millis(200));
    assert_eq!(watch(&server, PODS, &format!("resourceVersion={past}")).next().1, "e");
    server.switch(Switch::Restart { pause_ms: 0, history: History::Compacted });
    assert_eq!(watch(&server, PODS, &format!("resourceVersion={past}")).next_type(), "ERROR");
    assert_eq!(get(&server, PODS).names().len(), 5);
}

#[test]
fn new_history_restarts_versions_below_old_ones() {
    let server = start_with_pods();
    let old = server.resource_version();
    let uid = server.get(Pods, "shop", "a").unwrap()["metadata"]["uid"].clone();
    server.switch(Switch::Restart { pause_ms: 0, history: History::New });
    let list = get(&server, PODS);
    assert!(list.version() < old);
    assert_eq!(list.names().len(), 5);
    assert_eq!(list.json()["items"][0]["metadata"]["uid"], uid);
    let mut lost = watch(&server, PODS, &format!("resourceVersion={old}"));
    server.delete(Pods, "shop", "a").unwrap();
    assert!(lost.is_silent(&server), "a watch from another history received an event");
    assert_eq!(watch(&server, PODS, "resourceVersion=2").next_type(), "ERROR");
    server.switch(Switch::Restart { pause_ms: 0, history: History::Emptied });
    assert_eq!(get(&server, PODS).names().len(), 0);
}

#[test]
fn requests_are_logged() {
    let server = start_with_pods();
    get(&server, &format!("{PODS}?limit=1"));
    let requests = server.requests();
    let last = requests.last().unwrap();
    assert_eq!((last.method.as_str(), last.path.as_str(), last.query.as_str()), ("GET", PODS, "limit=1"));
    assert_eq!((last.user_agent.as_str(), last.status), ("test/1", 200));
    assert!(last.bytes > 100 && server.bytes_served() >= last.bytes);
    server.clear_requests();
    assert!(server.requests().is_empty());
}

#[test]
fn all_switches_are_available_over_http() {
    let server = start_with_pods();
    let mut watch = watch(&server, PODS, "");
    (0..5).for_each(|_| assert_eq!(watch.next_type(), "ADDED"));
    let state = get(&server, "/_test/state").json();
    assert_eq!(state["watches"], json!({ "pods": 1 }));
    assert_eq!(state["resourceVersion"], server.resource_version().to_string());
    let switch = |name: &str, fields: Value| {
        assert_eq!(request(&server, "POST", &format!("/_test/{name}"), &fields).status, 200, "{name}");
    };
    switch("send_garbage", json!({ "garbage": "unknown_type", "resource": "pods" }));
    assert_eq!(watch.next_type(), "RENAMED");
    switch("refuse", json!({ "status": 503, "times": 1 }));
    assert_eq!(get(&server, PODS).status, 503);
    switch("compact", json!({}));
    switch("deny", json!({ "resource": "nodes" }));
    assert_eq!(get(&server, "/api/v1/nodes").status, 403);
    switch("restart", json!({ "history": "emptied" }));
    assert!(watch.line().is_err());
    let is_up = || Ok(TcpStream::connect(server.address()).is_ok());
    wait_until("the server is listening again", Duration::from_secs(5), is_up).unwrap();
    assert_eq!(request(&server, "POST", "/_test/nonsense", &json!({})).status, 400);
    assert!(get(&server, "/_test/requests").json().as_array().unwrap().len() > 2);
}
