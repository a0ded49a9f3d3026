//! Has the registry's store audited, and reports whether it is writable.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use crate::health::Reporter;

/// The time between two audits. Each reads all files: a few milliseconds with 500 pods.
const PERIOD: Duration = Duration::from_secs(5);
/// The same while the store is not writable. No call retries meanwhile: the agent is not ready.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until the agent ends. `trouble` is the reason why the last write failed; `audit` repairs the store,
/// updates `trouble`, and may block.
pub async fn follow(
    mut trouble: watch::Receiver<Option<String>>,
    audit: impl Fn() + Send + Sync + 'static,
    reporter: Reporter,
) {
    let audit = Arc::new(audit);
    let mut audited = Instant::now();
    loop {
        let why = trouble.borrow_and_update().clone();
        let period = match &why {
            None => {
                reporter.healthy("the store is writable");
                PERIOD
            }
            Some(why) => {
                reporter.unhealthy(why);
                AGAIN
            }
        };
        // The registry keeps the sender.
        if timeout_at(audited + period, trouble.changed()).await.is_err() {
            let audit = Arc::clone(&audit);
            let _ = spawn_blocking(move || audit()).await;
            audited = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::health::Health;

    #[tokio::test]
    async fn the_agent_is_not_ready_while_the_store_is_not_writable_and_recovers_by_itself() {
        let health = Health::default();
        let (tell, trouble) = watch::channel(Some("the disk is full".to_owned()));
        let following = tokio::spawn(follow(
            trouble,
            move || drop(tell.send_replace(None)),
            health.component("registry", true, ""),
        ));
        let unhealthy = async {
            while health.obstacles() != ["registry: the disk is full"] {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), unhealthy).await.unwrap();
        timeout(Duration::from_secs(10), health.until_ready()).await.unwrap();
        following.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_writable_store_is_audited_every_five_seconds_and_a_failing_one_every_second() {
        let (tell, trouble) = watch::channel(None);
        let (audits, mut audited) = tokio::sync::mpsc::unbounded_channel();
        let audit = move || audits.send(Instant::now()).unwrap();
        let began = Instant::now();
        let following =
            tokio::spawn(follow(trouble, audit, Health::default().component("registry", true, "")));
        let mut next = async || audited.recv().await.unwrap().duration_since(began).as_secs();
        assert_eq!((next().await, next().await), (5, 10));
        tell.send_replace(Some("the disk is full".to_owned()));
        assert_eq!((next().await, next().await), (11, 12));
        tell.send_replace(None);
        assert_eq!(next().await, 17);
        following.abort();
    }
}
