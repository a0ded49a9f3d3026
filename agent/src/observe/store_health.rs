//! Reports whether the registry's store is writable, and retries while it is not.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::spawn_blocking, time::timeout};

use crate::health::Reporter;

/// The retry interval. No call retries meanwhile: the agent is not ready.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until the agent ends. `trouble` is the reason why the last write failed; `retry` writes once, updates
/// `trouble`, and may block.
pub async fn follow(
    mut trouble: watch::Receiver<Option<String>>,
    retry: impl Fn() + Send + Sync + 'static,
    reporter: Reporter,
) {
    let retry = Arc::new(retry);
    loop {
        let why = trouble.borrow_and_update().clone();
        match &why {
            None => reporter.healthy("the store is writable"),
            Some(why) => reporter.unhealthy(why),
        }
        // The registry keeps the sender.
        let changed = trouble.changed();
        if why.is_none() {
            let _ = changed.await;
        } else if timeout(AGAIN, changed).await.is_err() {
            let retry = Arc::clone(&retry);
            let _ = spawn_blocking(move || retry()).await;
        }
    }
}

#[cfg(test)]
mod tests {
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
        tokio::time::sleep(AGAIN / 4).await;
        assert_eq!(health.obstacles(), ["registry: the disk is full"]);
        timeout(2 * AGAIN, health.until_ready()).await.unwrap();
        following.abort();
    }
}
