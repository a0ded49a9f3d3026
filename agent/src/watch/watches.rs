//! Starts, stops and supervises one reflector per watched resource.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::oneshot,
    task::{JoinHandle, spawn_blocking},
};

use super::{
    checkpoint::CheckpointStore, object::Object, reflector::Reflector, scope::Scope, settings::Settings,
    sink::Sink,
};
use crate::{api::Api, health::Health, metrics::WatchMetrics};

/// Watches, which can be added and removed at any time.
pub struct Watches {
    api: Arc<Api>,
    checkpoints: Arc<dyn CheckpointStore>,
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
        checkpoints: Arc<dyn CheckpointStore>,
        settings: Settings,
        metrics: WatchMetrics,
        health: Health,
    ) -> Self {
        Self { api, checkpoints, settings, metrics, health, running: Mutex::default() }
    }

    /// Starts a watch. One of the same name that is running is left alone.
    pub fn add<T: Object>(&self, scope: Scope, sink: impl Sink<T>) {
        let mut running = self.running();
        if running.get(scope.name).is_some_and(|it| !it.task.is_finished()) {
            return;
        }
        let name = scope.name;
        let health = self.health.component(name, false, "not followed yet");
        let reflector = Reflector::new(
            scope,
            Arc::clone(&self.api),
            sink,
            Arc::clone(&self.checkpoints),
            self.settings,
            self.metrics.clone(),
            health,
        );
        let (stop, stopped) = oneshot::channel();
        running.insert(name, Running { stop, task: tokio::spawn(reflector.run(stopped)) });
    }

    /// Whether a watch has a checkpoint of this API server, by which it starts without the server.
    pub async fn has_checkpoint(&self, scope: &Scope) -> bool {
        let Ok(url) = self.api.url().await else { return false };
        let (checkpoints, name) = (Arc::clone(&self.checkpoints), scope.name);
        let identity = scope.identity(&url);
        spawn_blocking(move || checkpoints.load(name, &identity).is_some()).await.unwrap_or_default()
    }

    /// Whether a watch was followed when the last agent stopped.
    pub async fn was_followed(&self, name: &'static str) -> bool {
        let checkpoints = Arc::clone(&self.checkpoints);
        spawn_blocking(move || checkpoints.has(name)).await.unwrap_or_default()
    }

    /// Whether a watch has had a checkpoint, usable or not.
    pub async fn had_checkpoint(&self, scope: &Scope) -> bool {
        let (checkpoints, name) = (Arc::clone(&self.checkpoints), scope.name);
        spawn_blocking(move || checkpoints.may_have_had(name)).await.unwrap_or(true)
    }

    /// Stops a watch between two events, and waits until its position is durable. Idempotent.
    pub async fn remove(&self, name: &str) {
        let removed = self.running().remove(name);
        if let Some(Running { stop, task }) = removed {
            // Fails if the task has ended.
            let _ = stop.send(());
            let _ = task.await;
        }
    }

    /// Stops a watch, and removes its checkpoint: what is not followed any more grows old.
    pub async fn forget(&self, name: &'static str) {
        self.remove(name).await;
        let checkpoints = Arc::clone(&self.checkpoints);
        let removed = spawn_blocking(move || checkpoints.remove(name)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(watch = name, %error, "cannot remove the checkpoint of a watch that has ended");
        }
    }

    /// Stops all watches.
    pub async fn stop(&self) {
        let names: Vec<_> = self.running().keys().copied().collect();
        for name in names {
            self.remove(name).await;
        }
    }

    /// A watch whose task has ended without a stop: it panicked.
    pub fn dead(&self) -> Option<&'static str> {
        self.running().iter().find(|(_, it)| it.task.is_finished()).map(|(name, _)| *name)
    }

    fn running(&self) -> MutexGuard<'_, HashMap<&'static str, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
