//! Watches of the test API server.

use std::time::{Duration, Instant};

use ferrule_tests::apiserver::{
    Resource::{Nodes, Pods},
    Switch, objects,
};
use serde_json::json;

use crate::client::{PODS, get, pod, request, start, start_with_pods, text, watch};

#[test]
fn watch_sends_changes_in_order() {
    let server = start();
    let before = server.resource_version();
    server.create(Pods, pod("a", "n1")).unwrap();
    let mut watch = watch(&server, PODS, &format!("resourceVersion={before}"));
    server.patch(Pods, "shop", "a", objects::phase("Failed")).unwrap();
    server.create(Nodes, objects::node("n1", &["10.0.0.0/24"])).unwrap();
    server.create(Pods, objects::pod("other", "a", "n1")).unwrap();
    server.delete(Pods, "shop", "a").unwrap();
    assert_eq!(watch.next(), ("ADDED".into(), "a".into(), before + 1));
    let modified = watch.event();
    assert_eq!(
        (text(&modified["type"]).as_str(), text(&modified["object"]["kind"]).as_str()),
        ("MODIFIED", "Pod")
    );
    let deleted = watch.event();
    assert_eq!(deleted["object"]["status"]["phase"], "Failed", "DELETED without the last state");
    assert_eq!(deleted["object"]["metadata"]["resourceVersion"], (before + 5).to_string());
    assert!(watch.is_silent(&server));
}

#[test]
fn watch_with_selector_maps_transitions_to_added_and_deleted() {
    let server = start();
    let mut watch = watch(&server, "/api/v1/pods", "fieldSelector=spec.nodeName=n1,status.phase=Running");
    let mut unbound = pod("a", "");
    unbound["spec"].as_object_mut().unwrap().remove("nodeName");
    server.create(Pods, unbound).unwrap();
    let binding = json!({ "kind": "Binding", "target": { "kind": "Node", "name": "n1" } });
    assert_eq!(request(&server, "POST", &format!("{PODS}/a/binding"), &binding).status, 201);
    assert_eq!(request(&server, "POST", &format!("{PODS}/a/binding"), &binding).status, 409);
    let bound = server.resource_version();
    assert_eq!(watch.next(), ("ADDED".into(), "a".into(), bound));
    server.patch(Pods, "shop", "a", objects::phase("Succeeded")).unwrap();
    let left = watch.event();
    assert_eq!(left["type"], "DELETED");
    assert_eq!(left["object"]["status"]["phase"], "Running", "DELETED without the last matching state");
    assert_eq!(left["object"]["metadata"]["resourceVersion"], (bound + 1).to_string());
    server.patch(Pods, "shop", "a", objects::phase("Running")).unwrap();
    assert_eq!(watch.next(), ("ADDED".into(), "a".into(), bound + 2));
}

#[test]
fn watch_without_version_starts_with_existing_objects() {
    let server = start_with_pods();
    for query in ["", "resourceVersion=0"] {
        let mut watch = watch(&server, PODS, query);
        let names: Vec<String> = (0..5).map(|_| watch.next().1).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e"]);
        assert!(watch.is_silent(&server));
    }
    let mut one = watch(&server, PODS, "fieldSelector=metadata.name=c");
    assert_eq!(one.next().1, "c");
    assert!(one.is_silent(&server));
}

#[test]
fn watch_from_a_future_version_waits() {
    let server = start();
    let start = server.resource_version();
    let mut watch = watch(&server, PODS, &format!("resourceVersion={}&allowWatchBookmarks=true", start + 2));
    for name in ["a", "b", "c"] {
        server.create(Pods, pod(name, "n1")).unwrap();
    }
    assert_eq!(watch.next(), ("ADDED".into(), "c".into(), start + 3));
}

#[test]
fn initial_events_end_with_a_bookmark() {
    let server = start_with_pods();
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut list = watch(&server, PODS, &format!("{query}&allowWatchBookmarks=true"));
    for _ in 0..5 {
        assert_eq!(list.next().0, "ADDED");
    }
    let end = list.event();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["metadata"]["resourceVersion"], server.resource_version().to_string());
    server.create(Pods, pod("f", "n1")).unwrap();
    assert_eq!(list.next().1, "f");

    let future = get(&server, &format!("{PODS}?watch=true&{query}&resourceVersion=99999"));
    assert_eq!(future.status, 504);
    assert_eq!(get(&server, &format!("{PODS}?watch=true&sendInitialEvents=true")).status, 422);
    server.switch(Switch::WatchList { enabled: false });
    let refused = get(&server, &format!("{PODS}?watch=true&{query}"));
    assert_eq!((refused.status, text(&refused.json()["reason"]).as_str()), (422, "Invalid"));
    let message = text(&refused.json()["message"]);
    assert!(
        message.contains("sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch"),
        "{message}"
    );
}

#[test]
fn bookmarks_are_periodic_and_precede_the_timeout() {
    let server = start();
    let version = server.resource_version();
    let query = format!("resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=1");
    let started = Instant::now();
    let mut long = watch(&server, PODS, &query);
    let bookmark = long.event();
    assert!(started.elapsed() >= Duration::from_millis(490), "the bookmark came too early");
    assert_eq!(bookmark["object"]["kind"], "Pod");
    assert_eq!(bookmark["object"]["metadata"], json!({ "resourceVersion": version.to_string() }));
    assert!(long.has_ended_cleanly());
    assert!((990..1500).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());

    server.switch(Switch::BookmarkInterval { every_ms: 10 });
    let mut often = watch(&server, PODS, "allowWatchBookmarks=true&timeoutSeconds=60");
    server.create(Nodes, objects::node("n", &[])).unwrap();
    assert_eq!(often.event()["type"], "BOOKMARK");
    assert_eq!(often.event()["object"]["metadata"]["resourceVersion"], (version + 1).to_string());
    assert!(
        watch(&server, PODS, "timeoutSeconds=60").is_silent(&server),
        "a bookmark without allowWatchBookmarks"
    );
}

#[test]
fn watch_from_an_expired_version_gets_410_in_the_stream_or_as_response() {
    let server = start_with_pods();
    let past = server.resource_version() - 1;
    server.switch(Switch::Compact {});
    let target = format!("resourceVersion={past}");
    let mut gone = watch(&server, PODS, &target);
    let event = gone.event();
    assert_eq!(event["type"], "ERROR");
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert!(gone.has_ended_cleanly());
    server.switch(Switch::GoneAtOpening { enabled: true });
    let gone = get(&server, &format!("{PODS}?watch=true&{target}"));
    assert_eq!((gone.status, text(&gone.json()["reason"]).as_str()), (410, "Expired"));
    assert!(watch(&server, PODS, &format!("resourceVersion={}", past + 1)).is_silent(&server));
}

#[test]
fn open_watch_survives_a_compaction() {
    let server = start();
    let mut watch = watch(&server, PODS, "");
    server.create(Pods, pod("a", "n1")).unwrap();
    server.switch(Switch::Compact {});
    server.create(Pods, pod("b", "n1")).unwrap();
    assert_eq!((watch.next().1, watch.next().1), ("a".into(), "b".into()));
}
