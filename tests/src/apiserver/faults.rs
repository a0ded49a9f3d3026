//! Fault injection: the switches and the open watches that they act on.

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

/// A fault or setting to switch. Over HTTP: `POST /_test/<name>`, with the fields as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// Breaks the connections of open watches, in the middle of a line. No later change is sent on them.
    CutWatches {
        #[serde(flatten)]
        which: Which,
    },
    /// From now on, watches send nothing and stay open.
    StallWatches {},
    /// Ends the stall; the watches send the changes that happened meanwhile.
    ResumeWatches {},
    /// Delays each watch line. 0 ends the delay.
    SlowWatches { delay_ms: u64 },
    /// Sends malformed data on open watches, which continue afterwards.
    SendGarbage {
        garbage: Garbage,
        #[serde(flatten)]
        which: Which,
    },
    /// Ends open watches with an ERROR event.
    SendError {
        /// The status code: 410, 500, 504.
        code: u16,
        /// `details.retryAfterSeconds`.
        #[serde(default)]
        retry_after: Option<u64>,
        #[serde(flatten)]
        which: Which,
    },
    /// Closes all connections.
    DropConnections {
        /// With a TCP reset instead of an orderly close.
        #[serde(default)]
        reset: bool,
    },
    /// Refuses future requests.
    Refuse(Refusal),
    /// Ends all refusals.
    RefuseNothing {},
    /// Compacts the history. Open watches continue.
    Compact {},
    /// Stops listening, closes all connections, and listens again.
    Restart {
        /// Milliseconds of downtime.
        #[serde(default)]
        pause_ms: u64,
        history: History,
    },
    /// Sets the accepted bearer tokens; `null`: requests need no token.
    SetTokens { tokens: Option<Vec<String>> },
    /// Answers 403 to requests for a resource, for one token or for all.
    Deny {
        resource: Resource,
        #[serde(default)]
        token: Option<String>,
    },
    /// Ends all denials.
    DenyNothing {},
    /// Installs or removes the KuryrPort resource.
    InstallKuryr { installed: bool },
    /// Installs or removes the ClusterNetworkPolicy resource.
    InstallClusterPolicies { installed: bool },
    /// Serves ClusterNetworkPolicies, once they are installed, in this version instead of their own: in
    /// discovery only, and no objects.
    RenameClusterPolicies { version: Option<String> },
    /// Enables or disables `sendInitialEvents`.
    WatchList { enabled: bool },
    /// Whether a watch from an expired version gets HTTP 410 instead of an ERROR event.
    GoneAtOpening { enabled: bool },
    /// Sets the bookmark interval of future watches.
    BookmarkInterval { every_ms: u64 },
}

/// Selects open watches.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Which {
    /// Only those of this resource.
    #[serde(default)]
    pub resource: Option<Resource>,
    /// Maximum number of watches.
    #[serde(default)]
    pub count: Option<usize>,
}

/// Malformed data for a watch stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Garbage {
    /// A line that is not JSON.
    NotJson,
    /// An object whose name is a number.
    BadObject,
    /// An unknown event type.
    UnknownType,
    /// A line of this many MiB.
    Huge(usize),
}

/// A failure sent instead of the regular response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// Number of requests to refuse; None: all.
    #[serde(default)]
    pub times: Option<u64>,
    #[serde(default)]
    pub watches_only: bool,
    /// Only requests for this resource.
    #[serde(default)]
    pub resource: Option<Resource>,
    /// Seconds: the `Retry-After` header and `details.retryAfterSeconds`.
    #[serde(default)]
    pub retry_after: Option<u64>,
    /// Plain text instead of a Status, as the API server's rate limit sends.
    #[serde(default)]
    pub plain_text: bool,
}

/// A command for an open watch.
#[derive(Debug, Clone)]
pub(super) enum Command {
    /// Send half a line, then break the connection.
    Cut,
    Send(Bytes),
    /// Send a line, then end the stream.
    End(Bytes),
}

/// Disturbance applied to all watches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flow {
    pub is_stalled: bool,
    pub delay: Duration,
}

/// The active faults and the open watches.
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

/// Registration of an open watch; dropping it deregisters the watch.
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

    /// The refusal of a request, if one applies.
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

    /// Registers a watch as open until the place is dropped.
    pub fn open(self: &Arc<Self>, resource: Resource) -> (Place, mpsc::Receiver<Command>) {
        let (sender, commands) = mpsc::channel(16);
        let mut watches = lock(&self.watches);
        watches.next += 1;
        let id = watches.next;
        watches.open.insert(id, (resource, sender));
        (Place(Arc::clone(self), id), commands)
    }

    /// The number of open watches of each resource that has any.
    pub fn open_watches(&self) -> HashMap<Resource, usize> {
        let mut counts = HashMap::new();
        for (resource, _) in lock(&self.watches).open.values() {
            *counts.entry(*resource).or_default() += 1;
        }
        counts
    }

    /// Sends a command to open watches, oldest first; returns the number of watches that took it. A cut watch
    /// is no longer open when this returns.
    pub fn command(&self, which: Which, command: &Command) -> usize {
        let mut watches = lock(&self.watches);
        let meant = watches
            .open
            .iter()
            .filter(|(_, (resource, _))| which.resource.is_none_or(|is| is == *resource))
            .take(which.count.unwrap_or(usize::MAX));
        // A stalled watch with sixteen unprocessed commands loses this one.
        let took = meant.filter(|(_, (_, watch))| watch.try_send(command.clone()).is_ok());
        let took: Vec<u64> = took.map(|(id, _)| *id).collect();
        if matches!(command, Command::Cut) {
            watches.open.retain(|id, _| !took.contains(id));
        }
        took.len()
    }
}

impl Place {
    /// Whether the watch may still send changes.
    pub fn is_open(&self) -> bool {
        lock(&self.0.watches).open.contains_key(&self.1)
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

/// Locks a mutex, also after a panic: every critical section leaves the state consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
