//! The durable state of a watch, from which a restarted agent resumes.

use std::{error::Error, io, sync::Arc, time::SystemTime};

use serde_json::value::RawValue;

use super::object::{Object, ObjectKey};

/// Keeps one checkpoint per watch: its objects, and the position up to which they are current.
pub trait CheckpointStore: Send + Sync + 'static {
    /// The checkpoint of a watch; `None` if it has another identity or cannot be read. Blocks.
    fn load(&self, watch: &str, identity: &str) -> Option<Checkpoint>;

    /// Whether a watch has a checkpoint, of any identity and layout. Changes nothing. Blocks.
    fn has(&self, watch: &str) -> bool;

    /// Whether a watch has, or may have had, a checkpoint. Changes nothing. Blocks.
    fn may_have_had(&self, watch: &str) -> bool {
        self.has(watch)
    }

    /// Updates the checkpoint of a watch atomically. Blocks.
    ///
    /// # Errors
    /// If the update cannot be written. The previous checkpoint stays.
    fn save(&self, watch: &str, identity: &str, update: &Update) -> Result<(), SaveError>;

    /// Removes the checkpoint of a watch, if there is one. Blocks.
    ///
    /// # Errors
    /// If the checkpoint stays.
    fn remove(&self, watch: &str) -> io::Result<()>;
}

#[derive(Debug, Clone)]
pub struct Checkpoint {
    pub position: String,
    pub objects: Vec<Box<RawValue>>,
    /// The time of the last update, as far as it is known.
    pub written: Option<SystemTime>,
}

/// The changes since the previous checkpoint.
pub struct Update {
    pub position: String,
    /// Whether all other objects are removed, because a list has completed.
    pub replaces_all: bool,
    pub objects: Vec<(ObjectKey, Entry)>,
}

/// What becomes of an object.
pub enum Entry {
    Written(Arc<dyn Json>),
    /// The object stays as the previous checkpoint has it.
    Kept,
    Removed,
}

#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The previous checkpoint is gone or damaged, and this process has some of its objects no longer.
    #[error("the checkpoint has lost objects; relisting")]
    Lost,
    #[error(transparent)]
    Failed(#[from] Box<dyn Error + Send + Sync>),
}

/// An object of any type that can be written as JSON.
pub trait Json: Send + Sync {
    /// Appends the JSON.
    ///
    /// # Errors
    /// If the type cannot be JSON.
    fn write(&self, into: &mut Vec<u8>) -> serde_json::Result<()>;

    /// See [`Object::saved`].
    fn saved(&self);
}

impl<T: Object> Json for T {
    fn write(&self, into: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(into, self)
    }

    fn saved(&self) {
        Object::saved(self);
    }
}

impl Entry {
    pub(super) fn saved(&self) {
        if let Self::Written(object) = self {
            object.saved();
        }
    }
}
