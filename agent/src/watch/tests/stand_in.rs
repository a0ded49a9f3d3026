//! A watch that does not work: lists stand in for it.

use super::*;

/// The requests, without those for streams.
fn lists(test: &Test) -> Vec<Asked> {
    test.asked().into_iter().filter(|it| !it.query.contains("watch=true")).collect()
}

fn why(test: &Test) -> String {
    test.health.components()["pods"].why.clone()
}

#[tokio::test(start_paused = true)]
async fn without_permission_to_watch_lists_keep_the_objects_current() {
    let test = Test::start([]);
    test.script.otherwise(status(403), page(&[pod("a", "u1", 5)], 10, ""));
    sleep(secs(5)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced"], "the first list is not streamed");
    sleep(secs(200)).await;
    let known = test.changes().len();
    test.script.otherwise(status(403), page(&[pod("b", "u2", 40)], 50, ""));
    sleep(secs(61)).await;
    assert_eq!(test.changes()[known..][..2], ["+b/u2", "-a/u1"], "news within a minute");
    assert_eq!((test.state(), test.position().as_deref()), (State::Unhealthy, Some("50")));
    let why = why(&test);
    for part in ["refused to watch pods: 403", "role in deploy/", "lists keep the known objects current"] {
        assert!(why.contains(part), "{why}");
    }
    sleep(secs(3600)).await;
    let lists = lists(&test).len();
    assert!((100..=130).contains(&lists), "{lists} in an hour");
    assert!(test.asked().len() <= 280, "{} requests", test.asked().len());
    test.script.otherwise(Reply::Stream(vec![bookmark(60, false), Step::Hang]), page(&[], 50, ""));
    sleep(secs(40)).await;
    assert_eq!(test.state(), State::Healthy, "the permission was given");
}

#[tokio::test(start_paused = true)]
async fn the_first_list_is_as_soon_as_documented_whatever_the_backoff_of_the_watch() {
    // Refused once after a stream that worked, and after a minute of failures that let the backoff grow.
    let refusals = [0, 5];
    for away in refusals {
        for _ in 0..40 {
            let first = [listing([Step::Wait(secs(2))])];
            let test = Test::start(first.into_iter().chain(vec![Reply::Unreachable; away]));
            test.script.otherwise(status(403), page(&[pod("b", "u2", 40)], 50, ""));
            sleep(secs(200)).await;
            let refused = test.asked().remove(away + 1).at;
            let lists: Vec<_> = lists(&test).iter().map(|it| it.at - refused).collect();
            assert!((secs(10)..=secs(21)).contains(&lists[0]), "{lists:?}");
            for pair in lists.windows(2) {
                assert!((secs(20)..=secs(31)).contains(&(pair[1] - pair[0])), "{lists:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_watch_names_its_last_failure_also_if_the_time_passes_within_a_wait() {
    let busy = Reply::Whole(429, vec![("retry-after", "300".to_owned())], String::new());
    let test = Test::start([listing([Step::Wait(secs(2))]), busy]);
    sleep(secs(70)).await;
    assert_eq!(test.state(), State::Unhealthy);
    let why = why(&test);
    assert!(why.contains("not been followed for 60 s: ") && why.contains("429"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn streams_that_end_with_an_error_are_replaced_by_lists() {
    // With and without events before the error that cannot be passed.
    for early in [vec![], vec![Step::Wait(secs(6))]] {
        let test = Test::start([listing([Step::Wait(secs(2))])]);
        let broken = early.into_iter().chain([error(500, "")]).collect();
        test.script.otherwise(Reply::Stream(broken), page(&[pod("a", "u1", 5), pod("b", "u2", 40)], 50, ""));
        sleep(secs(70)).await;
        assert_eq!(test.changes()[2..4], ["+a/u1", "+b/u2"]);
        assert_eq!(test.position().as_deref(), Some("50"));
        let watch = test.asked().into_iter().rfind(|it| it.query.contains("watch=true")).unwrap();
        assert_eq!(version(&watch.query), "50", "behind the event that cannot be delivered");
        sleep(secs(60)).await;
        assert_eq!(test.state(), State::Unhealthy);
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_holds_streams_back_delays_the_first_list_by_seconds() {
    let test = Test::start([]);
    test.script.otherwise(Reply::Stream(vec![Step::Hang]), page(&[pod("a", "u1", 5)], 10, ""));
    sleep(secs(14)).await;
    assert!(test.changes().is_empty());
    sleep(secs(3)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn without_permission_to_list_lists_are_streamed_even_after_a_failure() {
    let test = Test::start([status(503)]);
    test.script.otherwise(listing([Step::Hang]), status(403));
    sleep(secs(10)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_gets_no_lists() {
    let test = Test::start([listing([Step::Wait(secs(2))])]);
    test.script.otherwise(Reply::Unreachable, page(&[], 50, ""));
    sleep(secs(600)).await;
    assert_eq!(lists(&test).len(), 0, "the watch resumes");
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn when_the_server_answers_one_watch_the_others_ask_again_within_a_second() {
    for _ in 0..20 {
        let script = Script::new([]);
        script.otherwise(Reply::Unreachable, Reply::Unreachable);
        let api = Arc::new(Api::with_client(script.client()));
        let watch = || Test::of(script.clone(), Arc::clone(&api), Checkpoints::default(), SETTINGS);
        let tests = [watch(), watch(), watch()];
        sleep(secs(300)).await;
        let before = script.asked().len();
        script.otherwise(listing([Step::Hang]), Reply::Unreachable);
        sleep(secs(62)).await;
        let asked = script.asked().split_off(before);
        assert_eq!(asked.len(), tests.len(), "{asked:?}");
        assert!(asked[2].at - asked[0].at <= secs(1), "{asked:?}");
        assert!(tests.iter().all(|it| it.changes() == ["+a/u1", "synced"]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_says_one_second_is_asked_ever_less() {
    let test = Test::start([listing([Step::Wait(secs(2))])]);
    let busy = Reply::Whole(429, vec![("retry-after", "1".to_owned())], String::new());
    test.script.otherwise(busy.clone(), busy);
    sleep(secs(600)).await;
    let asked = test.asked().len();
    assert!(asked < 35, "{asked} requests in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn relists_of_many_nodes_spread_over_ten_seconds_and_first_lists_do_not() {
    let mut waits = Vec::new();
    for _ in 0..100 {
        let test = Test::start([listing([Step::Wait(secs(2))]), status(410), listing([Step::Hang])]);
        sleep(secs(20)).await;
        let asked = test.asked();
        assert_eq!(asked[0].at, Duration::ZERO);
        waits.push(asked[2].at - asked[1].at);
    }
    waits.sort();
    assert!(waits[99] <= secs(10) && waits[99] > secs(8) && waits[0] < secs(2), "{waits:?}");
    assert!(waits[30] > secs(1) && waits[70] < secs(9), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn lists_do_not_go_back_in_time() {
    let too_large =
        r#"{"code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#;
    let test = Test::start([
        status(422),
        page(&[pod("a", "u1", 3)], 10, ""),
        Reply::Stream(vec![event("MODIFIED", "a", "u1", 12), Step::Wait(secs(2))]),
        status(410),
        Reply::Whole(504, vec![], too_large.to_owned()),
        page(&[pod("a", "u1", 3)], 5, "more"),
        status(410),
        page(&[pod("b", "u2", 4)], 6, ""),
        Reply::Stream(vec![Step::Hang]),
    ]);
    sleep(secs(30)).await;
    let asked = test.asked();
    let queries: Vec<_> =
        asked.iter().map(|it| it.query.replace("fieldSelector=spec.nodeName%3Dnode&", "")).collect();
    assert_eq!(queries[1], "limit=500&resourceVersion=0");
    assert_eq!(queries[4], "resourceVersion=12&resourceVersionMatch=NotOlderThan");
    assert_eq!(queries[5..8], ["limit=500", "limit=500&continue=more", "fieldSelector=spec.nodeName%3Dnode"]);
    assert!(asked[8].at - asked[4].at < Duration::from_millis(100), "without backoff: {asked:?}");
    assert_eq!(
        test.changes(),
        ["+a/u1", "synced", "+a/u1", "+a/u1", "+b/u2", "-a/u1"],
        "only the last list counts"
    );
}

#[tokio::test(start_paused = true)]
async fn a_garbled_list_proves_no_absence() {
    let garbage = || Step::Send("garbage\n".to_owned());
    let streamed = |then| vec![event("ADDED", "a", "u1", 5), then, bookmark(30, true), Step::Hang];
    let garbled = [
        Reply::Stream(streamed(garbage())),
        page(&[pod("a", "u1", 5), "{}".to_owned()], 30, ""),
        page(&[pod("a", "u1", 5), r#"{"metadata":{"name":7}}"#.to_owned()], 30, ""),
    ];
    for (number, garbled) in garbled.into_iter().enumerate() {
        let first = listing([event("ADDED", "b", "u2", 12), Step::Wait(secs(2))]);
        // The second list is streamed after the first failure.
        let pages = if number == 0 {
            vec![]
        } else {
            vec![Reply::Stream(vec![event("ADDED", "a", "u1", 5), Step::Break])]
        };
        let replies = [first, status(410)].into_iter().chain(pages).chain([garbled]);
        let test = Test::start(replies);
        let both = [pod("a", "u1", 5), pod("b", "u2", 12)];
        let streamed =
            [event("ADDED", "a", "u1", 5), event("ADDED", "b", "u2", 12), bookmark(40, true), Step::Hang];
        test.script.otherwise(Reply::Stream(streamed.to_vec()), page(&both, 40, ""));
        sleep(secs(60)).await;
        let changes = test.changes();
        assert!(!changes.contains(&"-b/u2".to_owned()), "{number}: {changes:?}");
        assert_eq!(test.position().as_deref(), Some("40"), "{number}: another list followed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_garbled_first_list_is_not_complete() {
    let garbled = || page(&[pod("a", "u1", 5), "{}".to_owned()], 10, "");
    let test = Test::start([status(422), garbled(), status(422), garbled()]);
    test.script.otherwise(Reply::Stream(vec![Step::Hang]), garbled());
    sleep(secs(120)).await;
    let changes = test.changes();
    assert!(changes.iter().all(|it| it == "+a/u1") && changes.len() > 3, "{changes:?}");
    assert!(test.asked().len() < 15, "{}", test.asked().len());
    assert_eq!((test.state(), test.position()), (State::Unhealthy, None));
    assert!(why(&test).contains("without a usable name or UID"), "{}", why(&test));
}

#[tokio::test(start_paused = true)]
async fn a_stream_in_doubt_is_followed_by_a_list_within_a_minute_and_not_checkpointed() {
    let chatter = (13..400).flat_map(|version| [event("ADDED", "b", "u2", version), Step::Wait(secs(1))]);
    let garbage = Step::Send("garbage\n".to_owned());
    let stream = [Step::Wait(secs(3)), garbage].into_iter().chain(chatter).collect::<Vec<_>>();
    let test = Test::start([listing(stream)]);
    test.script.otherwise(listing([Step::Hang]), status(500));
    sleep(secs(30)).await;
    assert_eq!(test.position().as_deref(), Some("10"), "a restarted agent gets the garbled change again");
    assert_eq!(test.asked().len(), 1, "a server that garbles each stream gets few lists");
    sleep(secs(34)).await;
    assert_eq!(test.asked().len(), 2);
    assert!(test.asked()[1].query.contains("sendInitialEvents"), "{:?}", test.asked());
}
