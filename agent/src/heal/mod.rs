//! Self-healing: finds and repairs what other programs change on pods' interfaces, routes, filters and map
//! entries.
//!
//! ```text
//!  netlink notifications ─▶ collected ─▶ the attachments that they name ──┐
//!  the period, the start, lost notifications ─▶ a pass over everything ──┴▶ a second read, under the lock
//!                                                                              │ the deviation persists
//!                                                   counted, logged once, repaired, verified by a third read
//! ```
//!
//! [`crate::desired`] defines the deviations. Maps send no notifications, so only the periodic pass finds
//! their deviations. The pod's end is the pod's own, and stays untouched. Healing never delays a call: an
//! attachment that a call works on is examined later.

mod healer;
mod repair;
mod repair_node;
mod retry_budget;
mod run;
mod tracker;

pub use healer::Healer;
