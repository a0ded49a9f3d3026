//! Whether the registry's store can be written to, and whether it can again.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::spawn_blocking, time::timeout};

use crate::health::Reporter;

/// Between two tries. While they fail, no runtime calls that could try instead: the agent is not ready.
const AGAIN: Duration = Duration::from_secs(1);

/// Follows the store until the agent ends. `trouble` is why it could not be written to the last time; `again` tries once more, says
/// so there, and may block.
pub async fn follow(
    mut trouble: watch::Receiver<Option<String>>,
    again: impl Fn() + Send + Sync + 'static,
    reporter: Reporter,
) {
    let again = Arc::new(again);
    loop {
        let why = trouble.borrow_and_update().clone();
        match &why {
            None => reporter.healthy("its store can be written to"),
            Some(why) => reporter.unhealthy(why),
        }
        // The sender is there as long as the registry.
        let changed = trouble.changed();
        if why.is_none() {
            let _ = changed.await;
        } else if timeout(AGAIN, changed).await.is_err() {
            let again = Arc::clone(&again);
            let _ = spawn_blocking(move || again()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Health;

    #[tokio::test]
    async fn the_agent_is_not_ready_while_the_store_cannot_be_written_to_and_finds_out_by_itself_when_it_can()
    {
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
