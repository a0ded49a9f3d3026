//! Enforces policies: what the API says about policies and their peers, compiled into rows of the maps.

mod enforcer;

pub use enforcer::{AdmitError, Enforcer};
