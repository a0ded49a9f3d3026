//! The switches that break the server, and the open watches that they act on.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::{object::event_line, resource::Resource, status::Status, store::History};

/// Something to switch: the same in this library and as `POST /_test/<name>`, with the fields as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// Cuts open watches, after half of a line.
    CutWatches {
        /// Which ones.
        #[serde(flatten)]
        which: Which,
    },
    /// From now on watches say nothing, and stay open.
    StallWatches {},
    /// Ends the stall; what happened meanwhile is told.
    ResumeWatches {},
    /// Watches wait this long before each line. 0 ends it.
    SlowWatches {
        /// Milliseconds.
        delay_ms: u64,
    },
    /// Sends something unheard of to open watches, which go on.
    SendGarbage {
        /// What it is.
        garbage: Garbage,
        /// To which ones.
        #[serde(flatten)]
        which: Which,
    },
    /// Ends open watches with an ERROR event.
    SendError {
        /// The status' code: 410, 500, 504.
        code: u16,
        /// What `details.retryAfterSeconds` says.
        #[serde(default)]
        retry_after: Option<u64>,
        /// Which ones.
        #[serde(flatten)]
        which: Which,
    },
    /// Closes all connections.
    DropConnections {
        /// With a reset instead of an orderly end.
        #[serde(default)]
        reset: bool,
    },
    /// Refuses requests to come.
    Refuse(Refusal),
    /// Refuses nothing any more.
    RefuseNothing {},
    /// Forgets the history. Open watches go on.
    Compact {},
    /// Stops listening, closes all connections, and listens again.
    Restart {
        /// Milliseconds in between.
        #[serde(default)]
        pause_ms: u64,
        /// What becomes of the history.
        history: History,
    },
    /// Sets the bearer tokens that are good; `null`: nobody is asked for one.
    SetTokens {
        /// The tokens.
        tokens: Option<Vec<String>>,
    },
    /// Answers 403 to who asks for a resource, with this token or with whatever one.
    Deny {
        /// The resource.
        resource: Resource,
        /// The bearer token.
        #[serde(default)]
        token: Option<String>,
    },
    /// Denies nothing any more.
    DenyNothing {},
    /// Whether the KuryrPort resource is installed.
    InstallKuryr {
        /// If so.
        installed: bool,
    },
    /// Whether `sendInitialEvents` is understood.
    WatchList {
        /// If so.
        enabled: bool,
    },
    /// Whether a watch of a version that is too old gets HTTP 410 instead of an ERROR event.
    GoneAtOpening {
        /// If so.
        enabled: bool,
    },
    /// How often watches to come get a bookmark.
    BookmarkInterval {
        /// Milliseconds.
        every_ms: u64,
    },
}

/// Which of the open watches.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Which {
    /// Those of one resource only.
    #[serde(default)]
    pub resource: Option<Resource>,
    /// At most so many.
    #[serde(default)]
    pub count: Option<usize>,
}

/// What a stream should never carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Garbage {
    /// A line that is no JSON.
    NotJson,
    /// An object whose name is a number.
    BadObject,
    /// A type of event that nobody knows.
    UnknownType,
    /// A line of so many MiB.
    Huge(usize),
}

/// What is answered instead of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// For how many requests; all, if it does not say.
    #[serde(default)]
    pub times: Option<u64>,
    /// For watches only.
    #[serde(default)]
    pub watches_only: bool,
    /// For one resource only.
    #[serde(default)]
    pub resource: Option<Resource>,
    /// When to come back: the header, and `details.retryAfterSeconds`.
    #[serde(default)]
    pub retry_after: Option<u64>,
    /// In plain text instead of a Status, as the server's own rate limit answers.
    #[serde(default)]
    pub plain_text: bool,
}

/// What watches obey.
#[derive(Debug, Clone)]
pub(super) enum Command {
    /// Half of a line, and then the connection breaks.
    Cut,
    Send(Bytes),
    /// A line, and the end.
    End(Bytes),
}

/// How watches are disturbed, for all of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flow {
    pub is_stalled: bool,
    pub delay: Duration,
}

/// The faults that are on, and the open watches.
#[derive(Debug)]
pub(super) struct Faults {
    flow: watch::Sender<Flow>,
    refusals: Mutex<Vec<Refusal>>,
    watches: Mutex<Watches>,
}

