//! The durable state of a watch, from which a restarted agent resumes.

use std::{error::Error, sync::Arc};

use serde::Serialize;
use serde_json::value::RawValue;

use super::object::ObjectKey;

/// Keeps one checkpoint per watch: its objects, and the position up to which they are current.
pub trait CheckpointStore: Send + Sync + 'static {
    /// The checkpoint of a watch; `None` if it has another identity or cannot be read. Blocks.
    fn load(&self, watch: &str, identity: &str) -> Option<Checkpoint>;

    /// Whether a watch has, or may have had, a checkpoint of any identity and layout. Changes nothing.
    /// Blocks.
    fn exists(&self, watch: &str) -> bool {
        self.load(watch, "").is_some()
    }

    /// Updates the checkpoint of a watch atomically. Blocks.
    ///
    /// # Errors
    /// If the update cannot be written. The previous checkpoint stays.
    fn save(&self, watch: &str, identity: &str, update: &Update) -> Result<(), Box<dyn Error + Send + Sync>>;
}

#[derive(Debug, Clone)]
pub struct Checkpoint {
    pub position: String,
    pub objects: Vec<Box<RawValue>>,
}

/// The changes since the previous checkpoint.
pub struct Update {
    pub position: String,
    /// Whether all other objects are removed, because a list has completed.
    pub replaces_all: bool,
    /// `None` removes the object.
    pub objects: Vec<(ObjectKey, Option<Arc<dyn Json>>)>,
}

/// Keeps nothing: a restarted agent lists.
pub(super) struct NoCheckpoints;

/// An object of any type that can be written as JSON.
pub trait Json: Send + Sync {
    /// Appends the JSON.
    ///
    /// # Errors
    /// If the type cannot be JSON.
    fn write(&self, into: &mut Vec<u8>) -> serde_json::Result<()>;
}

impl CheckpointStore for NoCheckpoints {
    fn load(&self, _: &str, _: &str) -> Option<Checkpoint> {
        None
    }

    fn save(&self, _: &str, _: &str, _: &Update) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

impl<T: Serialize + Send + Sync> Json for T {
    fn write(&self, into: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(into, self)
    }
}
