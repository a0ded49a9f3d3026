//! The compiler against an oracle that shares no code with it, against the upstream cases, and against what
//! went wrong elsewhere.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests and their helpers fail by a panic"
)]

mod audit;
mod bad_input;
mod batches;
mod capacity;
mod cases;
mod cluster_tiers;
mod convergence;
mod corners;
mod elsewhere;
mod explained;
mod marks;
mod oracle;
mod random;
#[cfg(feature = "maps")]
mod recorded;
mod scale;
mod shown;
mod upstream;
mod world;
