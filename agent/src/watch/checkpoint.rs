//! The durable state of a watch, from which a restarted agent resumes.

use std::error::Error;

/// Keeps one checkpoint per watch: its objects, and the position up to which they are current.
pub trait CheckpointStore: Send + Sync + 'static {
    /// The checkpoint of a watch; `None` if it has another identity or cannot be read. Blocks.
    fn load(&self, watch: &str, identity: &str) -> Option<Checkpoint>;

    /// Updates the checkpoint of a watch atomically. Blocks.
    ///
    /// # Errors
    /// If the update cannot be written. The previous checkpoint stays.
    fn save(&self, watch: &str, identity: &str, update: &Update) -> Result<(), Box<dyn Error + Send + Sync>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub position: String,
    /// As JSON.
    pub objects: Vec<Vec<u8>>,
}

/// The changes since the previous checkpoint.
#[derive(Debug)]
pub struct Update {
    pub position: String,
    /// Whether all other objects are removed, because a list has completed.
    pub replaces_all: bool,
    /// Key → JSON, or `None` to remove the object.
    pub objects: Vec<(String, Option<Vec<u8>>)>,
}
