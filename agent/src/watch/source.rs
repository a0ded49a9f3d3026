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
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Change, Memory, Remembered, Settings, Sink,
    keep::{Keeper, Place},
    lines::{Lines, Piece},
    object::{Object, ObjectKey},
    silence::{Mute, Silence},
    wire::{self, Event},
};
use crate::{
    api::{Api, ApiError},
    backoff::Backoff,
    health::Reporter,
    metrics::{EventLabels, WatchMetrics, count},
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
    pub state: State,
    told: PhantomData<fn(T)>,
}

/// Where a watch stands.
pub(super) struct State {
    /// What the position belongs to: another server, node or selector has other positions. `None` until it is known.
    pub identity: Option<String>,
    /// Up to where all changes were applied; `None` before the first list, and after it expired.
    pub position: Option<String>,
    /// What was applied and is not gone: key and UID.
    pub known: HashMap<ObjectKey, String>,
    /// Those that the list which is coming in has named; `None` while there is none.
    pub listed: Option<HashSet<ObjectKey>>,
    pub synced: bool,
    pub streams_lists: Streams,
    /// Whether to wait a random moment before the next list: other nodes' agents will list too.
    pub expired: bool,
    pub silence: Silence,
    pub failing_since: Option<Instant>,
    /// Whether a line came that may have been an event, and was none that could be placed.
    pub doubtful: bool,
    pub backoff: Backoff,
    /// The same for positions that have expired.
    pub expirations: Backoff,
    pub keeper: Keeper,
}

/// Whether a server can stream a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    Perhaps,
    /// The last attempt failed, perhaps for that reason: pages this time.
    NotNow,
    /// It said so.
    Never,
}

/// Asks a loop to end, between two events.
pub(super) type Stop = oneshot::Receiver<()>;

