//! Objects of a type that recognizes versions without news: their UIDs begin with `quiet`.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_version_without_news_moves_the_position_and_reaches_neither_sink_nor_checkpoint() {
    let list = [event("ADDED", "a", "quiet", 5), event("ADDED", "b", "quiet-b", 6), bookmark(10, true)];
    let later = [
        Step::Wait(secs(3)),
        event("MODIFIED", "a", "quiet", 11),
        Step::Wait(secs(3)),
        event("MODIFIED", "a", "quiet", 12),
        event("MODIFIED", "b", "quiet-c", 13),
        Step::Hang,
    ];
    let test = Test::start([Reply::Stream(list.into_iter().chain(later).collect())]);
    sleep(secs(5)).await;
    assert_eq!(test.changes(), ["+a/quiet", "+b/quiet-b", "synced"]);
    assert_eq!(test.position().as_deref(), Some("11"));
    assert_eq!(test.checkpoints.written.load(Ordering::SeqCst), 2, "the list");
    sleep(secs(5)).await;
    assert_eq!(test.changes()[3..], ["b/quiet-b>quiet-c"], "news");
    assert_eq!(test.checkpoints.written.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_relist_without_news_reaches_the_sink_with_nothing() {
    let list = || vec![event("ADDED", "a", "quiet", 5), bookmark(10, true), Step::Wait(secs(2))];
    let test =
        Test::start([Reply::Stream(list()), status(410), Reply::Stream([list(), vec![Step::Hang]].concat())]);
    sleep(secs(30)).await;
    assert_eq!(test.asked().len(), 3);
    assert_eq!(test.changes(), ["+a/quiet", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn objects_that_the_checkpoint_has_lost_are_listed_and_written_once_more() {
    let list = || vec![event("ADDED", "a", "quiet", 5), bookmark(10, true), Step::Wait(secs(2))];
    let later = vec![event("MODIFIED", "a", "quiet", 11), Step::Hang];
    let again = Reply::Stream([list(), vec![Step::Hang]].concat());
    let test = Test::start([Reply::Stream([list(), later].concat()), again]);
    sleep(secs(1)).await;
    test.checkpoints.loses_once.store(true, Ordering::SeqCst);
    sleep(secs(10)).await;
    assert_eq!(test.asked().len(), 1, "a stream is not cut short");
    sleep(secs(55)).await;
    assert_eq!(test.asked().len(), 2, "before a silent stream ends");
    assert_eq!(test.changes(), ["+a/quiet", "synced", "+a/quiet", "+a/quiet"]);
    assert_eq!(test.position().as_deref(), Some("10"));
    assert_eq!(test.checkpoints.written.load(Ordering::SeqCst), 1, "by the second list");
}

#[tokio::test(start_paused = true)]
async fn a_stored_object_that_a_list_repeats_reaches_the_sink_once() {
    let list = || Reply::Stream(vec![event("ADDED", "a", "quiet", 5), bookmark(10, true), Step::Hang]);
    let mut first = Test::start([list()]);
    sleep(secs(2)).await;
    first.stop().await;
    let gone = Reply::Stream(vec![error(410, r#","reason":"Expired""#)]);
    let second = Test::restart([gone, list()], first.checkpoints.clone());
    sleep(secs(30)).await;
    assert_eq!(second.changes(), ["+a/quiet", "synced"]);
    let resumed = Reply::Stream(vec![event("MODIFIED", "a", "quiet", 11), Step::Hang]);
    let third = Test::restart([resumed], first.checkpoints.clone());
    sleep(secs(30)).await;
    assert_eq!(third.changes(), ["+a/quiet", "synced"]);
}
