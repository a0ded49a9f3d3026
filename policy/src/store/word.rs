//! An interned text.

use std::{
    borrow::Borrow,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// An interned text. Ordered by age, not by text.
#[derive(Clone)]
pub(crate) struct Word(Arc<Entry>);

struct Entry {
    number: u64,
    text: Box<str>,
}

// === impl Word ===

impl Word {
    /// `number` is unique among the words of a pool.
    pub(super) fn new(number: u64, text: &str) -> Self {
        Self(Arc::new(Entry { number, text: text.into() }))
    }

    /// Whether something besides the pool uses the word.
    pub(super) fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(crate) fn text(&self) -> &str {
        &self.0.text
    }
}

impl PartialEq for Word {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for Word {}

impl PartialOrd for Word {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Word {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.number.cmp(&other.0.number)
    }
}

/// As a text, for the pool's look-up by text.
impl Hash for Word {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

impl Borrow<str> for Word {
    fn borrow(&self) -> &str {
        &self.0.text
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.text.fmt(f)
    }
}
