//! The receiver of a watch's changes.

use std::sync::Arc;

use super::object::ObjectKey;

#[derive(Debug, Clone)]
pub enum Change<T> {
    /// Added or modified, or repeated unchanged, unless its type recognizes repetitions. The watch keeps a
    /// reference, for its checkpoints.
    Applied(Arc<T>),
    /// Deleted, or no longer selected.
    Gone { key: ObjectKey, uid: String },
    /// The objects are complete: those of the initial list, or of a checkpoint. The objects of a checkpoint
    /// come just before this, once the server has confirmed them, or cannot be asked.
    Synced,
}

impl<T> Change<T> {
    pub fn applied(object: T) -> Self {
        Self::Applied(Arc::new(object))
    }
}

pub trait Sink<T>: Send + Sync + 'static {
    /// Must not block: the stream waits.
    fn apply(&self, change: Change<T>);

    /// Applies an object with the name of another one, whose deletion was missed: `uid` is that one's.
    fn replace(&self, object: Arc<T>, key: ObjectKey, uid: String) {
        self.apply(Change::Gone { key, uid });
        self.apply(Change::Applied(object));
    }
}
