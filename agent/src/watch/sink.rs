//! The receiver of a watch's changes.

use super::object::ObjectKey;

#[derive(Debug, Clone)]
pub enum Change<T> {
    /// Added or modified, or repeated unchanged.
    Applied(T),
    /// Deleted, or no longer selected.
    Gone { key: ObjectKey, uid: String },
    /// The objects are complete: those of the initial list, or of a checkpoint. The objects of a checkpoint
    /// come just before this, once the server has confirmed them, or cannot be asked.
    Synced,
}

pub trait Sink<T>: Send + Sync + 'static {
    /// Must not block: the stream waits.
    fn apply(&self, change: Change<T>);
}
