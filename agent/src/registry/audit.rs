//! The audit of the store: writes again what others removed or changed under the running agent.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use super::{
    Registry,
    attachment::{Attachment, State},
    key::Key,
    store::{Kept, StoreError},
};
use crate::{chain::chain, health::Reporter};

/// The time between two audits. Each reads all files: a few milliseconds with 500 pods.
const PERIOD: Duration = Duration::from_secs(5);
/// The same while the store is not writable. No call retries meanwhile: the agent is not ready.
const AGAIN: Duration = Duration::from_secs(1);

// === impl Registry ===

impl Registry {
    /// Audits the store in each period, and reports whether it is writable, until the agent ends.
    pub async fn keep_store(self: Arc<Self>, reporter: Reporter) {
        follow(self.store_trouble(), move || self.audit(), reporter).await;
    }

    /// Repairs the store: files that were removed or changed under the agent are written again, and those of
    /// ended cooldowns removed. Blocks.
    pub fn audit(&self) {
        if let Err(error) = self.try_audit() {
            tracing::warn!(error = chain(&error), "cannot repair the registry's store; retrying");
        }
    }

    fn try_audit(&self) -> Result<(), StoreError> {
        self.recreate()?;
        // Those of the table and those with a file are the same, most often.
        let mut keys: BTreeSet<_> = self.table().keys().into_iter().collect();
        keys.extend(self.store.keys()?);
        for key in keys {
            // A record is written before the table changes: only a second look, with the key locked, counts.
            let runtime_key = self.runtime_key(&key);
            if self.deviates(&key)?.is_some()
                && let Some(_locked) = self.try_lock(&runtime_key)
                && let Some(kept) = self.deviates(&key)?
            {
                if !self.table().has_outdated_file(&key, &kept) {
                    tracing::error!(%key, "a file of the registry's store was removed or changed under the running agent: repairing it");
                }
                self.record(&key, &kept)?;
                self.table().keep(key, kept);
            }
        }
        let is_marked = self.store.holds_mark(self.is_complete())?;
        if !is_marked || self.store.trouble().borrow().is_some() {
            self.store.mark(self.is_complete())?;
        }
        Ok(())
    }

    /// What should be kept of a key, if its file has something else. The file of an attachment whose plug or
    /// unplug is interrupted has an earlier state, and that of a reservation in progress a later one.
    fn deviates(&self, key: &Key) -> Result<Option<Kept>, StoreError> {
        let kept = self.kept(key, self.get(key));
        let is_durable = |it: &Attachment| matches!(it.state, State::Reserved | State::Attached);
        if !kept.attachment.as_ref().is_none_or(is_durable) || self.table().allocated.contains_key(key) {
            return Ok(None);
        }
        Ok((!self.store.holds(key, &kept)?).then_some(kept))
    }
}

/// `trouble` is the reason why the last write failed; `audit` repairs the store, updates `trouble`, and may
/// block.
async fn follow(
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
