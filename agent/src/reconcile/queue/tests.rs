//! Each rule of the queue by an example, and all of them against a model.

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

/// A job that is ready now.
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
        names.push(job.key().name().to_owned());
        job.done();
    }
    names
}

#[tokio::test(start_paused = true)]
async fn pods_are_deduplicated_and_served_in_order() {
    let queue = queue();
    ["a", "b", "a", "c", "a"].map(key).into_iter().for_each(|key| queue.add(key));
    assert_eq!(names(&queue).await, ["a", "b", "c"]);
    assert_eq!(names(&queue).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn pod_added_during_its_work_is_queued_once_more() {
    let queue = queue();
    queue.add(key("a"));
    let job = now(&queue).await.unwrap();
    queue.add(key("a"));
    queue.add(key("a"));
    assert!(now(&queue).await.is_none(), "two workers have it");
    job.done();
    assert_eq!(names(&queue).await, ["a"]);
}

/// The least delay of each retry, in seconds; jitter at most doubles it, up to a minute.
const DELAYS: [u64; 20] = [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60];

/// The shortest and the longest delay after a number of failures.
fn delays(failures: usize) -> (Duration, Duration) {
    let least = DELAYS[failures - 1];
    (Duration::from_secs(least), Duration::from_secs((2 * least).min(60)))
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_exponentially_until_the_retry_budget_is_spent() {
    let queue = queue();
    queue.add(key("a"));
    let began = Instant::now();
    drop(queue.next().await);
    assert_eq!(began.elapsed(), Duration::ZERO);
    for failures in 1..=20 {
        let began = Instant::now();
        drop(queue.next().await);
        let (waited, (least, most)) = (began.elapsed(), delays(failures));
        // Timers have a resolution of a millisecond.
        assert!(waited >= least && waited <= most + SOON, "{failures}: {waited:?}");
    }
    assert!(timeout(Duration::from_secs(3600), queue.next()).await.is_err(), "retried after giving up");
    assert_eq!((queue.0.metrics.given_up.get(), queue.0.metrics.failures.get()), (1, 21));
    queue.add(key("a"));
    drop(timeout(SOON, queue.next()).await.expect("a change queues it again"));
    let (_, most) = delays(1);
    timeout(most + SOON, queue.next()).await.expect("with a fresh retry budget").done();
}

#[tokio::test(start_paused = true)]
async fn delays_of_pods_that_fail_together_differ() {
    let queue = queue();
    for number in 0..20 {
        queue.add(key(&number.to_string()));
    }
    while let Some(job) = now(&queue).await {
        drop(job);
    }
    let due: std::collections::BTreeSet<_> = queue.inner().later.iter().map(|(at, _)| *at).collect();
    assert!(due.len() > 15, "{due:?}");
}

#[tokio::test(start_paused = true)]
async fn change_skips_the_backoff_and_success_resets_it() {
    let queue = queue();
    queue.add(key("a"));
    for _ in 0..6 {
        drop(queue.next().await);
    }
    queue.add(key("a"));
    timeout(SOON, queue.next()).await.expect("the change skips the backoff").done();
    assert!(timeout(Duration::from_secs(120), queue.next()).await.is_err(), "the skipped retry must not run");
    queue.add(key("a"));
    drop(queue.next().await);
    timeout(Duration::from_secs(2) + SOON, queue.next()).await.expect("the backoff starts over").done();
}

#[tokio::test(start_paused = true)]
async fn sleeping_workers_wake_for_new_pods_and_due_retries() {
    let queue = queue();
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let queue = queue.clone();
        workers.spawn(async move { queue.next().await.key().name().to_owned() });
    }
    tokio::task::yield_now().await;
    for name in ["a", "b", "c"] {
        queue.add(key(name));
    }
    // Each job fails, and the last worker gets the first retry.
    let began = Instant::now();
    assert_eq!(workers.join_all().await.len(), 4);
    let (least, most) = delays(1);
    assert!(began.elapsed() >= least && began.elapsed() <= most + SOON, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn overflow_of_the_bounded_queue_is_signalled_once() {
    let queue = Queue::with_capacity(2, ReconcileMetrics::default());
    ["a", "b", "a"].map(key).into_iter().for_each(|key| queue.add(key));
    assert!(timeout(SOON, queue.overflowed()).await.is_err(), "the queue had room");
    queue.add(key("c"));
    timeout(SOON, queue.overflowed()).await.expect("the overflow is signalled");
    assert!(timeout(SOON, queue.overflowed()).await.is_err(), "signalled twice");
    let round = tokio::spawn({
        let queue = queue.clone();
        async move {
            for name in ["a", "b", "c", "d"] {
                queue.until_room().await;
                queue.add(key(name));
            }
        }
    });
    let mut worked = std::collections::BTreeSet::new();
    while let Ok(job) = timeout(SOON, queue.next()).await {
        worked.insert(job.key().name().to_owned());
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
    /// The job at this index, oldest first; whether it succeeded.
    Finish(usize, bool),
    Wait(u64),
}

/// The expected state of a pod.
#[derive(Debug, Default)]
struct Model {
    /// Ready now.
    due: bool,
    working: bool,
    failures: usize,
    /// The earliest and the latest time of the retry.
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
                    let it = model.get_mut(job.key().name()).unwrap();
                    prop_assert!(!it.working, "two workers have {}", job.key());
                    let again = it.again.take().is_some_and(|(soonest, _)| soonest <= Instant::now());
                    prop_assert!(it.due || again, "{} was not due", job.key());
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
                let it = model.get_mut(job.key().name()).unwrap();
                it.working = false;
                // Twenty retries, and then none.
                it.failures = if succeeded { 0 } else { (it.failures + 1) % 21 };
                if it.failures > 0 && !it.due {
                    let (least, most) = delays(it.failures);
                    it.again = Some((Instant::now() + least, Instant::now() + most));
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
    fn queue_matches_the_model(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(compare(steps))?;
    }
}
