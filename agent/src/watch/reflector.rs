//! The loop of one watch: list, then follow; resume after an interruption, and relist if the position is lost
//! or the watch does not work.
//!
//! ```text
//!             ┌──────────────── checkpoint ─────────────────────┐
//!             │                                                 ▼
//!   start ────┴─ none ───────────▶ list (streamed, or in pages) ─▶ watch from the position ──┐
//!                                  ▲                               ▲  │ each event and each  │
//!                                  │ 410 Expired, in the stream    │  │ bookmark moves it    │
//!                                  └── or as the response ◀────────┼──┘                      │
//!                                                                  └── any other end ◀───────┘
//! ```
//!
//! [`Liveness`] leads to further lists while the watch fails or is silent; they keep the position.
//!
//! The loop does the I/O, [`follow`] that of a stream. The decisions are pure: [`Inventory`] (objects and
//! position), [`Liveness`], and [`Failures`] (retries and health).
//!
//! kube-runtime's `watcher` (5.0.0) does not fit: after a 410 as the response, and not in the stream, it
//! watches from the same position again and never relists (`State::InitListed`); it ignores
//! `retryAfterSeconds`; its position is a private field that ends with the process; and an undecodable object
//! ends its stream.

mod follow;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    checkpoint::{Checkpoint, CheckpointStore},
    checkpoint_writer::CheckpointWriter,
    counters::Counters,
    error::WatchError,
    failures::{Failures, Report, Retry},
    inventory::{Inventory, Removed},
    liveness::{Comparison, Finding, Liveness},
    object::{HOLD, Object},
    pages::Pages,
    scope::Scope,
    settings::Settings,
    sink::{Change, Sink},
    unconfirmed::Unconfirmed,
    wire::{Item, Undecodable},
};
use crate::{
    api::Api,
    health::{Reporter, State},
    metrics::WatchMetrics,
};

pub(super) struct Reflector<T, S> {
    scope: Scope,
    api: Arc<Api>,
    sink: S,
    settings: Settings,
    checkpoint: CheckpointWriter,
    counters: Counters,
    health: Reporter,
    inventory: Inventory<T>,
    unconfirmed: Unconfirmed<T>,
    liveness: Liveness,
    failures: Failures,
    /// Whether the next list waits for a random time: the agents of other nodes relist as well.
    spreads_list: bool,
    /// Whether the server can stream lists (`sendInitialEvents`), which costs it less memory than pages.
    has_streamed_lists: bool,
}

/// Ends a loop between two events.
pub(super) type Stop = oneshot::Receiver<()>;

/// A complete list.
struct Listed {
    position: String,
    newest: Option<u64>,
    lost: usize,
}

/// The longest random wait before a relist. A restart of the API server expires the positions of all nodes:
/// 5000 nodes then send 500 lists per second for each source, and an ADD waits for a change ten seconds
/// longer.
const SPREAD: Duration = Duration::from_secs(10);
/// How long the objects of a checkpoint wait for a list, once their position has expired.
const RELIST: Duration = Duration::from_secs(30);
/// The longest random wait after the server has answered another watch.
const AFTER_ANSWER: Duration = Duration::from_secs(1);
const FOLLOWING: &str = "following the changes";
const NO_ANSWER: &str = "the API server has not confirmed them in time";

// === impl Reflector ===

impl<T: Object, S: Sink<T>> Reflector<T, S> {
    pub(super) fn new(
        scope: Scope,
        api: Arc<Api>,
        sink: S,
        store: Arc<dyn CheckpointStore>,
        settings: Settings,
        metrics: WatchMetrics,
        health: Reporter,
    ) -> Self {
        Self {
            checkpoint: CheckpointWriter::new(store, scope.name),
            counters: Counters::new(scope.name, metrics),
            inventory: Inventory::default(),
            unconfirmed: Unconfirmed::default(),
            liveness: Liveness::new(settings.read_timeout),
            failures: Failures::new(settings.retry_timeout, settings.max_backoff),
            spreads_list: false,
            has_streamed_lists: true,
            scope,
            api,
            sink,
            settings,
            health,
        }
    }

