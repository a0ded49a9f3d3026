//! Enforces policies: what the API says about policies and their peers, compiled into rows of the maps.

mod denial;
mod enforcer;
mod feed;
mod objects;
mod state;

pub use denial::{Denial, Denials};
pub use enforcer::{AdmitError, Enforcer};
pub use feed::Feed;
