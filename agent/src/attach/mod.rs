//! The engine: attaches, detaches, verifies and restores attachments.
//!
//! The CNI service, healing and reconciliation all drive this one engine. `docs/architecture.md` gives the
//! order of the steps of ADD and DEL and the reasons for it.

mod add;
mod adopt_netns;
mod commit;
mod detach;
mod engine;
mod error;
mod in_flight;
mod journal;
mod judge;
mod limits;
mod path_mtu;
mod phases;
mod plug;
mod prev_result;
mod replace;
mod restore;
mod rollback;
mod uncommitted;
mod verify;
mod worker;

pub use add::AttachRequest;
pub use engine::Engine;
pub use error::AttachError;
pub use journal::{Failure, InFlightAdd, Journal, Story, Times};
pub(crate) use phases::{Phases, Spell, Timeline};
