//! The cluster, the random policies and the upstream cases of the compiler's own tests.
#![allow(dead_code, reason = "the compiler's tests use more of them")]
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "only helpers of tests, without tests")]

#[path = "../../../../../policy/tests/engine/cases.rs"]
pub mod cases;
#[path = "../../../../../policy/tests/engine/random.rs"]
pub mod random;
#[path = "../../../../../policy/tests/engine/world.rs"]
pub mod world;