/// A stream that breaks sooner is not opened again at once.
const SHORT: Duration = Duration::from_secs(1);
/// The server ends a watch after a random time from this to its double, in seconds (client-go's reflector).
const WATCH_SECONDS: u64 = 300;
/// A stream that ends so little sooner than we have asked for ends because we have.
const EARLY: Duration = Duration::from_secs(5);
/// A stream that goes on for longer than twice what we have asked for, and this, has nobody behind it who would end it.
const OVERDUE: Duration = Duration::from_secs(60);
/// The longest random wait before a list, when a position has expired.
const SPREAD: Duration = Duration::from_secs(2);
/// How long changes may wait to become durable. A crash loses as much: the position goes back with them.
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
            streams_lists: Streams::Perhaps,
            expired: false,
            silence: Silence::default(),
            failing_since: None,
            doubtful: false,
            backoff: Backoff::new(settings.max_backoff),
            expirations: Backoff::new(settings.max_backoff),
            keeper: Keeper::default(),
        };
        Self { scope, api, sink, memory, settings, metrics, health, state, told: PhantomData }
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
        // Once for what is on its way, and once for the rest.
        for _ in 0..2 {
            self.state.keeper.finish().await;
            self.save().await;
        }
        self.state.keeper.finish().await;
    }

    /// Takes on what an earlier agent left, if it watched the same.
    async fn remember(&mut self, identity: String) {
        let (memory, name) = (Arc::clone(&self.memory), self.scope.name);
        self.state.identity = Some(identity.clone());
        let kept = tokio::task::spawn_blocking(move || memory.load(name, &identity)).await;
        let Ok(Some(Remembered { position, objects })) = kept else { return };
        let decoded: Result<Vec<T>, _> = objects.iter().map(|json| serde_json::from_slice(json)).collect();
        let Ok(objects) = decoded else {
            tracing::warn!(
                source = name,
                "what an earlier agent kept of the watch is not understood: listing"
            );
            return;
        };
        tracing::info!(source = name, position, objects = objects.len(), "the watch goes on where it was");
        for object in objects {
            self.state.known.insert(object.key(), object.uid().to_owned());
            self.sink.apply(Change::Applied(object));
        }
        self.count_objects();
        self.state.position = Some(position);
        self.synced();
    }

    /// Starts to make durable what has changed.
    pub(super) async fn save(&mut self) {
        if let (Some(position), Some(identity), None) =
            (&self.state.position, &self.state.identity, &self.state.listed)
        {
            let place = Place { memory: &self.memory, source: self.scope.name, identity };
            self.state.keeper.save(place, position).await;
        }
        self.metrics.unsaved.get_or_create(&self.labels()).set(count(self.state.keeper.unsaved()));
    }

    /// Lists or watches, until it ends.
    async fn round(&mut self) -> Result<(), ApiError> {
        if self.state.identity.is_none() {
            let (name, value) = &self.scope.selector;
            let identity = format!("{} {} {name}={value}", self.api.url().await?, self.scope.path);
            self.remember(identity).await;
        }
        if self.state.position.is_none() && std::mem::take(&mut self.state.expired) {
            sleep(SPREAD.mul_f64(fastrand::f64())).await;
        }
        let streams_list = self.state.position.is_none() && self.state.streams_lists == Streams::Perhaps;
        if self.state.position.is_none() && !streams_list {
            self.list().await?;
        }
        let watched = self.watch().await;
        if let Err(error) = &watched
            && streams_list
            && self.state.position.is_none()
        {
            if error.is_unsupported() {
                tracing::info!(source = self.scope.name, %error, "the server streams no lists: getting pages");
                self.state.streams_lists = Streams::Never;
                return self.list().await.map(drop);
            }
            // An API server on etcd 3.4 fails without saying why. It is not asked at once: it may have too much to do.
            if error.may_be_unsupported() {
                self.state.streams_lists = Streams::NotNow;
            }
        }
        watched
    }

    /// Follows the changes from the position; from nothing, all objects come first.
    async fn watch(&mut self) -> Result<(), ApiError> {
        let what = format!("watch {}", self.scope.name);
        let asked = Duration::from_secs(fastrand::u64(WATCH_SECONDS..2 * WATCH_SECONDS));
        let seconds = asked.as_secs().to_string();
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
        self.state.silence.heard = false;
        let end = opened + 2 * asked + OVERDUE;
        let streamed = self.follow(&what, Lines::new(response.into_body()), opened, end).await;
        let lasted = opened.elapsed();
        let error = match streamed {
            Ok(()) if self.state.listed.is_some() => {
                let why = "it ended before the end of its list".to_owned();
                return Err(ApiError::Broken { what, why });
            }
            // One that is answered so each time is not asked without a pause.
            Ok(()) if lasted < SHORT && self.state.silence.heard => {
                self.end_of_stream();
                return Err(ApiError::Short { what, after: lasted, heard: true });
            }
            Ok(()) => ApiError::Short { what, after: lasted, heard: self.state.silence.heard },
            Err(error @ ApiError::Broken { .. }) if lasted >= SHORT && self.state.position.is_some() => error,
            Err(error @ ApiError::Idle { .. }) if self.state.listed.is_none() => error,
            Err(error) => return Err(error),
        };
        self.end_of_stream();
        match error {
            // It went well for a while: resume at once.
            ApiError::Short { .. } if self.state.silence.heard => Ok(()),
            ApiError::Broken { .. } if self.state.silence.heard => {
                self.passed_over(&error);
                Ok(())
            }
            _ => {
                let as_asked = matches!(error, ApiError::Short { .. }) && lasted + EARLY >= asked;
                self.mute(Mute { error, lasted, as_asked }).await
            }
        }
    }

    /// What could not be placed may have been a change that nobody tells of again: a list finds it.
    fn end_of_stream(&mut self) {
        if std::mem::take(&mut self.state.doubtful) {
            tracing::info!(source = self.scope.name, "something came that was not understood: listing");
            self.state.position = None;
        }
    }

    /// Applies a stream's events until it ends, or has to have ended.
    async fn follow(
        &mut self,
        what: &str,
        mut lines: Lines,
        opened: Instant,
        end: Instant,
    ) -> Result<(), ApiError> {
        let mut save_at = opened + SAVE;
        // Moved by whole lines only: a byte now and then is no sign of life.
        let mut idle_at = opened + self.settings.read_timeout;
        loop {
            let piece = loop {
                let piece = tokio::select! {
                    piece = lines.more() => Some(piece),
                    () = sleep_until(idle_at.min(save_at).min(end)) => None,
                };
                if save_at <= Instant::now() {
                    self.settled(opened.elapsed());
                    self.save().await;
                    save_at = Instant::now() + SAVE;
                }
                let now = Instant::now();
                if now >= end {
                    let why = "it should have ended long ago".to_owned();
                    return Err(ApiError::Broken { what: what.to_owned(), why });
                }
                if let Some(piece) = piece {
                    break piece;
                }
                if now >= idle_at {
                    let (what, after) = (what.to_owned(), self.settings.read_timeout);
                    return Err(ApiError::Idle { what, after });
                }
            };
            match piece {
                Piece::More(bytes) => self.count_bytes(bytes),
                Piece::End => return Ok(()),
                Piece::Broken(why) => return Err(ApiError::Broken { what: what.to_owned(), why }),
            }
            while let Some(line) = lines.next() {
                idle_at = Instant::now() + self.settings.read_timeout;
                match line {
                    Ok(line) => self.handle(wire::event(what, line)?),
                    Err(_) => {
                        self.undecodable(&format_args!("a line is longer than any object"));
                        self.state.doubtful = true;
                    }
                }
            }
            self.metrics.buffered.get_or_create(&self.labels()).set(count(lines.buffered()));
            if self.state.listed.is_some() && opened.elapsed() > LIST {
                return Err(ApiError::Slow { what: what.to_owned(), after: LIST });
            }
        }
    }

    fn handle(&mut self, event: Event<T>) {
        let kind = match event {
            Event::Applied { object, version } => {
                self.apply(object, version);
                "applied"
            }
            Event::Deleted(metadata) => {
                self.remove(&metadata.key(), Some(metadata.uid()));
                self.moved_to(metadata.resource_version);
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
            Event::Undecodable { metadata, why } => {
                self.undecodable(&why);
                match metadata {
                    Some(metadata) => {
                        let position = metadata.resource_version.clone();
                        self.is_listed(Some(metadata));
                        self.moved_to(position);
                        self.heard();
                    }
                    None => self.state.doubtful = true,
                }
                return;
            }
        };
        self.heard();
        self.recovered();
        self.metrics.events.get_or_create(&EventLabels { source: self.scope.name, kind }).inc();
    }

    pub(super) fn apply(&mut self, object: T, position: String) {
        let (key, uid) = (object.key(), object.uid().to_owned());
        if let Some(listed) = &mut self.state.listed {
            listed.insert(key.clone());
        }
        // Deleted and made again while we did not look.
        if let Some(before) = self.state.known.get(&key).filter(|before| **before != uid) {
            let gone = Change::Gone { key: key.clone(), uid: before.clone() };
            self.sink.apply(gone);
        }
        self.state.keeper.put(&key, &object);
        self.state.known.insert(key, uid);
        self.sink.apply(Change::Applied(object));
        self.count_objects();
        self.moved_to(position);
    }

    /// Removes what is at a place, or, with a UID, only that: a late event about an older object of the name must not
    /// take the newer one.
    pub(super) fn remove(&mut self, key: &ObjectKey, uid: Option<&str>) {
        let known = self.state.known.get(key);
        let Some(known) = known.filter(|known| uid.is_none_or(|uid| uid == *known)).cloned() else { return };
        self.state.known.remove(key);
        self.state.keeper.remove(key);
        self.sink.apply(Change::Gone { key: key.clone(), uid: known });
        self.count_objects();
    }

    /// The position of an event within a list is none to resume from: the list comes in no order.
    pub(super) fn moved_to(&mut self, position: String) {
        if self.state.listed.is_none() && !position.is_empty() {
            self.state.position = Some(position);
            self.state.keeper.moved();
        }
    }

    pub(super) fn synced(&mut self) {
        if !std::mem::replace(&mut self.state.synced, true) {
            self.sink.apply(Change::Synced);
        }
    }

    pub(super) fn path(&self, query: &[(&str, &str)]) -> String {
        let mut encoded = form_urlencoded::Serializer::new(String::new());
        encoded.append_pair(self.scope.selector.0, &self.scope.selector.1);
        for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
            encoded.append_pair(name, value);
        }
        format!("{}?{}", self.scope.path, encoded.finish())
    }

    pub(super) fn undecodable(&self, why: &dyn std::fmt::Display) {
        self.metrics.undecodable.get_or_create(&self.labels()).inc();
        tracing::warn!(source = self.scope.name, %why, "an object of the API is not understood, and is passed over");
    }
}
