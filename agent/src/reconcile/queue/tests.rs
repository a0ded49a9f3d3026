//! The queue against a model of its rules, and each rule by an example.

use std::{collections::BTreeMap, pin::pin, task::Poll};

use proptest::prelude::*;
use tokio::time::{advance, timeout};

use super::*;

const SOON: Duration = Duration::from_millis(1);

fn queue() -> Queue {
    Queue::new(ReconcileMetrics::default())
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("n", name)
}

/// A job that is there now.
async fn now(queue: &Queue) -> Option<Job> {
    let mut next = pin!(queue.next());
    std::future::poll_fn(|context| match next.as_mut().poll(context) {
        Poll::Ready(job) => Poll::Ready(Some(job)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

async fn names(queue: &Queue) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(job) = now(queue).await {
        names.push(job.key().name.clone());
        job.done();
    }
    names
}

#[tokio::test(start_paused = true)]
async fn a_key_is_queued_once_and_keys_come_in_order() {
    let queue = queue();
    ["a", "b", "a", "c", "a"].map(key).into_iter().for_each(|key| queue.add(key));
    assert_eq!(names(&queue).await, ["a", "b", "c"]);
    assert_eq!(names(&queue).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_added_during_the_work_is_worked_on_once_more_afterwards() {
    let queue = queue();
    queue.add(key("a"));
    let job = now(&queue).await.unwrap();
    queue.add(key("a"));
    queue.add(key("a"));
    assert!(now(&queue).await.is_none(), "two would work on it");
    job.done();
    assert_eq!(names(&queue).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_ever_later_and_given_up_at_last() {
    let queue = queue();
    queue.add(key("a"));
    let mut last = Duration::ZERO;
    for retry in 0..=MAX_RETRIES {
        let began = Instant::now();
        drop(queue.next().await);
        let waited = began.elapsed();
        if retry == 0 {
            assert_eq!(waited, Duration::ZERO);
            continue;
        }
        let least = Duration::from_secs(1 << (retry - 1).min(6)).min(LONGEST);
        assert!(
            waited >= least && waited <= LONGEST + SOON && waited + SOON >= last.min(least),
            "{retry}: {waited:?}"
        );
        last = waited;
    }
    assert!(timeout(LONGEST * 10, queue.next()).await.is_err(), "it is left alone");
    assert_eq!(
        (queue.0.metrics.given_up.get(), queue.0.metrics.failures.get()),
        (1, u64::from(MAX_RETRIES) + 1)
    );
    queue.add(key("a"));
    drop(timeout(SOON, queue.next()).await.expect("until it changes"));
    timeout(FIRST * 2 + SOON, queue.next()).await.expect("and its failures count anew").done();
}

#[tokio::test(start_paused = true)]
async fn success_ends_the_waits_and_a_change_does_not_wait_for_them() {
    let queue = queue();
    queue.add(key("a"));
    for _ in 0..6 {
        drop(queue.next().await);
    }
    queue.add(key("a"));
    timeout(SOON, queue.next()).await.expect("it changed").done();
    assert!(timeout(LONGEST * 2, queue.next()).await.is_err(), "the retry is not another cause");
    queue.add(key("a"));
    drop(queue.next().await);
    timeout(FIRST * 2 + SOON, queue.next()).await.expect("the first failure again").done();
}

#[tokio::test(start_paused = true)]
async fn who_sleeps_is_woken_by_what_comes_and_by_what_is_due() {
    let queue = queue();
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let queue = queue.clone();
        workers.spawn(async move { queue.next().await.key().name.clone() });
    }
    tokio::task::yield_now().await;
    for name in ["a", "b", "c"] {
        queue.add(key(name));
    }
    // Each fails, and the last sleeper gets the first of them that is due.
    let began = Instant::now();
    assert_eq!(workers.join_all().await.len(), 4);
    assert!(began.elapsed() >= FIRST && began.elapsed() <= FIRST * 2 + SOON);
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_room_is_not_lost_but_makes_for_a_round() {
    let queue = Queue::with_capacity(2, ReconcileMetrics::default());
    ["a", "b", "a"].map(key).into_iter().for_each(|key| queue.add(key));
    assert!(timeout(SOON, queue.overflowed()).await.is_err(), "there was room");
    queue.add(key("c"));
    timeout(SOON, queue.overflowed()).await.expect("it is noted");
    assert!(timeout(SOON, queue.overflowed()).await.is_err(), "once");
    let round = tokio::spawn({
        let queue = queue.clone();
        async move {
            for name in ["a", "b", "c", "d"] {
                queue.room().await;
                queue.add(key(name));
            }
        }
    });
    let mut worked = std::collections::BTreeSet::new();
    while let Ok(job) = timeout(SOON, queue.next()).await {
        worked.insert(job.key().name.clone());
        job.done();
    }
    round.await.unwrap();
    assert_eq!(worked.into_iter().collect::<String>(), "abcd");
    assert!(queue.inner().entries.is_empty());
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    Take,
    /// The oldest but so many of those in work.
    Finish(usize, bool),
    Wait(u64),
}

/// What may be said of a key.
#[derive(Debug, Default)]
struct Model {
    /// There is a cause to work on it now.
    due: bool,
    working: bool,
    failures: u32,
    /// The soonest and the latest that it may be tried again.
    again: Option<(Instant, Instant)>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..4_u8).prop_map(Step::Add),
        3 => Just(Step::Take),
        2 => (0..4_usize, any::<bool>()).prop_map(|(which, succeeded)| Step::Finish(which, succeeded)),
        1 => (0..90_000_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..200)
}

async fn compare(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (queue, mut model) = (queue(), BTreeMap::<String, Model>::new());
    let mut jobs: Vec<Job> = Vec::new();
    for step in steps {
        match step {
            Step::Add(number) => {
                queue.add(key(&number.to_string()));
                let it = model.entry(number.to_string()).or_default();
                (it.due, it.again) = (true, None);
            }
            Step::Take => match now(&queue).await {
                Some(job) => {
                    let it = model.get_mut(&job.key().name).unwrap();
                    prop_assert!(!it.working, "two work on {}", job.key());
                    let again = it.again.take().is_some_and(|(soonest, _)| soonest <= Instant::now());
                    prop_assert!(it.due || again, "{} without a cause", job.key());
                    (it.due, it.working) = (false, true);
                    jobs.push(job);
                }
                None => {
                    for (name, it) in model.iter().filter(|(_, it)| !it.working) {
                        let late = it.again.is_some_and(|(_, latest)| latest < Instant::now());
                        prop_assert!(!it.due && !late, "{name} is lost");
                    }
                }
            },
            Step::Finish(which, succeeded) if which < jobs.len() => {
                let job = jobs.remove(which);
                let it = model.get_mut(&job.key().name).unwrap();
                it.working = false;
                it.failures = if succeeded { 0 } else { (it.failures + 1) % (MAX_RETRIES + 1) };
                if it.failures > 0 && !it.due {
                    let doubled = (FIRST * (1 << (it.failures - 1).min(10))).min(LONGEST);
                    it.again = Some((Instant::now() + doubled, Instant::now() + (doubled * 2).min(LONGEST)));
                }
                if succeeded { job.done() } else { drop(job) }
            }
            Step::Finish(..) => {}
            Step::Wait(millis) => advance(Duration::from_millis(millis)).await,
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn nothing_is_lost_doubled_or_done_without_a_cause(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(compare(steps))?;
    }
}
