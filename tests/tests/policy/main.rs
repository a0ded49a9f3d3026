//! Network policies as users see them: real agents, shims and packets.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests and their helpers fail by a panic")]

mod changes;
mod nodes;
mod scene;
mod traffic;
