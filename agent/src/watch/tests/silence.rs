//! Servers that accept a watch and say nothing: some of them have nothing to say.

use super::*;

/// The state at each second.
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

/// A stream that says nothing and ends.
fn ends_after(time: Duration) -> Reply {
    Reply::Stream(vec![Step::Wait(time)])
}

fn lists(test: &Test) -> Vec<Asked> {
    test.asked().into_iter().filter(|it| !it.query.contains("watch=true")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_deaf_watch_is_unhealthy_and_lists_keep_what_is_known_right() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), page(&[pod("a", "u1", 5), pod("b", "u2", 40)], 50, ""));
    sleep(secs(200)).await;
    assert_eq!(test.told(), ["+a/u1", "synced", "+a/u1", "+b/u2"], "found by a list");
    assert_eq!((test.state(), test.position().as_deref()), (State::Unhealthy, Some("50")));
    assert!(states(&test, 3600).await.iter().all(|it| *it == State::Unhealthy), "whatever lists say");
    let lists = lists(&test).len();
    assert!((10..22).contains(&lists), "{lists} in an hour");
    test.script.otherwise(Reply::Stream(vec![bookmark(60, false), Step::Hang]), status(500));
    sleep(secs(130)).await;
    assert_eq!(test.state(), State::Healthy, "it speaks again");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_a_deaf_watch_does_not_tell_is_found_too() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), page(&[], 50, ""));
    sleep(secs(200)).await;
    assert_eq!(test.told(), ["+a/u1", "synced", "-a/u1"]);
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_of_which_no_list_says_why_is_unhealthy() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), status(500));
    sleep(secs(190)).await;
    assert!(states(&test, 3600).await.iter().all(|it| *it == State::Unhealthy));
    let asked = test.asked().len();
    assert!(asked < 90, "{asked} requests in an hour");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_healthy_though_its_server_sends_no_bookmarks() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(1)).await;
    assert!(states(&test, 3600).await.iter().all(|it| *it == State::Healthy));
    let lists = lists(&test);
    assert!((15..22).contains(&lists.len()), "{} in an hour", lists.len());
    assert_eq!(test.position().as_deref(), Some("50"));
    // As long as an attachment is safe whose pod is not known.
    assert!(lists.windows(2).all(|two| two[1].at - two[0].at < secs(250)), "{lists:?}");
    // From now on it is deaf, and says of itself that it is not.
    test.script.otherwise(hang(), page(&[pod("a", "u1", 55)], 60, ""));
    sleep(secs(200)).await;
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_that_nobody_can_list_any_more_does_not_stay_healthy() {
    let test = Test::start([listing([Step::Hang])]);
    test.script.otherwise(hang(), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(600)).await;
    assert_eq!(test.state(), State::Healthy);
    test.script.otherwise(hang(), status(500));
    sleep(secs(300)).await;
    assert!(states(&test, 600).await.iter().all(|it| *it == State::Unhealthy));
}

#[tokio::test(start_paused = true)]
async fn streams_that_end_after_a_moment_without_a_word_are_unhealthy_and_do_not_make_a_hot_loop() {
    for broken in [false, true] {
        let end = if broken { vec![Step::Break] } else { Vec::new() };
        let stream = Reply::Stream(std::iter::once(Step::Wait(secs(2))).chain(end).collect());
        let test = Test::start([listing([Step::Wait(secs(2))])]);
        test.script.otherwise(stream, page(&[pod("a", "u1", 5)], 50, ""));
        sleep(secs(120)).await;
        assert!(states(&test, 600).await.iter().all(|it| *it == State::Unhealthy));
        let asked = test.asked().len();
        assert!(asked < 45, "{asked} requests in twelve minutes");
        assert_eq!(test.position().as_deref(), Some("50"), "listed meanwhile");
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_cuts_what_is_quiet_each_minute_is_lived_with() {
    let test = Test::start([listing([Step::Wait(secs(60))])]);
    test.script.otherwise(ends_after(secs(60)), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(1)).await;
    assert!(states(&test, 3600).await.iter().all(|it| *it == State::Healthy));
    let watches = test.asked().len() - lists(&test).len();
    assert!((59..62).contains(&watches), "{watches} in an hour: at once");
    assert!(lists(&test).len() < 22);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_when_it_was_asked_to_is_healthy_though_nothing_came() {
    let settings = Settings { read_timeout: secs(3600), ..SETTINGS };
    let test = Test::with([listing([Step::Wait(secs(600))])], Kept::default(), settings);
    test.script.otherwise(ends_after(secs(600)), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(1)).await;
    assert!(states(&test, 7000).await.iter().all(|it| *it == State::Healthy));
    assert!(lists(&test).len() < 3, "{:?}", lists(&test));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_healthy_also_to_an_agent_that_has_little_patience() {
    let settings = Settings { read_timeout: secs(10), ..SETTINGS };
    let test = Test::with([listing([Step::Hang])], Kept::default(), settings);
    test.script.otherwise(hang(), page(&[pod("a", "u1", 5)], 50, ""));
    sleep(secs(1)).await;
    assert!(states(&test, 600).await.iter().all(|it| *it == State::Healthy));
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_line_are_no_sign_of_life() {
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
async fn a_watch_that_the_server_does_not_end_is_ended_here() {
    let bookmarks = (0..40).flat_map(|number| [Step::Wait(secs(60)), bookmark(11 + number, false)]);
    let test = Test::start([listing(bookmarks)]);
    test.script.otherwise(hang(), status(500));
    sleep(secs(1300)).await;
    let asked = test.asked();
    // Twice what may have been asked for, and a little.
    assert!(asked[1].at >= secs(660) && asked[1].at <= secs(1260), "{asked:?}");
    assert!(version(&asked[1].query).parse::<u64>().unwrap() > 15, "it goes on where it was: {asked:?}");
}