#[derive(Debug, Default)]
struct Watches {
    next: u64,
    open: BTreeMap<u64, (Resource, mpsc::Sender<Command>)>,
}

/// A watch's place among the open ones.
#[derive(Debug)]
pub(super) struct Place(Arc<Faults>, u64);

// === impl Faults ===

impl Faults {
    pub fn new() -> Self {
        let flow = watch::Sender::new(Flow::default());
        Self { flow, refusals: Mutex::default(), watches: Mutex::default() }
    }

    pub fn flow(&self) -> watch::Receiver<Flow> {
        self.flow.subscribe()
    }

    pub fn set_flow(&self, set: impl FnOnce(&mut Flow)) {
        self.flow.send_modify(set);
    }

    pub fn refuse(&self, refusal: Refusal) {
        lock(&self.refusals).push(refusal);
    }

    pub fn refuse_nothing(&self) {
        lock(&self.refusals).clear();
    }

    /// What a request gets instead of an answer, if anything.
    pub fn refusal_of(&self, resource: Option<Resource>, is_watch: bool) -> Option<Refusal> {
        let mut refusals = lock(&self.refusals);
        let applies = |refusal: &&mut Refusal| {
            (is_watch || !refusal.watches_only)
                && (refusal.resource.is_none() || refusal.resource == resource)
        };
        let found = refusals.iter_mut().find(applies)?;
        if let Some(times) = &mut found.times {
            *times = times.saturating_sub(1);
        }
        let answer = found.clone();
        refusals.retain(|refusal| refusal.times != Some(0));
        Some(answer)
    }

    /// Counts a watch as open while the place is kept.
    pub fn open(self: &Arc<Self>, resource: Resource) -> (Place, mpsc::Receiver<Command>) {
        let (sender, commands) = mpsc::channel(16);
        let mut watches = lock(&self.watches);
        watches.next += 1;
        let id = watches.next;
        watches.open.insert(id, (resource, sender));
        (Place(Arc::clone(self), id), commands)
    }

    /// How many watches are open, for each resource that has any.
    pub fn open_watches(&self) -> HashMap<Resource, usize> {
        let mut counts = HashMap::new();
        for (resource, _) in lock(&self.watches).open.values() {
            *counts.entry(*resource).or_default() += 1;
        }
        counts
    }

    /// Tells open watches what to do, the oldest first; gives how many were told.
    pub fn command(&self, which: Which, command: &Command) -> usize {
        let watches = lock(&self.watches);
        let meant =
            watches.open.values().filter(|(resource, _)| which.resource.is_none_or(|is| is == *resource));
        let meant = meant.take(which.count.unwrap_or(usize::MAX));
        // One that has not obeyed sixteen commands is stalled: it loses this one.
        meant.filter(|(_, watch)| watch.try_send(command.clone()).is_ok()).count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.0.watches).open.remove(&self.1);
    }
}

// === impl Garbage ===

impl Garbage {
    pub(super) fn line(self) -> Bytes {
        let pod = |name: &str| json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "name": name } });
        match self {
            Self::NotJson => Bytes::from_static(b"<html>502 Bad Gateway</html>\n"),
            Self::BadObject => {
                let object =
                    json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "name": 7, "labels": [] } });
                event_line("MODIFIED", object.to_string().as_bytes())
            }
            Self::UnknownType => event_line("RENAMED", pod("unknown").to_string().as_bytes()),
            Self::Huge(mebibytes) => {
                let mut object = pod("huge");
                if let Some(object) = object.as_object_mut() {
                    object.insert("padding".to_owned(), "x".repeat(mebibytes << 20).into());
                }
                event_line("ADDED", object.to_string().as_bytes())
            }
        }
    }
}

// === impl Refusal ===

impl Refusal {
    pub(super) fn to_status(&self) -> Status {
        let message = match self.status {
            429 => "Too many requests, please try again later.",
            _ => "refused by the test",
        };
        Status::of_code(self.status, message).retry_after(self.retry_after)
    }
}

// === helpers ===

/// Locks, also after a thread has panicked: what the locks of this server protect is whole at any time.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
