//! Enforces policies: what the API says about policies and their peers, compiled into rows of the maps.
//!
//! ```text
//!  watches ─▶ replace, submit ─┐
//!  ADD, restore ─▶ admit, add ─┴▶ Inbox ─▶ the thread: Compiler ─▶ rows ─▶ maps
//!  DEL, rollback ─▶ forget ────┘                        └▶ read: explanations
//! ```
//!
//! A pod's interface without a subject in `VIFS` passes nothing, so that whatever fails here fails closed.

mod admit;
mod batch;
mod complete;
mod denial;
mod enforcer;
mod feed;
mod held;
mod inbox;
mod install;
mod maps;
mod mode;
mod objects;
mod queue;
mod remote_pods;
mod report;
mod reporters;
mod shared;
mod state;
mod stub;
#[cfg(test)]
mod tests;
mod unjudged;
mod worker;

pub use admit::AdmitError;
pub use denial::{Denial, Denials};
pub use enforcer::Enforcer;
pub use feed::Feed;
pub use inbox::Interface;
pub use maps::Maps;
pub use mode::{Mode, Unlisted};
pub use remote_pods::{RemotePod, RemotePods};
pub use report::Report;
pub use reporters::Reporters;
pub use unjudged::Unjudged;
