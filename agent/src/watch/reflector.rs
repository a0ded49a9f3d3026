//! The loop of one watch: list, then follow; resume after an interruption, and relist only if the position is
//! lost.
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
//! The loop does the I/O. The decisions are pure: [`Inventory`] (objects and position), [`ListMode`],
//! [`Silence`] (streams without events) and [`Failures`] (retries and health).
//!
//! kube-runtime's `watcher` (5.0.0) does not fit: after a 410 as the response, and not in the stream, it
//! watches from the same position again and never relists (`State::InitListed`); it ignores
//! `retryAfterSeconds`; its position is a private field that ends with the process; and an undecodable object
//! ends its stream.

use std::{collections::BTreeMap, ops::ControlFlow, pin::pin, sync::Arc, time::Duration};

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
    list_mode::ListMode,
    object::Object,
    pages::Pages,
    scope::Scope,
    settings::Settings,
    silence::{Comparison, Finding, Silence, SilentEnd, Verdict},
    sink::{Change, Sink},
    stream::{Lines, Received},
    unconfirmed::{CAUGHT_UP, Unconfirmed},
    wire::{self, Event, Item, Undecodable},
};
use crate::{
    api::{Api, ApiError},
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
    inventory: Inventory,
    unconfirmed: Unconfirmed<T>,
    list_mode: ListMode,
    silence: Silence,
    failures: Failures,
    /// Whether the next list waits for a random time: the agents of other nodes relist as well.
    spreads_list: bool,
}

/// Ends a loop between two events.
pub(super) type Stop = oneshot::Receiver<()>;

/// A complete list.
struct Listed {
    position: String,
    newest: Option<u64>,
    lost: usize,
}

/// The times of one stream.
#[derive(Clone, Copy)]
struct Deadlines {
    opened: Instant,
    /// The server should have ended the stream long before.
    overdue: Instant,
}

