//! Lists and pages of the test API server.

use ferrule_tests::apiserver::{Resource::Pods, Switch, objects};

use crate::client::{PODS, get, pod, start, start_with_pods, text};

#[test]
fn paged_list_is_consistent() {
    let server = start_with_pods();
    let first = get(&server, &format!("{PODS}?limit=2"));
    assert_eq!(first.names(), ["a", "b"]);
    assert_eq!(first.json()["kind"], "PodList");
    assert_eq!(first.json()["metadata"]["remainingItemCount"], 3);
    assert!(first.json()["items"][0].get("kind").is_none(), "a list item has a kind");

    server.delete(Pods, "shop", "c").unwrap();
    server.create(Pods, pod("bb", "n1")).unwrap();
    server.patch(Pods, "shop", "d", objects::phase("Failed")).unwrap();
    let next = text(&first.json()["metadata"]["continue"]);
    let second = get(&server, &format!("{PODS}?limit=2&continue={next}"));
    assert_eq!((second.names(), second.version()), (vec!["c".into(), "d".into()], first.version()));
    assert_eq!(second.json()["items"][1]["status"]["phase"], "Running");
    let next = text(&second.json()["metadata"]["continue"]);
    let last = get(&server, &format!("{PODS}?limit=2&continue={next}"));
    assert_eq!(last.names(), ["e"]);
    assert!(last.json()["metadata"].get("continue").is_none());
    assert_eq!(get(&server, PODS).names(), ["a", "b", "bb", "d", "e"]);
    assert_eq!(get(&server, "/api/v1/namespaces/other/pods").names().len(), 0);
}

#[test]
fn continue_token_expires_with_compaction() {
    let server = start_with_pods();
    let first = get(&server, &format!("{PODS}?limit=2"));
    server.create(Pods, pod("bb", "n1")).unwrap();
    server.switch(Switch::Compact {});
    let next = text(&first.json()["metadata"]["continue"]);
    let expired = get(&server, &format!("{PODS}?limit=2&continue={next}"));
    assert_eq!((expired.status, text(&expired.json()["reason"]).as_str()), (410, "Expired"));
    let next = text(&expired.json()["metadata"]["continue"]);
    assert_eq!(get(&server, &format!("{PODS}?limit=2&continue={next}")).names(), ["bb", "c"]);
    assert_eq!(get(&server, &format!("{PODS}?continue=nonsense")).status, 400);
}

#[test]
fn list_honours_resource_version_and_match() {
    let server = start_with_pods();
    let before = server.resource_version();
    server.delete(Pods, "shop", "e").unwrap();
    let list = |query: &str| get(&server, &format!("{PODS}?{query}"));
    let exact = list(&format!("resourceVersion={before}&resourceVersionMatch=Exact"));
    assert_eq!((exact.names().len(), exact.version()), (5, before));
    let newer = list(&format!("resourceVersion={before}&resourceVersionMatch=NotOlderThan&limit=2"));
    assert_eq!(newer.version(), before + 1);
    assert_eq!(list("resourceVersion=0&limit=2").names().len(), 4, "a list from any version was paged");

    let future = list(&format!("resourceVersion={}", before + 100));
    assert_eq!((future.status, text(&future.json()["reason"]).as_str()), (504, "Timeout"));
    assert_eq!(future.json()["details"]["retryAfterSeconds"], 1);
    assert_eq!(future.json()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert!(future.head.contains("retry-after: 1"), "{}", future.head);
    server.switch(Switch::Compact {});
    assert_eq!(list(&format!("resourceVersion={before}&resourceVersionMatch=Exact")).status, 410);
    assert_eq!(list("resourceVersionMatch=Exact").status, 422);
    assert_eq!(list("resourceVersion=x").status, 400);
}

#[test]
fn list_applies_selectors() {
    let server = start();
    server.create(Pods, pod("here", "n1")).unwrap();
    server.create(Pods, pod("there", "n2")).unwrap();
    let all = |query: &str| get(&server, &format!("/api/v1/pods?{query}"));
    assert_eq!(all("fieldSelector=spec.nodeName%3Dn1").names(), ["here"]);
    assert_eq!(all("fieldSelector=spec.nodeName!=n1,status.phase==Running").names(), ["there"]);
    assert_eq!(all("labelSelector=app in (there,nowhere)").names(), ["there"]);
    assert_eq!(all("fieldSelector=spec.colour=red").status, 400);
}
