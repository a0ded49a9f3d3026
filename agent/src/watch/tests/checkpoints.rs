//! Checkpoints: what a restarted agent resumes from, and when it believes its stored objects.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_resumes_from_the_checkpoint() {
    let mut first = Test::start([listing([event("ADDED", "b", "u2", 12), Step::Hang])]);
    sleep(Duration::from_millis(100)).await;
    first.stop().await;
    let kept = first.checkpoints.clone();
    let second =
        Test::restart([Reply::Stream(vec![event("DELETED", "a", "u1", 13), Step::Hang])], kept.clone());
    sleep(secs(5)).await;
    let [asked] = second.asked().try_into().unwrap();
    assert_eq!(version(&asked.query), "12", "resumed without a relist");
    assert_eq!(second.changes(), ["-a/u1", "+b/u2", "synced"]);
    let third = Test::restart([Reply::Stream(vec![error(410, "")]), listing([Step::Hang])], kept);
    sleep(secs(10)).await;
    assert_eq!(third.changes(), ["+a/u1", "-b/u2", "synced"], "deletions during the downtime are found");
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_never_has_a_position_without_the_changes_before_it() {
    let mut test = Test::start([listing([
        Step::Wait(secs(3)),
        event("ADDED", "b", "u2", 12),
        event("DELETED", "a", "u1", 13),
        Step::Wait(secs(3)),
        event("ADDED", "c", "u3", 14),
        Step::Hang,
    ])]);
    sleep(Duration::from_millis(2500)).await;
    test.checkpoints.is_full.store(true, Ordering::SeqCst);
    sleep(secs(2)).await;
    assert_eq!(test.position().as_deref(), Some("10"), "the disk is full");
    test.checkpoints.is_full.store(false, Ordering::SeqCst);
    sleep(secs(5)).await;
    test.stop().await;
    let second = Test::restart([Reply::Stream(vec![Step::Hang])], test.checkpoints.clone());
    sleep(secs(1)).await;
    assert_eq!(version(&second.asked()[0].query), "14");
    assert_eq!(
        second.changes(),
        ["+b/u2", "+c/u3", "synced"],
        "the retry includes the changes of the failed write"
    );
}

/// The checkpoint of an agent that knew `a` and `b` at position 12.
async fn checkpoint() -> Checkpoints {
    let mut first = Test::start([listing([event("ADDED", "b", "u2", 12), Step::Hang])]);
    sleep(Duration::from_millis(100)).await;
    first.stop().await;
    first.checkpoints.clone()
}

const HELD: [&str; 0] = [];

