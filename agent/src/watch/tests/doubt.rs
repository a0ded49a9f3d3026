//! What cannot be decoded or identified.

use super::*;

#[tokio::test(start_paused = true)]
async fn undecodable_objects_are_skipped_and_counted() {
    let odd = r#"{"type":"ADDED","object":{"metadata":{"name":"odd","resourceVersion":"13"},"spec":7}}"#;
    let test = Test::start([
        listing([Step::Send(format!("{odd}\n")), event("ADDED", "b", "u2", 14), Step::Wait(secs(2))]),
        Reply::Stream(vec![Step::Hang]),
    ]);
    sleep(secs(10)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced", "+b/u2"]);
    let counted = test.metrics.watch.undecodable.get_or_create(&SourceLabels { source: "pods" }).get();
    assert_eq!((counted, version(&test.asked()[1].query)), (1, "14"));
}

#[tokio::test(start_paused = true)]
async fn an_event_without_identity_keeps_the_stream_and_leads_to_a_relist() {
    let test = Test::start([
        listing([Step::Send("garbage\n".to_owned()), event("ADDED", "b", "u2", 14), Step::Wait(secs(2))]),
        Reply::Stream(vec![event("ADDED", "b", "u2", 14), bookmark(20, true), Step::Hang]),
    ]);
    sleep(secs(10)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced", "+b/u2", "+b/u2", "-a/u1"], "the relist finds the change");
}

#[tokio::test(start_paused = true)]
async fn garbage_streams_and_endless_lists_are_retried_with_backoff() {
    let garbage = || Reply::Stream(vec![Step::Send("<html>sign in</html>\n".to_owned())]);
    let test = Test::start(std::iter::once(listing([])).chain((0..200).map(|_| garbage())));
    sleep(secs(60)).await;
    assert!(test.asked().len() < 15, "{} requests in a minute", test.asked().len());
    let half = || Reply::Stream(vec![event("ADDED", "a", "u1", 5)]);
    let test = Test::start((0..200).map(|_| half()));
    sleep(secs(60)).await;
    assert!(test.asked().len() < 15, "{} requests in a minute", test.asked().len());
    assert!(!test.changes().contains(&"synced".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_in_a_list_is_not_deleted() {
    let odd = r#"{"metadata":{"name":"a","namespace":"n","uid":"u1","resourceVersion":"30"},"spec":7}"#;
    let test = Test::start([
        status(422),
        page(&[pod("a", "u1", 3), pod("b", "u2", 4)], 10, ""),
        Reply::Stream(vec![error(410, "")]),
        page(&[odd.to_owned()], 31, ""),
        Reply::Stream(vec![Step::Hang]),
    ]);
    sleep(secs(10)).await;
    assert_eq!(test.changes(), ["+a/u1", "+b/u2", "synced", "-b/u2"]);
}
