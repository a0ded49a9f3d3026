//! The receiver of a watch's changes.

use super::object::ObjectKey;

#[derive(Debug, Clone)]
pub enum Change<T> {
    /// Added or modified, or repeated unchanged.
    Applied(T),
    /// Deleted, or no longer selected.
    Gone { key: ObjectKey, uid: String },
    /// All objects of the initial list have been applied.
    Synced,
}

pub trait Sink<T>: Send + Sync + 'static {
    /// Must not block: the stream waits.
    fn apply(&self, change: Change<T>);
}
