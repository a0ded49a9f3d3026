//! The random clusters and the oracle of the compiler's own tests.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    dead_code,
    reason = "a part of the helpers of other tests, which fail by a panic"
)]

#[path = "../../../policy/tests/engine/oracle.rs"]
pub mod oracle;
#[path = "../../../policy/tests/engine/random.rs"]
pub mod random;
#[path = "../../../policy/tests/engine/world.rs"]
pub mod world;
