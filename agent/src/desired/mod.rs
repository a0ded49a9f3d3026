//! The desired state of attachments and of the node, and the diff against the actual state.
//!
//! ```text
//!  attachment ─▶ desired() ─▶ Desired ─┐
//!                                      ├─▶ Desired::diff ─▶ deviations
//!  plug + dataplane inventories ─▶ Actual ─┘
//! ```
//!
//! | user | reads | compares |
//! |---|---|---|
//! | CHECK, a repeated ADD, the commit of a waiting ADD | [`verify`] | both ends, the map entries |
//! | self-healing | [`Inspector`] | host ends, map entries, the node, orphans |
//! | `ferrulectl verify` | [`Inspector`], [`verify_pod_end`] | the same, pods' ends, netfilter chains |
//! | start | [`presence`] | whether the host's end exists and is the attachment's |
//!
//! Healing does not read the pod's end: the pod may change it at any time.

mod about;
mod advice;
mod attachment;
mod deviation;
mod deviations;
mod diff;
mod foreign;
mod inspector;
mod inventory;
mod node;
mod orphans;
mod presence;
mod verify;

pub use about::About;
pub use advice::Advice;
pub use attachment::{Desired, ExpectedMtu, desired};
pub use deviation::{Deviation, Kind, Subject, summary};
pub use diff::{Actual, PodEnd};
pub use foreign::Foreign;
pub use inspector::{Findings, Inspection, Inspector};
pub use inventory::Inventory;
pub use presence::{Presence, netns_exists, presence};
pub use verify::{verify, verify_pod_end};

#[cfg(test)]
pub mod tests;
