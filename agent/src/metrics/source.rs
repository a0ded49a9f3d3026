//! Values that are read when they are scraped.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// Where values come from. Clones share it.
pub struct Source<T>(Arc<OnceLock<Read<T>>>);

type Read<T> = Box<dyn Fn() -> Vec<T> + Send + Sync>;

// === impl Source ===

impl<T> Source<T> {
    /// Reads the values by a function from now on. Later calls have no effect.
    pub fn read_from(&self, read: impl Fn() -> Vec<T> + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(read));
    }

    /// `None` without a function.
    pub(super) fn read(&self) -> Option<Vec<T>> {
        self.0.get().map(|read| read())
    }
}

impl<T> Clone for Source<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Source<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> fmt::Debug for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}