    /// Runs until stopped, and then makes the position durable. Never gives up.
    pub(super) async fn run(mut self, mut stop: Stop) {
        loop {
            let round = tokio::select! {
                biased;
                _ = &mut stop => break,
                round = self.round() => round,
            };
            if let Err(error) = round {
                let retry = self.failed(&error);
                // A server that has asked for a wait is not away.
                let until_answer = error.is_unreachable();
                if self.pause(retry, until_answer, &mut stop).await.is_break() {
                    break;
                }
            }
        }
        // The second write contains the changes of a first one that failed or was in progress.
        for _ in 0..2 {
            self.checkpoint.finish().await;
            self.checkpoint.retry_at_once();
            self.save().await;
        }
        self.checkpoint.finish().await;
        self.counters.ended();
    }

    /// Lists if there is no position or the watch does not work, and watches until the stream ends.
    async fn round(&mut self) -> Result<(), WatchError> {
        if !self.checkpoint.is_loaded() {
            let identity = self.scope.identity(&self.api.url().await?);
            self.restore(identity).await;
        }
        if self.inventory.position().is_some() {
            if self.liveness.list_is_due(Instant::now()) {
                self.list_instead().await?;
            }
            return self.watch().await;
        }
        if std::mem::take(&mut self.spreads_list) {
            self.waiting(sleep(SPREAD.mul_f64(fastrand::f64()))).await;
        }
        if !self.has_streamed_lists || !self.liveness.can_stream_lists() {
            if let Err(error) = self.list().await {
                self.liveness.list_failed();
                return Err(error);
            }
            return self.watch().await;
        }
        match self.watch().await {
            Err(error) if error.is_unsupported() && self.inventory.position().is_none() => {
                tracing::info!(watch = self.scope.name, %error, "the server cannot stream lists; listing in pages");
                self.has_streamed_lists = false;
                self.list().await.map(drop)
            }
            watched => watched,
        }
    }

    /// Restores objects and position from the checkpoint of an earlier agent.
    async fn restore(&mut self, identity: String) {
        let watch = self.scope.name;
        let Some(checkpoint) = self.checkpoint.load(identity).await else { return };
        let Checkpoint { position, objects, written } = checkpoint;
        let decoded = objects.iter().map(|json| serde_json::from_str::<T>(json.get()));
        let decoded: Result<Vec<_>, _> = decoded.collect();
        let Ok(objects) = decoded else {
            tracing::warn!(watch, "cannot decode the objects of the checkpoint; relisting");
            return;
        };
        tracing::info!(watch, position, objects = objects.len(), "resuming from the checkpoint");
        let objects = objects.into_iter().map(|object| (object.key(), Arc::new(object)));
        let objects: BTreeMap<_, _> = objects.collect();
        for (key, object) in &objects {
            object.saved();
            self.inventory.restore(key.clone(), Arc::clone(object));
        }
        self.unconfirmed.hold(objects, Instant::now() + HOLD);
        self.counters.set_objects(self.inventory.len());
        if let Some(written) = written {
            self.counters.set_restored(written);
        }
        self.inventory.resume(position);
    }

    /// Passes the objects of the checkpoint on.
    fn confirmed(&mut self, why: &'static str) {
        let Some(objects) = self.unconfirmed.release() else { return };
        tracing::info!(watch = self.scope.name, why, "using the objects of the checkpoint");
        objects.for_each(|object| self.sink.apply(Change::Applied(object)));
        self.synced();
    }

