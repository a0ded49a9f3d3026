//! Watches: each follows the history from its own position.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    connections::Killer,
    core::Core,
    faults::{Command, Flow, Place, lock},
    object::{EventType, event_line},
    params::{Params, Version},
    resource::{Endpoint, Resource},
    selector::Selector,
    status::Status,
};

/// Lines buffered for a slow client.
const QUEUE: usize = 100;
/// Changes read from the store at once.
const BATCH: usize = 256;
/// Limit of a watch without `timeoutSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// The last bookmark is sent this long before the watch ends.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// The lines of a watch response.
pub(super) type Lines = mpsc::Receiver<Bytes>;

struct Watch {
    core: Arc<Core>,
    endpoint: Endpoint,
    selector: Selector,
    /// All changes up to this version have been sent or do not match.
    position: u64,
    has_bookmarks: bool,
    end: Instant,
    out: mpsc::Sender<Bytes>,
    flow: watch::Receiver<Flow>,
    connection: Killer,
    commands: mpsc::Receiver<Command>,
    place: Place,
}

/// The watch has ended.
struct Ended;

/// Opens a watch.
///
/// # Errors
/// The API's status, if the options are invalid.
pub(super) fn open(
    core: &Arc<Core>,
    endpoint: Endpoint,
    selector: Selector,
    params: &Params,
    connection: Killer,
) -> Result<Lines, Status> {
    let settings = core.settings();
    params.version_match(settings.watch_list)?;
    let wanted = params.version()?;
    let has_bookmarks = params.flag("allowWatchBookmarks");
    let initial = params.text("sendInitialEvents");
    let asks_for_list = matches!(initial, "true" | "1");

    let mut first = Vec::new();
    let store = lock(&core.store);
    let current = store.version();
    let position = match wanted {
        Version::At(version) if asks_for_list && version > current => {
            return Err(Status::too_large_version(version, current));
        }
        Version::At(version) if !asks_for_list => version,
        _ => current,
    };
    let is_gone = position < store.compacted();
    if asks_for_list || (initial.is_empty() && !matches!(wanted, Version::At(_))) {
        for object in store.at(current, endpoint.resource, None) {
            if selector.matches(&object) {
                first.push(event_line(EventType::Added.name(), &object.json(endpoint)));
            }
        }
    }
    let oldest = store.compacted();
    drop(store);
    if asks_for_list && has_bookmarks {
        first.push(bookmark(endpoint, position, true));
    }

    let (out, lines) = mpsc::channel(QUEUE);
    let limit = params.seconds("timeoutSeconds")?.unwrap_or(DEFAULT_TIMEOUT);
    let gone = is_gone.then(|| Status::expired(format!("too old resource version: {position} ({oldest})")));
    if let (Some(gone), true) = (&gone, settings.gone_at_opening) {
        return Err(gone.clone());
    }
    // Registered before the client receives the response header.
    let (place, commands) = core.faults.open(endpoint.resource);
    let watch = Watch {
        core: Arc::clone(core),
        endpoint,
        selector,
        position,
        has_bookmarks,
        end: Instant::now() + limit,
        out,
        flow: core.faults.flow(),
        connection,
        commands,
        place,
    };
    tokio::spawn(watch.run(first, gone, limit, settings.bookmark_interval));
    Ok(lines)
}

// === impl Watch ===

impl Watch {
    async fn run(mut self, first: Vec<Bytes>, gone: Option<Status>, limit: Duration, interval: Duration) {
        // The queued lines are still sent.
        let _ended = match gone {
            Some(gone) => self.send(error_line(&gone)).await,
            None => self.follow(first, limit, interval).await,
        };
    }

    async fn follow(&mut self, first: Vec<Bytes>, limit: Duration, interval: Duration) -> Result<(), Ended> {
        let mut head = self.core.head.subscribe();
        for line in first {
            self.send(line).await?;
        }
        let mut last_bookmark = Some(self.end - LAST_BOOKMARK.min(limit / 2));
        let mut next_bookmark = Instant::now() + interval;
        loop {
            let current = *head.borrow_and_update();
            let more = self.tell_changes(current).await?;
            let due = last_bookmark.map_or(next_bookmark, |last| last.min(next_bookmark));
            tokio::select! {
                biased;
                () = self.out.closed() => return Err(Ended),
                Some(command) = self.commands.recv() => {
                    // A command follows all changes before it, so that a line of it can fence them.
                    let current = *head.borrow_and_update();
                    while self.tell_changes(current).await? {}
                    self.obey(command).await?;
                }
                () = sleep_until(self.end) => return self.send_nothing().await,
                () = sleep_until(due), if self.has_bookmarks => {
                    // No bookmark for a watch whose version lies in the future.
                    if lock(&self.core.store).version() >= self.position {
                        self.send(bookmark(self.endpoint, self.position, false)).await?;
                    }
                    next_bookmark = Instant::now() + interval;
                    last_bookmark = last_bookmark.filter(|last| *last > Instant::now());
                }
                () = std::future::ready(()), if more => {}
                _ = head.changed() => {}
            }
        }
    }

