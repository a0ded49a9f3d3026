//! What a watch has told, made durable: so that a restarted agent goes on from there.

use std::sync::Arc;

use super::{
    Batch, Change, Remembered, Sink,
    objects::{Object, ObjectKey},
    patience::count,
    source::Source,
};

impl<T: Object, S: Sink<T>> Source<T, S> {
    /// Takes on what an earlier agent left, if it watched the same.
    pub(super) async fn remember(&mut self, identity: String) {
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
            self.state.known.insert(object.metadata().key(), object.metadata().uid.clone());
            self.sink.apply(Change::Applied(object));
        }
        self.count_objects();
        self.state.position = Some(position);
        self.synced();
    }

    /// Starts to make durable what has changed, unless that is being done still: then it gathers.
    pub(super) fn save(&mut self) {
        self.metrics.unsaved.get_or_create(&self.labels()).set(count(self.state.unsaved.len()));
        let busy = self.state.saving.as_ref().is_some_and(|saving| !saving.is_finished());
        let (Some(position), Some(identity)) = (self.state.position.clone(), self.state.identity.clone())
        else {
            return;
        };
        if busy || !self.state.moved || self.state.listed.is_some() {
            return;
        }
        self.state.moved = false;
        let objects = std::mem::take(&mut self.state.unsaved);
        let (memory, name) = (Arc::clone(&self.memory), self.scope.name);
        self.state.saving = Some(tokio::spawn(async move {
            let encode = |(key, object): (ObjectKey, Option<T>)| {
                (key.to_string(), object.and_then(|object| serde_json::to_vec(&object).ok()))
            };
            let write = move || {
                let objects = objects.into_iter().map(encode).collect();
                memory.save(name, &identity, Batch { position, objects })
            };
            if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
                tracing::warn!(
                    source = name,
                    error = crate::chain::chain(error.as_ref()),
                    "the position of the watch is not durable"
                );
            }
        }));
    }
}
