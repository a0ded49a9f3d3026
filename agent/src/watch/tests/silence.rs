//! Streams without events: quiet clusters, and watches that do not deliver changes.

use super::*;
use crate::metrics::FailureLabels;

/// The health at each second.
async fn states(test: &Test, seconds: u64) -> Vec<State> {
    let mut states = Vec::new();
    for _ in 0..seconds {
        sleep(secs(1)).await;
        states.push(test.state());
    }
    states
}

fn hang() -> Reply {
    Reply::Stream(vec![Step::Hang])
}

/// A silent stream that ends.
fn ends_after(time: Duration) -> Reply {
    Reply::Stream(vec![Step::Wait(time)])
}

fn lists(test: &Test) -> Vec<Asked> {
    test.asked().into_iter().filter(|it| !it.query.contains("watch=true")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_deaf_watch_is_unhealthy_and_relists_keep_its_objects_current() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), page(&[pod("a", "u1", 5), pod("b", "u2", 40)], 50, ""));
    sleep(secs(200)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced", "+a/u1", "+b/u2"], "found by a relist");
    assert_eq!((test.state(), test.position().as_deref()), (State::Unhealthy, Some("50")));
    assert!(states(&test, 3600).await.iter().all(|it| *it == State::Unhealthy), "whatever relists show");
    let lists = lists(&test).len();
    assert!((10..22).contains(&lists), "{lists} in an hour");
    test.script.otherwise(Reply::Stream(vec![bookmark(60, false), Step::Hang]), status(500));
    sleep(secs(130)).await;
    assert_eq!(test.state(), State::Healthy, "the stream delivers again");
}

#[tokio::test(start_paused = true)]
async fn a_relist_finds_a_deletion_that_a_deaf_watch_missed() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), page(&[], 50, ""));
    sleep(secs(200)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced", "-a/u1"]);
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_without_a_successful_relist_is_unhealthy() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), status(500));
    sleep(secs(190)).await;
    assert!(states(&test, 3600).await.iter().all(|it| *it == State::Unhealthy));
    let asked = test.asked().len();
    assert!(asked < 90, "{asked} requests in an hour");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_without_bookmarks_is_healthy() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(1)).await;
    assert!(states(&test, 3600).await.iter().all(|it| *it == State::Healthy));
    let lists = lists(&test);
    assert!((15..22).contains(&lists.len()), "{} in an hour", lists.len());
    assert_eq!(test.position().as_deref(), Some("50"));
    // Sooner than an attachment of an unknown pod may be removed (300 s).
    assert!(lists.windows(2).all(|two| two[1].at - two[0].at < secs(250)), "{lists:?}");
    // The watch becomes deaf.
    test.script.otherwise(hang(), page(&[pod("a", "u1", 55)], 60, ""));
    sleep(secs(200)).await;
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_that_can_no_longer_be_listed_becomes_unhealthy() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(600)).await;
    assert_eq!(test.state(), State::Healthy);
    test.script.otherwise(hang(), status(500));
    sleep(secs(300)).await;
    assert!(states(&test, 600).await.iter().all(|it| *it == State::Unhealthy));
}

#[tokio::test(start_paused = true)]
async fn short_silent_streams_are_unhealthy_and_retried_with_backoff() {
    for broken in [false, true] {
        let end = if broken { vec![Step::Break] } else { Vec::new() };
        let stream = Reply::Stream(std::iter::once(Step::Wait(secs(2))).chain(end).collect());
        let test = Test::start([listing([Step::Wait(secs(2))])]);
        test.script.otherwise(stream, page(&[pod("a", "u1", 5)], 50, ""));
        sleep(secs(120)).await;
        assert!(states(&test, 600).await.iter().all(|it| *it == State::Unhealthy));
        let asked = test.asked().len();
        assert!(asked < 45, "{asked} requests in twelve minutes");
        assert_eq!(test.position().as_deref(), Some("50"), "relisted meanwhile");
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_cuts_silent_streams_each_minute_is_tolerated() {
    let test = Test::start([listing([Step::Wait(secs(60))])]);
    test.script.otherwise(ends_after(secs(60)), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(1)).await;
    assert!(states(&test, 3600).await.iter().all(|it| *it == State::Healthy));
    let watches = test.asked().len() - lists(&test).len();
    assert!((59..62).contains(&watches), "{watches} in an hour, without backoff");
    assert!(lists(&test).len() < 22);
}

#[tokio::test(start_paused = true)]
async fn silent_streams_that_end_as_requested_are_healthy() {
    let settings = Settings { read_timeout: secs(3600), ..SETTINGS };
    let test = Test::with([listing([Step::Wait(secs(600))])], Checkpoints::default(), settings);
    test.script.otherwise(ends_after(secs(600)), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(1)).await;
    assert!(states(&test, 7000).await.iter().all(|it| *it == State::Healthy));
    assert!(lists(&test).len() < 3, "{:?}", lists(&test));
}

#[tokio::test(start_paused = true)]
async fn a_stream_may_end_five_seconds_before_the_requested_time() {
    for (early, is_early) in [(4, false), (6, true)] {
        let settings = Settings { read_timeout: secs(3600), ..SETTINGS };
        let test = Test::with([listing([Step::Wait(secs(2))])], Checkpoints::default(), settings);
        let stream = Reply::Stream(vec![Step::Early(secs(early))]);
        test.script.otherwise(stream, page(&[pod("a", "u1", 5)], 50, ""));
        sleep(secs(1000)).await;
        let labels = FailureLabels { source: "pods", reason: "short" };
        let failures = test.metrics.watch.failures.get_or_create(&labels).get();
        assert_eq!(failures > 0, is_early, "{failures}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_healthy_with_a_short_read_timeout_too() {
    let settings = Settings { read_timeout: secs(10), ..SETTINGS };
    let test = Test::with([listing([Step::Hang])], Checkpoints::default(), settings);
    test.script.otherwise(hang(), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(1)).await;
    assert!(states(&test, 600).await.iter().all(|it| *it == State::Healthy));
}

#[tokio::test(start_paused = true)]
async fn bytes_without_a_complete_line_do_not_reset_the_read_timeout() {
    let drops = |text: &str| {
        let drop = [Step::Wait(secs(40)), Step::Send(text.to_owned())];
        let steps = std::iter::repeat_n(drop, 100).flatten();
        steps.collect::<Vec<_>>()
    };
    for text in [" ", "\n"] {
        let test = Test::start([listing(drops(text)), hang()]);
        sleep(secs(100)).await;
        let asked = test.asked();
        assert_eq!(asked.len(), 2, "{text:?}");
        assert!(asked[1].at >= secs(90), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_overdue_stream_is_ended_by_the_client() {
    let bookmarks = (0..40).flat_map(|number| [Step::Wait(secs(60)), bookmark(11 + number, false)]);
    let test = Test::start([listing(bookmarks)]);
    test.script.otherwise(hang(), status(500));
    sleep(secs(1300)).await;
    let asked = test.asked();
    let end = 2 * requested(&asked[0].query) + secs(60);
    assert!(asked[1].at >= end && asked[1].at < end + secs(3), "{asked:?}");
    assert!(version(&asked[1].query).parse::<u64>().unwrap() > 15, "resumed at its position: {asked:?}");
}
