//! What the API server says about this node: its pods with their KuryrPorts, and its pod CIDRs.
//!
//! The sinks of the watches are here. Whatever higher rooms need to learn leaves through a callback or a
//! channel that the caller provides.

mod initial_sync;
mod objects;
mod own_node;
mod pod_ref;
mod pods;
mod sources;

pub use initial_sync::InitialSync;
pub use objects::{Annotations, KuryrPort, Metadata, Node, Pod};
pub use own_node::watch_own_node;
pub use pod_ref::PodRef;
pub use pods::{Lookup, PodChange, Pods, Port, Subscription};
pub use sources::{KURYR_PORTS, watch_kuryr_ports, watch_pods};
