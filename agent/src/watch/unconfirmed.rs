//! The objects of a checkpoint, held back until the API server has confirmed them. Pure.
//!
//! While the agent was away, an object may have been rewritten: its VIF, or the Node's pod CIDRs. A resumed
//! stream begins with all missed changes, one by one: an object in it may be outdated by the next event, so
//! that it is held back too. Whatever has not changed once the stream is quiet is current. If the API server
//! cannot be asked, the stored objects serve.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::object::ObjectKey;

#[derive(Debug)]
pub(super) struct Unconfirmed<T> {
    objects: BTreeMap<ObjectKey, Arc<T>>,
    /// `None` if nothing is held back.
    until: Option<Instant>,
}

/// A resumed stream that is quiet for this long has delivered the missed changes: the API server sends them
/// at once, from memory.
pub(super) const CAUGHT_UP: Duration = Duration::from_millis(500);

// === impl Unconfirmed ===

impl<T> Default for Unconfirmed<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), until: None }
    }
}

impl<T> Unconfirmed<T> {
    /// Holds the objects of a checkpoint back.
    pub(super) fn hold(&mut self, objects: BTreeMap<ObjectKey, Arc<T>>, until: Instant) {
        *self = Self { objects, until: Some(until) };
    }

    /// A resumed stream is open, and ends its replay by then.
    pub(super) fn shorten(&mut self, until: Instant) {
        self.until = self.until.map(|it| it.min(until));
    }

    /// The server has answered, and a list follows, which takes until then at most.
    pub(super) fn extend(&mut self, until: Instant) {
        self.until = self.until.map(|it| it.max(until));
    }

    /// When objects stop waiting for a confirmation; `None` if nothing is held back.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the sink lacks objects of the inventory.
    pub(super) fn is_holding(&self) -> bool {
        self.until.is_some()
    }

    /// Holds an object of a resumed stream back, in the place of an older version. Returns the object if
    /// nothing is held back any more.
    pub(super) fn replace(&mut self, key: &ObjectKey, object: Arc<T>) -> Option<Arc<T>> {
        if self.until.is_none() {
            return Some(object);
        }
        self.objects.insert(key.clone(), object);
        None
    }

    /// Forgets an object about which the server has said something newer.
    pub(super) fn supersede(&mut self, key: &ObjectKey) {
        self.objects.remove(key);
    }

    /// Ends the wait. Returns the objects that were held back, or `None` if nothing was.
    pub(super) fn release(&mut self) -> Option<impl Iterator<Item = Arc<T>> + use<T>> {
        self.until.take().map(|_| mem::take(&mut self.objects).into_values())
    }
}
