//! The compiler against an oracle that shares no code with it, against the upstream cases, and against what
//! went wrong elsewhere.

mod bad_input;
mod capacity;
mod cluster_tiers;
mod convergence;
mod corners;
mod elsewhere;
mod explained;
mod oracle;
mod random;
mod scale;
mod upstream;
mod world;
