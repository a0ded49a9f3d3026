//! The loop of one watch: list, then follow, resume, and list again only when there is no other way.
//!
//! ```text
//!             ┌──────────── kept by an earlier agent ───────────┐
//!             │                                                 ▼
//!   start ────┴─ nothing kept ──▶ list (streamed, or in pages) ─▶ watch from the position ──┐
//!                                  ▲                              ▲   │ each event and each  │
//!                                  │ 410 Expired, in the stream   │   │ bookmark moves it    │
//!                                  └── or as the answer ◀─────────┼───┘                      │
//!                                                                 └── any other end ◀────────┘
//! ```
//!
//! Why not kube-runtime's `watcher` (5.0.0): it opens the watch again with the same position when the answer, and not the
//! stream, is a 410 (`State::InitListed`), so that it never lists again; it does not know `retryAfterSeconds`; its
//! position is a private field that ends with the process; and an object that cannot be decoded ends its stream.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Change, Memory, Settings, Sink,
    backoff::Backoff,
    client::Api,
    error::WatchError,
    lines::{Lines, Piece},
    objects::{Metadata, Object, ObjectKey},
    patience::count,
    wire::{self, Event, Page},
};
use crate::{
    health::Reporter,
    metrics::{EventLabels, WatchMetrics},
};

/// What is watched.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The source's name, in logs, metrics and what is kept of it.
    pub name: &'static str,
    /// Path of the collection, such as `/api/v1/pods`.
    pub path: &'static str,
    /// Such as `("fieldSelector", "spec.nodeName=node-1")`.
    pub selector: (&'static str, String),
}

/// One watch.
pub(super) struct Source<T, S> {
    pub scope: Scope,
    pub api: Arc<Api>,
    pub sink: S,
    pub memory: Arc<dyn Memory>,
    pub settings: Settings,
    pub metrics: WatchMetrics,
    pub health: Reporter,
    pub state: State<T>,
}

/// Where a watch stands.
pub(super) struct State<T> {
    /// What the position belongs to: another server, node or selector has other positions. `None` until it is known.
    pub identity: Option<String>,
    /// Up to where all changes were applied; `None` before the first list, and after it expired.
    pub position: Option<String>,
    /// What was applied and is not gone: key and UID.
    pub known: HashMap<ObjectKey, String>,
    /// Those that the list which is coming in has named; `None` while there is none.
    pub listed: Option<HashSet<ObjectKey>>,
    pub synced: bool,
    /// Whether the server may know how to stream a list.
    pub streams_lists: bool,
    /// Whether to wait a random moment before the next list: other nodes' agents will list too.
    pub expired: bool,
    /// How many streams in a row ended because nothing came.
    pub idle: u32,
    pub failing_since: Option<Instant>,
    pub backoff: Backoff,
    pub unsaved: HashMap<ObjectKey, Option<T>>,
    pub moved: bool,
    pub saving: Option<JoinHandle<()>>,
}

/// Asks a loop to end, between two events.
pub(super) type Stop = oneshot::Receiver<()>;

/// The most objects in a page, as client-go has it.
const PAGE: usize = 500;
/// A watch that ends sooner, with nothing in it, counts as a failure (client-go's "very short watch").
const SHORT: Duration = Duration::from_secs(1);
/// The server ends a watch after a random time from this to its double, in seconds (client-go's reflector).
const WATCH_SECONDS: u64 = 300;
/// The longest random wait before a list, when a position has expired.
const SPREAD: Duration = Duration::from_secs(2);
/// How long changes may wait to become durable. A crash loses as much of the position, never of the pods.
const SAVE: Duration = Duration::from_secs(1);
/// How long a streamed list may take.
const LIST: Duration = Duration::from_secs(120);

// === impl Source ===

impl<T: Object, S: Sink<T>> Source<T, S> {
    pub(super) fn new(
        scope: Scope,
        api: Arc<Api>,
        sink: S,
        memory: Arc<dyn Memory>,
        settings: Settings,
        metrics: WatchMetrics,
        health: Reporter,
    ) -> Self {
        let state = State {
            identity: None,
            position: None,
            known: HashMap::new(),
            listed: None,
            synced: false,
            streams_lists: true,
            expired: false,
            idle: 0,
            failing_since: None,
            backoff: Backoff::new(settings.max_backoff),
            unsaved: HashMap::new(),
            moved: false,
            saving: None,
        };
        Self { scope, api, sink, memory, settings, metrics, health, state }
    }

    /// Watches until it is told to stop. It never gives up.
    pub(super) async fn run(mut self, mut stop: Stop) {
        loop {
            let round = tokio::select! {
                biased;
                _ = &mut stop => break,
                round = self.round() => round,
            };
            let wait = round.err().map(|error| self.failed(&error));
            if let Some(wait) = wait
                && self.pause(wait, &mut stop).await.is_break()
            {
                break;
            }
        }
        // A write on its way first, so that the last one is the last.
        if let Some(saving) = self.state.saving.take() {
            let _ = saving.await;
        }
        self.save();
        if let Some(saving) = self.state.saving.take() {
            let _ = saving.await;
        }
    }

