//! What was dropped, and which flows there are: reads the programs' records, explains them, keeps the last
//! ones, and serves them.
//!
//! ```text
//! EVENTS ─▶ dataplane ─▶ Recorder: parse, join with pods and policies ─▶ History ─▶ filters ─▶ clients
//! FLOW_STATS ──────────▶ Endings: flows without packets ──────┘
//! ```
//!
//! A pod that sends what is dropped decides how much there is to do here: a record costs a bounded parse, a
//! few lookups and allocations, and waits neither for a client nor for policies that are being compiled.

mod clock;
pub mod counters;
mod endings;
mod filter;
mod frame;
mod history;
mod packet;
mod query;
mod recent;
mod recorder;
mod seen;
mod service;
mod show;
mod subscription;
#[cfg(test)]
mod tests;

pub use endings::Endings;
pub use history::History;
pub use recent::drops;
pub use recorder::Recorder;
pub use seen::KnownPods;
pub use service::ObserverService;
