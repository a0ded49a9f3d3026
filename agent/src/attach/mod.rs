//! The engine: attaches, detaches, verifies and restores attachments.
//!
//! The CNI service, healing and reconciliation all drive this one engine. `docs/architecture.md` gives the order of
//! the steps of ADD and DEL and the reasons for it.

mod adopt_netns;
mod engine;
mod error;
mod in_flight;
mod make;
mod phases;
mod prev_result;
mod restore;
mod uncommitted;
mod work;

pub use engine::{Add, Engine};
pub use error::AttachError;
pub(crate) use phases::{Phases, Spell, Timeline};