/// A stream that ends sooner is reopened with backoff.
const SHORT: Duration = Duration::from_secs(1);
/// Seconds. The request asks the server to end the stream after a random time from this to its double, as
/// client-go does.
const WATCH_SECONDS: u64 = 300;
/// A stream that ends at most this much before the requested time ends as requested.
const EARLY: Duration = Duration::from_secs(5);
/// A stream that lasts longer than twice the requested time, and this, has lost its server.
const OVERDUE: Duration = Duration::from_secs(60);
/// The longest random wait before a relist.
const SPREAD: Duration = Duration::from_secs(2);
/// The interval of checkpoints. After a crash, the watch resumes that much earlier.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// The longest streamed list.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);
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
            list_mode: ListMode::default(),
            silence: Silence::new(settings.read_timeout, settings.max_backoff),
            failures: Failures::new(settings.retry_timeout, settings.max_backoff),
            spreads_list: false,
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
                if self.pause(retry, &mut stop).await.is_break() {
                    break;
                }
            }
        }
        // The second write contains the changes of a first one that failed or was in progress.
        for _ in 0..2 {
            self.checkpoint.finish().await;
            self.save().await;
        }
        self.checkpoint.finish().await;
    }

    /// Lists if there is no position, and watches until the stream ends.
    async fn round(&mut self) -> Result<(), WatchError> {
        if !self.checkpoint.is_loaded() {
            let identity = self.scope.identity(&self.api.url().await?);
            self.restore(identity).await;
        }
        let needs_list = self.inventory.position().is_none();
        if needs_list && std::mem::take(&mut self.spreads_list) {
            self.waiting(sleep(SPREAD.mul_f64(fastrand::f64()))).await;
        }
        let streams_list = needs_list && self.list_mode == ListMode::Stream;
        if needs_list && !streams_list {
            self.list().await?;
        }
        let watched = self.watch().await;
        if let Err(error) = &watched
            && streams_list
            && self.inventory.position().is_none()
            && self.list_mode.stream_failed(error)
        {
            tracing::info!(watch = self.scope.name, %error, "the server cannot stream lists; listing in pages");
            return self.list().await.map(drop);
        }
        watched
    }

    /// Restores objects and position from the checkpoint of an earlier agent.
    async fn restore(&mut self, identity: String) {
        let watch = self.scope.name;
        let Some(Checkpoint { position, objects }) = self.checkpoint.load(identity).await else { return };
        let decoded: Result<Vec<T>, _> = objects.iter().map(|json| serde_json::from_slice(json)).collect();
        let Ok(objects) = decoded else {
            tracing::warn!(watch, "cannot decode the objects of the checkpoint; relisting");
            return;
        };
        tracing::info!(watch, position, objects = objects.len(), "resuming from the checkpoint");
        let objects: BTreeMap<_, _> = objects.into_iter().map(|object| (object.key(), object)).collect();
        for (key, object) in &objects {
            self.inventory.restore(key.clone(), object.uid().to_owned());
        }
        self.unconfirmed.hold(objects, Instant::now());
        self.counters.set_objects(self.inventory.len());
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
        let mut pages = Pages::new(Arc::clone(&self.api), self.scope.clone());
        let mut newest = None;
        loop {
            let (page, bytes) = self.waiting(pages.next::<T>()).await?;
            self.counters.received(bytes);
            for item in page.items {
                newest = newest.max(item.version().and_then(number));
                self.item(item);
            }
            if page.token.is_empty() {
                let lost = self.end_list(page.position.clone());
                return Ok(Listed { position: page.position, newest, lost });
            }
        }
    }

    /// Watches from the position, until the stream ends. Without a position, the stream begins with a list.
    async fn watch(&mut self) -> Result<(), WatchError> {
        let what = format!("watch {}", self.scope.name);
        let requested = Duration::from_secs(fastrand::u64(WATCH_SECONDS..2 * WATCH_SECONDS));
        let path = self.watch_request(requested);
        if self.inventory.position().is_some() {
            self.counters.resume();
        } else {
            self.inventory.begin_list();
        }
        let api = Arc::clone(&self.api);
        let response = self.waiting(api.open(&what, &path)).await?;
        let opened = Instant::now();
        self.silence.stream_opened();
        let deadlines = Deadlines { opened, overdue: opened + 2 * requested + OVERDUE };
        let streamed = self.follow(&what, Lines::new(response.into_body()), deadlines).await;
        let lasted = opened.elapsed();
        let had_events = self.silence.had_events();
        let error = match streamed {
            Ok(()) if self.inventory.is_listing() => {
                let why = "ended before the end of its initial list".to_owned();
                return Err(WatchError::Broken { what, why });
            }
            Ok(()) => WatchError::Short { what, after: lasted, had_events },
            Err(error @ WatchError::Broken { .. })
                if lasted >= SHORT && self.inventory.position().is_some() =>
            {
                error
            }
            Err(error @ WatchError::Idle { .. }) if !self.inventory.is_listing() => error,
            Err(error) => return Err(error),
        };
        if self.inventory.expire_if_in_doubt() {
            tracing::info!(
                watch = self.scope.name,
                "relisting: an event had no usable name or UID, so that a change may be missing"
            );
        }
        match error {
            WatchError::Short { .. } if had_events && lasted < SHORT => Err(error),
            WatchError::Short { .. } if had_events => Ok(()),
            WatchError::Broken { .. } if had_events => {
                self.resume_after(&error);
                Ok(())
            }
            _ => {
                let end = SilentEnd {
                    lasted,
                    as_requested: matches!(error, WatchError::Short { .. }) && lasted + EARLY >= requested,
                    is_idle: matches!(error, WatchError::Idle { .. }),
                };
                self.silent_stream(error, end).await
            }
        }
    }

    fn watch_request(&self, requested: Duration) -> String {
        let seconds = requested.as_secs().to_string();
        let mut parameters =
            vec![("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", seconds.as_str())];
        match self.inventory.position() {
            Some(position) => parameters.push(("resourceVersion", position)),
            None => {
                parameters.extend([("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")])
            }
        }
        self.scope.request(&parameters)
    }

    /// Applies the events of a stream until it ends.
    async fn follow(
        &mut self,
        what: &str,
        mut lines: Lines,
        Deadlines { opened, overdue }: Deadlines,
    ) -> Result<(), WatchError> {
        let mut save_at = opened + CHECKPOINT_INTERVAL;
        // Only complete lines count: single bytes now and then prove nothing.
        let mut idle_at = opened + self.settings.read_timeout;
        let mut caught_up_at = opened + CAUGHT_UP;
        loop {
            let until = self.unconfirmed.until();
            // A list confirms by its end.
            let caught_up = until.filter(|_| !self.inventory.is_listing()).map(|_| caught_up_at);
            let wake_at = [Some(idle_at), Some(save_at), Some(overdue), until, caught_up];
            let wake_at = wake_at.into_iter().flatten().min().unwrap_or(idle_at);
            let received = tokio::select! {
                received = lines.receive() => Some(received),
                () = sleep_until(wake_at) => None,
            };
            let now = Instant::now();
            if received.is_none() && caught_up.is_some_and(|at| at <= now) {
                self.confirmed("a resumed stream has delivered all that was missed");
            } else if until.is_some_and(|at| at <= now) {
                self.confirmed(NO_ANSWER);
            }
            if save_at <= now {
                self.stream_stays_open(now.duration_since(opened));
                self.save().await;
                save_at = Instant::now() + CHECKPOINT_INTERVAL;
            }
            if now >= overdue {
                let why = "the server has not ended it in time".to_owned();
                return Err(WatchError::Broken { what: what.to_owned(), why });
            }
            match received {
                None if now >= idle_at => {
                    let (what, after) = (what.to_owned(), self.settings.read_timeout);
                    return Err(WatchError::Idle { what, after });
                }
                None => continue,
                Some(Received::Bytes(bytes)) => self.counters.received(bytes),
                Some(Received::End) => return Ok(()),
                Some(Received::Broken(why)) => {
                    return Err(WatchError::Broken { what: what.to_owned(), why });
                }
            }
            while let Some(line) = lines.next() {
                (idle_at, caught_up_at) =
                    (Instant::now() + self.settings.read_timeout, Instant::now() + CAUGHT_UP);
                match line {
                    Ok(line) => self.event(wire::event(what, &line)?),
                    Err(_) => {
                        let why = "a line that is too long or not UTF-8".to_owned();
                        self.undecodable(Undecodable { meta: None, why });
                        self.inventory.doubt();
                    }
                }
            }
            self.counters.set_buffered(lines.buffered());
            if self.inventory.is_listing() && opened.elapsed() > LIST_TIMEOUT {
                return Err(WatchError::ListTimeout { what: what.to_owned(), after: LIST_TIMEOUT });
            }
        }
    }

    fn event(&mut self, event: Event<T>) {
        let kind = match event {
            Event::Applied(item @ Item::Object { .. }) => {
                self.item(item);
                "applied"
            }
            Event::Deleted(meta) => {
                let removed = self.inventory.delete(meta.key(), meta.uid(), meta.resource_version.clone());
                self.removed(removed);
                "deleted"
            }
            Event::Bookmark { position, ends_initial_list } => {
                if ends_initial_list && self.inventory.is_listing() {
                    self.end_list(position);
                } else {
                    self.inventory.move_to(position);
                    if !self.inventory.is_listing() {
                        self.confirmed("a bookmark follows all that was missed");
                    }
                }
                "bookmark"
            }
            Event::Applied(Item::Undecodable(undecodable)) | Event::Unknown(undecodable) => {
                if undecodable.meta.is_some() {
                    self.undecodable(undecodable);
                    self.heard();
                } else {
                    self.undecodable(undecodable);
                    self.inventory.doubt();
                }
                return;
            }
        };
        self.heard();
        self.recovered();
        self.counters.event(kind);
    }

    /// Applies an object of an event or of a list.
    fn item(&mut self, item: Item<T>) {
        match item {
            Item::Object { object, version } => {
                let key = object.key();
                let replaced = self.inventory.apply(key.clone(), object.uid().to_owned(), version);
                self.removed(replaced);
                self.checkpoint.put(&key, &object);
                self.unconfirmed.supersede(&key);
                self.sink.apply(Change::Applied(object));
                self.counters.set_objects(self.inventory.len());
            }
            Item::Undecodable(undecodable) => self.undecodable(undecodable),
        }
    }

    fn removed(&mut self, removed: Option<Removed>) {
        let Some(Removed { key, uid }) = removed else { return };
        self.checkpoint.remove(&key);
        self.unconfirmed.supersede(&key);
        self.sink.apply(Change::Gone { key, uid });
        self.counters.set_objects(self.inventory.len());
    }

    fn undecodable(&mut self, Undecodable { meta, why }: Undecodable) {
        self.counters.undecodable();
        tracing::warn!(watch = self.scope.name, %why, "skipping an undecodable object");
        if let Some(meta) = meta {
            self.inventory.pass_over(&meta.key(), meta.resource_version);
        }
    }

    /// Completes a list, and returns the number of objects whose deletion it revealed.
    fn end_list(&mut self, position: String) -> usize {
        let lost = self.inventory.end_list(position);
        let count = lost.len();
        lost.into_iter().for_each(|removed| self.removed(Some(removed)));
        self.checkpoint.replace_all();
        self.counters.list();
        self.list_mode.list_completed();
        tracing::info!(watch = self.scope.name, objects = self.inventory.len(), lost = count, "listed");
        self.confirmed("a list names them");
        self.synced();
        if self.silence.is_healthy_after_list() {
            self.recovered();
        }
        count
    }

    fn synced(&mut self) {
        if self.inventory.set_synced() {
            self.sink.apply(Change::Synced);
        }
    }

    fn heard(&mut self) {
        if self.silence.event() {
            self.recovered_as(FOLLOWING);
        }
    }

    fn stream_stays_open(&mut self, open: Duration) {
        if self.silence.is_healthy_after(open) && !self.inventory.is_listing() && self.inventory.has_synced()
        {
            self.recovered();
        }
    }

    /// Reacts to a stream without events. `Ok` if the next one may be opened at once.
    async fn silent_stream(&mut self, error: WatchError, end: SilentEnd) -> Result<(), WatchError> {
        let compares = self.silence.stream_was_silent(&end, Instant::now());
        if compares && self.inventory.position().is_some() {
            self.compare_with_list(end.lasted).await?;
        }
        match self.silence.verdict(&end) {
            Verdict::Deaf => Err(WatchError::Deaf { what: format!("watch {}", self.scope.name) }),
            Verdict::Fail => Err(error),
            Verdict::Resume if end.as_requested => Ok(()),
            Verdict::Resume => {
                self.resume_after(&error);
                Ok(())
            }
        }
    }

    /// Lists to find out why streams are silent, and to make the inventory current in any case.
    async fn compare_with_list(&mut self, lasted: Duration) -> Result<(), WatchError> {
        let position = self.inventory.position().unwrap_or_default().to_owned();
        let Listed { position: server, newest, lost } = match self.list().await {
            Ok(listed) => listed,
            Err(error) => {
                self.silence.comparison_failed(Instant::now());
                return Err(error);
            }
        };
        let watch = self.scope.name;
        let comparison = Comparison { ours: number(&position), server: number(&server), newest, lost };
        match self.silence.compare(&comparison, lasted, Instant::now()) {
            Finding::OtherHistory => {
                tracing::warn!(watch, position, server, "the API server has another history; relisted");
                self.recovered();
            }
            Finding::MissedChanges => {
                tracing::warn!(
                    watch,
                    position,
                    server,
                    "a relist revealed changes that the watch had not delivered"
                );
                self.failures.failing_since(Instant::now().checked_sub(lasted));
            }
            Finding::NoChanges { is_healthy: true } => {
                self.recovered_as("no events from the watch; a relist has shown that nothing changed");
            }
            Finding::NoChanges { is_healthy: false } => {}
        }
        Ok(())
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
        match error {
            // Token or certificate may have been renewed.
            WatchError::Api(error) if error.is_unauthorized() => self.api.reload(),
            WatchError::Api(ApiError::Connect { .. }) => self.api.reload_after_connect_error(),
            _ => {}
        }
        if error.is_unreachable() {
            self.confirmed("the API server cannot be asked");
        }
        self.inventory.abort_list();
        let now = Instant::now();
        if error.is_expired() {
            tracing::info!(watch, %error, "the position has expired; relisting");
            self.inventory.expire();
            // The first list is one node's; those after a restart of the API server come from all nodes.
            self.spreads_list = self.inventory.has_synced();
            self.failures.expired(error, now)
        } else if error.is_not_found() {
            self.confirmed("the API server does not have the resource");
            if !self.inventory.has_synced() {
                // A resource that does not exist has no objects.
                self.sink.apply(Change::Synced);
            }
            self.failures.not_found(self.inventory.has_synced(), now)
        } else {
            let retry = self.failures.failed(error, now);
            let (why, wait_ms) = (format!("{error}{}", error.remedy()), retry.wait.as_millis());
            tracing::warn!(watch, error = why, wait_ms, "the watch failed; retrying");
            retry
        }
    }

    /// Reports a failure and waits.
    async fn pause(&mut self, retry: Retry, stop: &mut Stop) -> ControlFlow<()> {
        match retry.health {
            Some(Report::Starting(why)) => self.health.starting(why),
            Some(Report::Unhealthy(why)) => self.health.unhealthy(why),
            None => {}
        }
        self.save().await;
        let end = Instant::now() + retry.wait;
        if let Some(unhealthy_at) = retry.unhealthy_at {
            if self.waiting(timeout_at(unhealthy_at, &mut *stop)).await.is_ok() {
                return ControlFlow::Break(());
            }
            let seconds = self.settings.retry_timeout.as_secs();
            self.health.unhealthy(format!("the API server has not been followed for {seconds} s"));
        }
        match self.waiting(timeout_at(end, stop)).await {
            Ok(_) => ControlFlow::Break(()),
            Err(_) => ControlFlow::Continue(()),
        }
    }

    /// Starts to make the changes durable. A list in progress has no position yet.
    async fn save(&mut self) {
        if let Some(position) = self.inventory.position().filter(|_| !self.inventory.is_listing()) {
            self.checkpoint.save(position).await;
        }
        self.counters.set_unsaved(self.checkpoint.unsaved());
    }
}

/// A position as a number. The API promises that positions of one resource can be compared (KEP-5504).
fn number(position: &str) -> Option<u64> {
    position.parse().ok()
}
