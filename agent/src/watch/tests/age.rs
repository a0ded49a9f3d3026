//! `ferrule_watch_current_timestamp_seconds`: how old an inventory is, by which an alert fires.

use super::*;
use crate::metrics::{now, seconds};

/// The value of the metric, if the watch has one.
fn current(test: &Test) -> Option<f64> {
    let text = test.metrics.encode().unwrap();
    let series = "ferrule_watch_current_timestamp_seconds{source=\"pods\"} ";
    text.lines().find_map(|it| it.strip_prefix(series)).map(|it| it.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_was_never_current_ages_from_its_start() {
    let before = now();
    let test = Test::start([Reply::Unreachable]);
    test.script.otherwise(Reply::Unreachable, Reply::Unreachable);
    sleep(Duration::from_millis(10)).await;
    let started = current(&test).unwrap();
    assert!(before <= started && started <= now(), "{started}");
    sleep(secs(600)).await;
    assert_eq!(current(&test), Some(started), "no failure makes the inventory younger");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_watch_is_as_old_as_its_checkpoint_until_it_is_current() {
    let mut first = Test::start([listing([Step::Hang])]);
    sleep(secs(1)).await;
    first.stop().await;
    assert_eq!(current(&first), None, "what is not watched grows no older");
    let written = SystemTime::now() - secs(3600);
    let checkpoints = Checkpoints { time: Some(written), ..first.checkpoints.clone() };
    let away = Test::restart([Reply::Unreachable], checkpoints.clone());
    sleep(Duration::from_millis(10)).await;
    assert!((current(&away).unwrap() - seconds(written)).abs() < 0.001);
    let before = now();
    let back = Test::restart([Reply::Stream(vec![bookmark(15, false), Step::Hang])], checkpoints.clone());
    sleep(Duration::from_millis(10)).await;
    assert!(current(&back).unwrap() >= before);
    let ahead = Checkpoints { time: Some(SystemTime::now() + secs(3600)), ..checkpoints };
    let ahead = Test::restart([Reply::Unreachable], ahead);
    sleep(Duration::from_millis(10)).await;
    assert!(current(&ahead).unwrap() <= now(), "the clock was set back");
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_the_cluster_does_not_have_is_never_old() {
    let test = Test::start([status(404), status(404), listing([Step::Hang])]);
    sleep(secs(1)).await;
    assert_eq!(current(&test), None);
    sleep(secs(60)).await;
    assert_eq!(current(&test), None);
    let before = now();
    sleep(secs(60)).await;
    assert!(current(&test).unwrap() >= before, "the type was installed");
}
