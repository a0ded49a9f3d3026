//! Short keys of indices.

use std::hash::{DefaultHasher, Hash, Hasher as _};

/// A digest by which something is found. Different things may have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Digest(u32);

// === impl Digest ===

impl Digest {
    pub(crate) fn of(what: &impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
        Self(u32::from_be_bytes([a, b, c, d]))
    }
}