#[tokio::test(start_paused = true)]
async fn stored_objects_wait_until_a_resumed_stream_has_delivered_what_was_missed() {
    let changed = event("MODIFIED", "a", "u1", 13);
    let wait = |millis| Step::Wait(Duration::from_millis(millis));
    let stream =
        Reply::Stream(vec![wait(400), changed, wait(499), event("ADDED", "c", "u3", 14), Step::Hang]);
    let test = Test::restart([stream], checkpoint().await);
    sleep(Duration::from_millis(1350)).await;
    assert_eq!(test.changes(), HELD, "the stream was not quiet for half a second");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(test.changes(), ["+a/u1", "+b/u2", "+c/u3", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn versions_that_a_resumed_stream_replays_and_replaces_are_never_used() {
    // As for a Node that was deleted and registered again while the agent was away.
    let replayed = [
        event("MODIFIED", "a", "u1", 13),
        event("DELETED", "a", "u1", 14),
        Step::Wait(Duration::from_millis(100)),
        event("ADDED", "a", "u9", 15),
        event("MODIFIED", "b", "u2", 16),
        event("DELETED", "b", "u2", 17),
        Step::Hang,
    ];
    let test = Test::restart([Reply::Stream(replayed.to_vec())], checkpoint().await);
    sleep(secs(2)).await;
    assert_eq!(test.changes(), ["-a/u1", "-b/u2", "+a/u9", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_or_a_list_confirms_stored_objects_at_once() {
    let millis = Duration::from_millis;
    let checkpoints = checkpoint().await;
    let test = Test::restart([Reply::Stream(vec![bookmark(15, false), Step::Hang])], checkpoints.clone());
    sleep(millis(10)).await;
    assert_eq!(test.changes(), ["+a/u1", "+b/u2", "synced"]);
    let list = listing([Step::Hang]);
    let test = Test::restart([Reply::Stream(vec![error(410, "")]), list], checkpoints);
    sleep(millis(10)).await;
    assert_eq!(test.changes(), ["+a/u1", "-b/u2", "synced"], "a first list is not delayed");
}

#[tokio::test(start_paused = true)]
async fn stored_objects_serve_at_once_if_the_api_server_cannot_be_reached() {
    let test = Test::restart([Reply::Unreachable], checkpoint().await);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(test.changes(), ["+a/u1", "+b/u2", "synced"]);
}

#[tokio::test]
async fn stored_objects_serve_although_the_exec_plugin_fails() {
    let checkpoints = checkpoint().await;
    let identity = |saved: &mut Saved| {
        assert_eq!(saved.1, "http://test /api/v1/pods fieldSelector=spec.nodeName=node");
        saved.1 = saved.1.replace("http://test", "http://127.0.0.1:9/");
    };
    checkpoints.saved.lock().unwrap().as_mut().map(identity).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
        "clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:9"}}],
        "contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
        "users":[{"name":"u","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1",
            "command":"false","interactiveMode":"Never"}}}]}"#;
    std::fs::write(dir.path().join("kubeconfig"), config).unwrap();
    let api = Arc::new(Api::new(Some(dir.path().join("kubeconfig"))));
    let test = Test::of(Script::new([]), api, checkpoints, SETTINGS);
    for _ in 0..400 {
        if !test.changes().is_empty() {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(test.changes(), ["+a/u1", "+b/u2", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn stored_objects_wait_at_most_five_seconds_for_a_server_that_does_not_confirm_them() {
    // No response at all; refusals; events all the time.
    let chatter = (13..100).flat_map(|version| {
        [event("ADDED", "c", "u3", version), Step::Wait(secs(0)), Step::Wait(Duration::from_millis(300))]
    });
    for replies in [vec![], vec![status(503); 9], vec![Reply::Stream(chatter.collect())]] {
        let test = Test::restart(replies, checkpoint().await);
        let known = || test.changes().into_iter().filter(|it| it != "+c/u3").collect::<Vec<_>>();
        sleep(Duration::from_millis(4990)).await;
        assert_eq!(test.changes(), HELD);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(known(), ["+a/u1", "+b/u2", "synced"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_at_the_end_is_repeated() {
    let mut test = Test::start([listing([Step::Wait(secs(2)), event("ADDED", "b", "u2", 12), Step::Hang])]);
    sleep(Duration::from_millis(2100)).await;
    assert_eq!(test.position().as_deref(), Some("10"));
    test.checkpoints.fails_once.store(true, Ordering::SeqCst);
    test.stop().await;
    assert_eq!(test.position().as_deref(), Some("12"));
}

#[tokio::test(start_paused = true)]
async fn changes_are_counted_at_once_until_they_are_durable() {
    let change = [Step::Wait(Duration::from_millis(2300)), event("DELETED", "a", "u1", 12), Step::Hang];
    let test = Test::start([listing(change)]);
    let unsaved = || test.metrics.watch.unsaved.get_or_create(&SourceLabels { source: "pods" }).get();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(unsaved(), 1, "the list");
    sleep(Duration::from_millis(1700)).await;
    assert_eq!(unsaved(), 0);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(unsaved(), 1, "the deletion");
    sleep(secs(2)).await;
    assert_eq!(unsaved(), 0);
}

#[tokio::test(start_paused = true)]
async fn stored_objects_wait_for_the_list_after_their_position_has_expired() {
    let mut first = Test::start([listing([Step::Hang])]);
    sleep(secs(2)).await;
    first.stop().await;
    let slow = [event("ADDED", "b", "u2", 15), Step::Wait(secs(12)), bookmark(20, true), Step::Hang];
    let expired = Reply::Stream(vec![error(410, r#","reason":"Expired""#)]);
    let second = Test::restart([expired, Reply::Stream(slow.into())], first.checkpoints.clone());
    sleep(secs(10)).await;
    assert_eq!(second.changes(), ["+b/u2"], "the stored object may be gone");
    sleep(secs(5)).await;
    assert_eq!(second.changes(), ["+b/u2", "-a/u1", "synced"]);
    let endless = [Reply::Stream(vec![error(410, "")]), Reply::Stream(vec![Step::Hang])];
    let third = Test::restart(endless, first.checkpoints.clone());
    third.script.otherwise(Reply::Stream(vec![Step::Hang]), status(503));
    sleep(secs(29)).await;
    assert!(third.changes().is_empty());
    sleep(secs(2)).await;
    assert_eq!(third.changes(), ["+b/u2", "synced"], "for half a minute at most");
}
