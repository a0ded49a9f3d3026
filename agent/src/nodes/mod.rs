//! The nodes of the cluster: which ranges and addresses are whose, and what this node tells the API about
//! itself.
//!
//! [`Table`] keeps what the watch says about each Node object and resolves conflicts, by one pure function
//! over all of them: the order of events never matters. Its result is [`Nodes`]. [`Keeper`] turns them into
//! routes:
//!
//! ```text
//!  watch ─▶ Table ─▶ Nodes ─┐
//!  the kernel's ways ───────┴▶ plan ─▶ Keeper ─▶ uplinks, tunnel device, map NODES, routes, rules
//! ```

mod ahead;
mod announce;
mod claims;
mod keeper;
mod plan;
mod refusals;
mod report;
mod resolve;
mod retract;
mod run;
mod settings;
mod table;
#[cfg(test)]
mod testing;
mod way;

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

pub use ahead::Ahead;
pub use announce::{Announcer, Duties};
pub use keeper::{KeepError, Keeper, Outside};
pub use refusals::Refusals;
pub use report::{FastPath, Reached, Report, Taken};
pub use retract::retract;
pub use settings::{Mode, Settings};
pub use table::Table;
pub use way::{NoWay, Way};

/// What the API says about the cluster's nodes, with conflicts resolved.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Whether the nodes are complete, and this one was among them. Nothing may be concluded from a node's
    /// absence before.
    pub is_synced: bool,
    /// The node of this agent, unless its object is deleted.
    pub own: Option<Node>,
    /// By name; only what is accepted.
    pub others: Vec<Node>,
    pub refused: Vec<Refused>,
}

/// A node with its accepted ranges and addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// A node that is deleted and comes back has another one.
    pub uid: Arc<str>,
    /// Shared with the object.
    pub name: Arc<str>,
    pub zone: Option<String>,
    /// Its InternalIPs, in their order.
    pub addresses: Vec<IpAddr>,
    /// The ranges of its pods, in their order.
    pub ranges: Vec<IpNet>,
}

/// A range or an address of a node that is not used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refused {
    pub node: String,
    pub uid: Arc<str>,
    /// As in the object: `the range 10.244.1.0/24`.
    pub what: String,
    /// With what to do.
    pub why: String,
    /// The name of the node that keeps it, if it is another node's.
    pub claimant: Option<String>,
}

// === impl Nodes ===

impl Nodes {
    /// A cluster of this node, without an API server.
    pub fn only(ranges: &[IpNet]) -> Self {
        let own = Node {
            uid: "".into(),
            name: "".into(),
            zone: None,
            addresses: Vec::new(),
            ranges: ranges.to_vec(),
        };
        Self { is_synced: true, own: Some(own), others: Vec::new(), refused: Vec::new() }
    }
}