    /// Sends a batch of changes; returns whether there may be more. `current` is a version that the history
    /// has reached.
    async fn tell_changes(&mut self, current: u64) -> Result<bool, Ended> {
        let changes = lock(&self.core.store).behind(self.position, BATCH);
        let Some(changes) = changes else {
            let why = format!("too old resource version: {}", self.position);
            self.send(error_line(&Status::expired(why))).await?;
            return Err(Ended);
        };
        // A change made after the cut must not be sent, although the task learns of the cut later.
        if !self.place.is_open() {
            return Ok(false);
        }
        for change in &changes {
            if let Some(kind) = change.seen_by(&self.selector) {
                self.send(change.line(kind, self.endpoint)).await?;
            }
            self.position = change.version;
        }
        self.position = self.position.max(if changes.is_empty() { current } else { 0 });
        Ok(changes.len() == BATCH)
    }

    async fn obey(&mut self, command: Command) -> Result<(), Ended> {
        match command {
            Command::Send(line) => self.send(line).await,
            Command::End(line) => {
                self.send(line).await?;
                Err(Ended)
            }
            Command::Cut => {
                let line = event_line(EventType::Modified.name(), &self.any_object());
                self.send(line.slice(..line.len() / 2)).await?;
                while self.out.capacity() < QUEUE {
                    sleep(Duration::from_millis(1)).await;
                }
                // hyper writes buffered data to the socket at its next poll.
                sleep(Duration::from_millis(5)).await;
                self.connection.kill(false);
                Err(Ended)
            }
        }
    }

    async fn send(&mut self, line: Bytes) -> Result<(), Ended> {
        self.send_nothing().await?;
        let limit = self.core.options.slow_watch_limit;
        match timeout(limit, self.out.reserve()).await {
            Ok(Ok(place)) => {
                place.send(line);
                Ok(())
            }
            Ok(Err(_)) => Err(Ended),
            Err(_) => {
                self.connection.kill(false);
                Err(Ended)
            }
        }
    }

    /// Waits out a stall or a delay before a line.
    async fn send_nothing(&mut self) -> Result<(), Ended> {
        let flow = tokio::select! {
            flow = self.flow.wait_for(|flow| !flow.is_stalled) => *flow.map_err(|_| Ended)?,
            () = self.out.closed() => return Err(Ended),
        };
        if !flow.delay.is_zero() {
            sleep(flow.delay).await;
        }
        Ok(())
    }

    /// An existing object that matches the watch, or an invented one.
    fn any_object(&self) -> Bytes {
        let store = lock(&self.core.store);
        let objects = store.at(store.version(), self.endpoint.resource, None);
        let found = objects.iter().find(|object| self.selector.matches(object));
        found.map_or_else(
            || Bytes::from(typed(self.endpoint, &json!({ "name": "cut-in-the-middle" })).to_string()),
            |object| object.json(self.endpoint),
        )
    }
}

// === helpers ===

/// The ERROR event of a status.
pub(super) fn error_line(status: &Status) -> Bytes {
    event_line("ERROR", status.to_value().to_string().as_bytes())
}

fn bookmark(endpoint: Endpoint, version: u64, ends_initial: bool) -> Bytes {
    let metadata = if ends_initial {
        let annotations = json!({ "k8s.io/initial-events-end": "true" });
        json!({ "resourceVersion": version.to_string(), "annotations": annotations })
    } else {
        json!({ "resourceVersion": version.to_string() })
    };
    event_line("BOOKMARK", typed(endpoint, &metadata).to_string().as_bytes())
}

/// An object with metadata only. The real server writes a pod's required field even here, as `null`.
fn typed(endpoint: Endpoint, metadata: &Value) -> Value {
    let (kind, version) = (endpoint.resource.kind(), endpoint.api_version());
    match endpoint.resource {
        Resource::Pods => json!({
            "kind": kind, "apiVersion": version, "metadata": metadata, "spec": { "containers": null }, "status": {},
        }),
        _ => json!({ "kind": kind, "apiVersion": version, "metadata": metadata }),
    }
}