    /// Lists or watches, until it ends.
    async fn round(&mut self) -> Result<(), WatchError> {
        if self.state.identity.is_none() {
            let (name, value) = &self.scope.selector;
            let identity = format!("{} {} {name}={value}", self.api.url().await?, self.scope.path);
            self.remember(identity).await;
        }
        if self.state.position.is_none() && std::mem::take(&mut self.state.expired) {
            sleep(SPREAD.mul_f64(fastrand::f64())).await;
        }
        if self.state.idle > 1 {
            self.check_history().await?;
        }
        if self.state.position.is_none() && !self.state.streams_lists {
            self.list().await?;
        }
        let streams_list = self.state.position.is_none();
        match self.watch().await {
            // The server is too old for it, or has it switched off, or cannot do it now: pages always work.
            Err(error) if streams_list && self.state.position.is_none() && may_be_the_streaming(&error) => {
                tracing::info!(source = self.scope.name, %error, "the list cannot be streamed: getting it in pages");
                self.state.streams_lists = false;
                self.list().await
            }
            result => result,
        }
    }

    /// Lists all objects, page by page.
    async fn list(&mut self) -> Result<(), WatchError> {
        let what = format!("list {}", self.scope.name);
        self.begin_list();
        let mut token = String::new();
        loop {
            let limit = PAGE.to_string();
            let path = self.path(&[("limit", &limit), ("continue", &token)]);
            let page = self.api.get(&what, &path).await?;
            self.count_bytes(page.len());
            let page: Page<'_> = serde_json::from_slice(&page)
                .map_err(|error| WatchError::Answer { what: what.clone(), why: error.to_string() })?;
            for item in page.items.into_iter().flatten() {
                match serde_json::from_str::<T>(item.get()) {
                    Ok(object) => self.apply(object),
                    Err(error) => self.undecodable(&error),
                }
            }
            if page.metadata.r#continue.is_empty() {
                self.end_list(page.metadata.resource_version);
                return Ok(());
            }
            token = page.metadata.r#continue;
        }
    }

    /// Follows the changes from the position; from nothing, all objects come first.
    async fn watch(&mut self) -> Result<(), WatchError> {
        let what = format!("watch {}", self.scope.name);
        let seconds = fastrand::u64(WATCH_SECONDS..2 * WATCH_SECONDS).to_string();
        let mut query =
            vec![("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", &*seconds)];
        let position = self.state.position.clone();
        match &position {
            Some(position) => {
                query.push(("resourceVersion", position));
                self.metrics.resumes.get_or_create(&self.labels()).inc();
            }
            None => {
                query.extend([("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]);
                self.begin_list();
            }
        }
        let response = self.api.open(&what, &self.path(&query)).await?;
        let opened = Instant::now();
        let streamed = self.follow(&what, Lines::new(response.into_body()), opened).await;
        match streamed {
            Ok(0) if opened.elapsed() < SHORT => Err(WatchError::Short { what }),
            Ok(_) => Ok(()),
            // It went well for a while: resume at once.
            Err(WatchError::Broken { .. }) if opened.elapsed() >= SHORT && self.state.position.is_some() => {
                self.metrics.failures.get_or_create(&self.failure("broken")).inc();
                tracing::debug!(source = self.scope.name, "the stream broke: resuming");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Applies a stream's events until it ends, and says how many there were.
    async fn follow(&mut self, what: &str, mut lines: Lines, opened: Instant) -> Result<u64, WatchError> {
        let mut events = 0;
        let mut save_at = opened + SAVE;
        loop {
            let idle_at = Instant::now() + self.settings.read_timeout;
            let piece = loop {
                let piece = tokio::select! {
                    piece = lines.more() => Some(piece),
                    () = sleep_until(idle_at.min(save_at)) => None,
                };
                if save_at <= Instant::now() {
                    self.settled();
                    self.save();
                    save_at = Instant::now() + SAVE;
                }
                if let Some(piece) = piece {
                    break piece;
                }
                if Instant::now() >= idle_at {
                    self.state.idle += 1;
                    return Err(WatchError::Idle {
                        what: what.to_owned(),
                        after: self.settings.read_timeout,
                    });
                }
            };
            match piece {
                Piece::More(bytes) => self.count_bytes(bytes),
                Piece::End => return Ok(events),
                Piece::Broken(why) => return Err(WatchError::Broken { what: what.to_owned(), why }),
            }
            while let Some(line) = lines.next() {
                events += 1;
                match line {
                    Ok(line) => self.handle(wire::event(what, line)?),
                    Err(_) => self.undecodable(&format_args!("a line is longer than any object")),
                }
            }
            self.metrics.buffered.get_or_create(&self.labels()).set(count(lines.buffered()));
            if self.state.listed.is_some() && opened.elapsed() > LIST {
                return Err(WatchError::Slow { what: what.to_owned(), after: LIST });
            }
        }
    }

    fn handle(&mut self, event: Event<T>) {
        self.state.idle = 0;
        let kind = match event {
            Event::Applied(object) => {
                self.apply(object);
                "applied"
            }
            Event::Deleted(mut object) => {
                let position = std::mem::take(&mut object.metadata_mut().resource_version);
                let Metadata { uid, .. } = object.metadata();
                self.remove(&object.metadata().key(), Some(uid));
                self.moved_to(position);
                "deleted"
            }
            Event::Bookmark { position, initial_end } => {
                if initial_end && self.state.listed.is_some() {
                    self.end_list(position);
                } else {
                    self.moved_to(position);
                }
                "bookmark"
            }
            Event::Undecodable { position, why } => {
                self.undecodable(&why);
                position.into_iter().for_each(|position| self.moved_to(position));
                return;
            }
        };
        self.recovered();
        self.metrics.events.get_or_create(&EventLabels { source: self.scope.name, kind }).inc();
    }

    fn apply(&mut self, mut object: T) {
        let position = std::mem::take(&mut object.metadata_mut().resource_version);
        let (key, uid) = (object.metadata().key(), object.metadata().uid.clone());
        if let Some(listed) = &mut self.state.listed {
            listed.insert(key.clone());
        }
        // Deleted and made again while we did not look.
        if let Some(before) = self.state.known.get(&key).filter(|before| **before != uid) {
            let gone = Change::Gone { key: key.clone(), uid: before.clone() };
            self.sink.apply(gone);
        }
        self.state.known.insert(key.clone(), uid);
        self.state.unsaved.insert(key, Some(object.clone()));
        self.sink.apply(Change::Applied(object));
        self.count_objects();
        self.moved_to(position);
    }

    /// Removes what is at a place, or, with a UID, only that: a late event about an older object of the name must not
    /// take the newer one.
    fn remove(&mut self, key: &ObjectKey, uid: Option<&String>) {
        let known = self.state.known.get(key);
        let Some(known) = known.filter(|known| uid.is_none_or(|uid| uid == *known)).cloned() else { return };
        self.state.known.remove(key);
        self.state.unsaved.insert(key.clone(), None);
        self.sink.apply(Change::Gone { key: key.clone(), uid: known });
        self.count_objects();
    }

    fn begin_list(&mut self) {
        self.metrics.lists.get_or_create(&self.labels()).inc();
        self.state.listed = Some(HashSet::new());
    }

    /// All objects are there: what was known before and is not among them is gone, though no event told of it.
    fn end_list(&mut self, position: String) {
        let listed = self.state.listed.take().unwrap_or_default();
        let mut lost: Vec<_> =
            self.state.known.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        lost.sort();
        for key in &lost {
            self.remove(key, None);
        }
        self.moved_to(position);
        tracing::info!(source = self.scope.name, objects = listed.len(), lost = lost.len(), "listed");
        self.synced();
        self.recovered();
    }

    /// The position of an event within a list is none to resume from: the list comes in no order.
    fn moved_to(&mut self, position: String) {
        if self.state.listed.is_none() && !position.is_empty() {
            self.state.position = Some(position);
            self.state.moved = true;
        }
    }

    pub(super) fn synced(&mut self) {
        if !std::mem::replace(&mut self.state.synced, true) {
            self.sink.apply(Change::Synced);
        }
    }

    /// Whether the server is still in the history that our position is of. One that was restored from an older copy
    /// says nothing to a watch from its future, for hours: no event, no bookmark, no error.
    async fn check_history(&mut self) -> Result<(), WatchError> {
        let Some(position) = &self.state.position else { return Ok(()) };
        let what = format!("look at the history of {}", self.scope.name);
        let page = self.api.get(&what, &self.path(&[("limit", "1")])).await?;
        let page: Page<'_> = serde_json::from_slice(&page)
            .map_err(|error| WatchError::Answer { what, why: error.to_string() })?;
        let number = |text: &str| text.parse::<u64>().ok();
        if number(&page.metadata.resource_version) < number(position) {
            let server = page.metadata.resource_version;
            tracing::warn!(
                source = self.scope.name,
                position,
                server,
                "the API server's history is another one: listing"
            );
            self.state.position = None;
        }
        self.state.idle = 0;
        Ok(())
    }

    fn path(&self, query: &[(&str, &str)]) -> String {
        let mut encoded = form_urlencoded::Serializer::new(String::new());
        encoded.append_pair(self.scope.selector.0, &self.scope.selector.1);
        for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
            encoded.append_pair(name, value);
        }
        format!("{}?{}", self.scope.path, encoded.finish())
    }

    fn undecodable(&self, why: &dyn std::fmt::Display) {
        self.metrics.undecodable.get_or_create(&self.labels()).inc();
        tracing::warn!(source = self.scope.name, %why, "an object of the API is not understood, and is passed over");
    }
}

/// Whether a list failed perhaps only because it was to be streamed: the server said so, or failed without saying why
/// (API servers on etcd 3.4 do). What concerns any request is not changed by asking in another way.
fn may_be_the_streaming(error: &WatchError) -> bool {
    let server = matches!(error, WatchError::Refused { status, retry_after: None, .. } if status.code >= 500);
    error.is_unsupported()
        || server
        || matches!(error, WatchError::Short { .. } | WatchError::Slow { .. } | WatchError::Idle { .. })
}
