//! What the API server knows, followed: lists and watches that resume where they were.
//!
//! A [`Watches`] owns the sources. Each has a loop of its own ([`source`]), which tells a [`Sink`] what changed, in the
//! order in which it happened, and keeps its position in a [`Memory`], so that a restarted agent goes on from there. A
//! sink is called from the loop itself: one that takes its time slows the stream down, and nothing piles up.

mod checkpoint_db;
mod keep;
mod lines;
mod list;
mod object;
mod patience;
mod silence;
mod source;
mod wire;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, task::JoinHandle};

use crate::{api::Api, health::Health, metrics::WatchMetrics};
pub use checkpoint_db::CheckpointDb;
pub use object::{Object, ObjectKey};
pub use source::Scope;

/// What happened to an object.
#[derive(Debug, Clone)]
pub enum Change<T> {
    /// It is new, or as it was not before; or it is told again.
    Applied(T),
    /// It has left what we look at: deleted, or moved.
    Gone { key: ObjectKey, uid: String },
    /// All that there was at the beginning has been told.
    Synced,
}

/// Who is told.
pub trait Sink<T>: Send + Sync + 'static {
    /// Must be quick: the stream waits meanwhile.
    fn apply(&self, change: Change<T>);
}

/// What outlives the agent: what a source has told, and its position, always of the same moment.
pub trait Memory: Send + Sync + 'static {
    /// What was kept of a source; nothing, if that was of another identity. May block.
    fn load(&self, source: &str, identity: &str) -> Option<Remembered>;

    /// Keeps all of a batch, or none of it. May block.
    ///
    /// # Errors
    /// If it cannot be written; then what was kept before is what is kept.
    fn save(
        &self,
        source: &str,
        identity: &str,
        batch: &Batch,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// What was kept of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub position: String,
    /// As JSON.
    pub objects: Vec<Vec<u8>>,
}

/// What is to be kept of a source from now on.
#[derive(Debug)]
pub struct Batch {
    pub position: String,
    /// Whether nothing else is to be kept: there was a list.
    pub is_all: bool,
    /// Key as text → JSON, or nothing for one that is gone.
    pub objects: Vec<(String, Option<Vec<u8>>)>,
}

/// How patient a watch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long a watch may fail before it is unhealthy. It goes on trying.
    pub retry_timeout: Duration,
    /// How long a stream may say nothing. API servers send a bookmark each minute.
    pub read_timeout: Duration,
    /// The longest wait between two attempts.
    pub max_backoff: Duration,
}

/// The sources that are followed. They can be added and removed at any time.
pub struct Watches {
    api: Arc<Api>,
    memory: Arc<dyn Memory>,
    settings: Settings,
    metrics: WatchMetrics,
    health: Health,
    running: Mutex<HashMap<&'static str, Running>>,
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

// === impl Watches ===

impl Watches {
    pub fn new(
        api: Arc<Api>,
        memory: Arc<dyn Memory>,
        settings: Settings,
        metrics: WatchMetrics,
        health: Health,
    ) -> Self {
        Self { api, memory, settings, metrics, health, running: Mutex::default() }
    }

    /// Begins to follow a source; one that is followed already is left as it is.
    pub fn add<T: Object>(&self, scope: Scope, sink: impl Sink<T>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.get(scope.name).is_some_and(|it| !it.task.is_finished()) {
            return;
        }
        let name = scope.name;
        let health = self.health.component(name, false, "not followed yet");
        let source = source::Source::new(
            scope,
            Arc::clone(&self.api),
            sink,
            Arc::clone(&self.memory),
            self.settings,
            self.metrics.clone(),
            health,
        );
        let (stop, stopped) = oneshot::channel();
        running.insert(name, Running { stop, task: tokio::spawn(source.run(stopped)) });
    }

    /// Ends a source between two events, and waits until its position is durable. One that is not there is none.
    pub async fn remove(&self, name: &str) {
        let removed = self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some(Running { stop, task }) = removed {
            // It may have ended by itself.
            let _ = stop.send(());
            let _ = task.await;
        }
    }

    /// Ends all sources.
    pub async fn stop(&self) {
        let names: Vec<_> =
            self.running.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        for name in names {
            self.remove(name).await;
        }
    }

    /// A source whose loop has ended though nobody asked it to, which it never does but in a panic.
    pub fn dead(&self) -> Option<&'static str> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.iter().find(|(_, it)| it.task.is_finished()).map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests;