    /// Waits; meanwhile, the objects of the checkpoint do not wait too long for their confirmation.
    async fn waiting<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        if let Some(until) = self.unconfirmed.until() {
            if let Ok(output) = timeout_at(until, &mut future).await {
                return output;
            }
            self.confirmed(NO_ANSWER);
        }
        future.await
    }

    /// Lists all objects in pages.
    async fn list(&mut self) -> Result<Listed, WatchError> {
        self.inventory.begin_list();
        let known = self.inventory.last_position();
        let mut pages = Pages::new(Arc::clone(&self.api), self.scope.clone(), known);
        let mut newest = None;
        loop {
            let (page, bytes) = match self.waiting(pages.next::<T>()).await {
                Ok(page) => page,
                Err(error) if pages.restart(&error) => {
                    tracing::info!(watch = self.scope.name, %error, "beginning the list again");
                    self.inventory.begin_list();
                    newest = None;
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.counters.received(bytes);
            for item in page.items {
                newest = newest.max(item.version().and_then(number));
                self.item(item);
            }
            if page.token.is_empty() {
                let lost = self.end_list(page.position.clone())?;
                return Ok(Listed { position: page.position, newest, lost });
            }
        }
    }

    /// Lists because the watch fails or is silent: the inventory becomes current in any case.
    async fn list_instead(&mut self) -> Result<(), WatchError> {
        let position = self.inventory.position().unwrap_or_default().to_owned();
        let Listed { position: server, newest, lost } = match self.list().await {
            Ok(listed) => listed,
            Err(error) => {
                self.liveness.list_failed();
                return Err(error);
            }
        };
        let watch = self.scope.name;
        let comparison = Comparison { ours: number(&position), server: number(&server), newest, lost };
        match self.liveness.compare(&comparison, Instant::now()) {
            Finding::OtherHistory => {
                tracing::warn!(watch, position, server, "the API server has another history; relisted");
                self.recovered();
            }
            Finding::Deaf => {
                tracing::warn!(
                    watch,
                    position,
                    server,
                    "a list revealed changes that the watch had not delivered"
                );
                self.failures.failing_since(Instant::now().checked_sub(self.liveness.silence()));
                return Err(WatchError::Deaf { what: format!("watch {watch}") });
            }
            Finding::Quiet => {
                self.recovered_as("no events from the watch; a list has shown that nothing changed")
            }
            Finding::Open => {}
        }
        Ok(())
    }

    /// Applies an object of an event or of a list.
    fn item(&mut self, item: Item<T>) {
        match item {
            Item::Object { key, object, version } => {
                let takes_all = self.unconfirmed.is_holding() || self.inventory.is_incomplete();
                let known = self.inventory.get(&key).filter(|_| !takes_all);
                if known.is_some_and(|known| object.is_repeated_from(known)) {
                    return self.inventory.pass_over(&key, version);
                }
                let object = Arc::new(object);
                let replaced = self.inventory.apply(&key, Arc::clone(&object), version);
                self.checkpoint.changed(&key);
                // A list has current versions only.
                let current = if self.inventory.is_listing() {
                    self.unconfirmed.supersede(&key);
                    Some(object)
                } else {
                    self.unconfirmed.replace(&key, object)
                };
                match (current, replaced) {
                    (Some(object), Some(Removed { key, uid })) => self.sink.replace(object, key, uid),
                    (Some(object), None) => self.sink.apply(Change::Applied(object)),
                    (None, Some(Removed { key, uid })) => self.sink.apply(Change::Gone { key, uid }),
                    (None, None) => {}
                }
                self.count();
            }
            Item::Undecodable(undecodable) => self.undecodable(undecodable),
        }
    }

    fn removed(&mut self, removed: Option<Removed>) {
        let Some(Removed { key, uid }) = removed else { return };
        self.checkpoint.changed(&key);
        self.unconfirmed.supersede(&key);
        self.sink.apply(Change::Gone { key, uid });
        self.count();
    }

    fn count(&self) {
        let objects = self.inventory.len();
        self.counters.set_objects(objects);
        self.counters.set_unsaved(self.checkpoint.unsaved(objects));
    }

    fn undecodable(&mut self, Undecodable { meta, why }: Undecodable) {
        self.counters.undecodable.inc();
        tracing::warn!(watch = self.scope.name, %why, "skipping an undecodable object");
        match meta {
            Some(meta) => self.inventory.pass_over(&meta.key(), meta.resource_version),
            None => self.inventory.doubt(),
        }
    }

    /// Completes a list, and returns the number of objects whose deletion it revealed.
    fn end_list(&mut self, position: String) -> Result<usize, WatchError> {
        let Some(lost) = self.inventory.end_list(position) else {
            return Err(WatchError::Garbled { what: self.scope.name.to_owned() });
        };
        let count = lost.len();
        lost.into_iter().for_each(|removed| self.removed(Some(removed)));
        self.checkpoint.replace_all();
        self.counters.lists.inc();
        self.counters.set_current();
        tracing::info!(watch = self.scope.name, objects = self.inventory.len(), lost = count, "listed");
        self.confirmed("a list names them");
        self.synced();
        if self.liveness.is_healthy_after_list() {
            self.recovered();
        }
        Ok(count)
    }

    fn synced(&mut self) {
        if self.inventory.set_synced() {
            self.sink.apply(Change::Synced);
        }
    }

    /// Counts a failure after which the watch resumes at once.
    fn resume_after(&self, error: &WatchError) {
        self.counters.failure(error.reason());
        tracing::debug!(watch = self.scope.name, %error, "resuming");
    }

    fn recovered(&mut self) {
        if self.failures.is_failing() || self.health.state() != Some(State::Healthy) {
            self.recovered_as(FOLLOWING);
        }
    }

    fn recovered_as(&mut self, how: &str) {
        self.failures.recovered();
        self.health.healthy(how);
    }

    /// Prepares the next attempt after a failure.
    fn failed(&mut self, error: &WatchError) -> Retry {
        let watch = self.scope.name;
        self.counters.failure(error.reason());
        if error.is_unreachable() {
            self.confirmed("the API server cannot be asked");
        }
        self.inventory.abort_list();
        let now = Instant::now();
        if error.is_expired() {
            tracing::info!(watch, %error, "the position has expired; relisting");
            self.inventory.expire();
            self.unconfirmed.extend(now + RELIST);
            // The first list is one node's; those after a restart of the API server come from all nodes.
            self.spreads_list = self.inventory.has_synced();
            self.failures.expired(error, now)
        } else if error.is_not_found() {
            self.confirmed("the API server does not have the resource");
            if !self.inventory.has_synced() {
                // A resource that does not exist has no objects.
                self.sink.apply(Change::Synced);
                self.counters.absent();
            }
            self.failures.not_found(self.inventory.has_synced(), T::IS_OPTIONAL, now)
        } else {
            let stand_in = if self.liveness.lists_stand_in() {
                "; meanwhile, lists keep the known objects current"
            } else {
                ""
            };
            let why = format!("{error}{}{stand_in}", error.remedy());
            // A list that stands in for the watch is not late because the watch backs off. None is due
            // without a position, and none is asked of a server that is away.
            let has_position = self.inventory.position().is_some();
            let list_in =
                if has_position && !error.is_unreachable() { self.liveness.list_in(now) } else { None };
            let retry = self.failures.failed(why.clone(), error.retry_after(), list_in, now);
            let wait_ms = retry.wait.as_millis();
            if has_position && matches!(error, WatchError::Idle { .. }) {
                tracing::info!(watch, why, wait_ms, "a list will tell whether the watch is only quiet");
            } else {
                tracing::warn!(watch, error = why, wait_ms, "the watch failed; retrying");
            }
            retry
        }
    }

    /// Reports a failure and waits. `until_answer`: at most until the server answers another request.
    async fn pause(&mut self, retry: Retry, until_answer: bool, stop: &mut Stop) -> ControlFlow<()> {
        let end = Instant::now() + retry.wait;
        let api = Arc::clone(&self.api);
        let mut answers_again = pin!(api.answers_again());
        answers_again.as_mut().enable();
        let mut over = pin!(async move {
            let answer = async {
                answers_again.await;
                sleep(AFTER_ANSWER.mul_f64(fastrand::f64())).await;
            };
            tokio::select! {
                () = sleep_until(end) => {}
                () = answer, if until_answer => {}
            }
        });
        let why = match retry.health {
            Some(Report::Healthy(why)) => {
                self.health.healthy(why.clone());
                why
            }
            Some(Report::Starting(why)) => {
                self.health.starting(why.clone());
                why
            }
            Some(Report::Unhealthy(why)) => {
                self.health.unhealthy(why.clone());
                why
            }
            None => String::new(),
        };
        self.save().await;
        if let Some(unhealthy_at) = retry.unhealthy_at {
            if let Ok(flow) = self.waiting(timeout_at(unhealthy_at, first(stop, over.as_mut()))).await {
                return flow;
            }
            let seconds = self.settings.retry_timeout.as_secs();
            self.health.unhealthy(format!(
                "the API server has not been followed for {seconds} s: {why}; running pods keep their network: check \
                 the API server, and this node's way to it"
            ));
        }
        self.waiting(first(stop, over)).await
    }

    /// Starts to make the changes durable, unless some may be missing: a restarted agent gets those again.
    async fn save(&mut self) {
        if let Some(position) = self.inventory.certain_position() {
            self.checkpoint.save(position, &self.inventory).await;
            if self.checkpoint.take_lost_objects() {
                self.inventory.miss();
            }
        }
        self.counters.set_unsaved(self.checkpoint.unsaved(self.inventory.len()));
    }
}

/// Breaks if the loop is stopped before a wait is over.
async fn first(stop: &mut Stop, over: Pin<&mut impl Future<Output = ()>>) -> ControlFlow<()> {
    tokio::select! {
        biased;
        _ = stop => ControlFlow::Break(()),
        () = over => ControlFlow::Continue(()),
    }
}

/// A position as a number. The API promises that positions of one resource can be compared (KEP-5504).
fn number(position: &str) -> Option<u64> {
    position.parse().ok()
}
