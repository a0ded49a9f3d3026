//! What the API server says: this node's pods with their KuryrPorts, the nodes of the cluster, and the ranges
//! of Services.
//!
//! The sinks of the watches are here. Whatever higher rooms need to learn leaves through a callback or a
//! channel that the caller provides.

mod initial_sync;
mod labels;
mod node;
mod objects;
mod own_node;
mod pod_ref;
mod pods;
mod sources;

pub use initial_sync::InitialSync;
pub use labels::Labels;
pub use node::{MAX_STATED, NETWORK_UNAVAILABLE, Node, STARTUP_TAINT, Stated};
pub use objects::{Annotations, KuryrPort, Metadata, Pod, ServiceCidr};
pub use own_node::{Marks, OwnNode};
pub use pod_ref::PodRef;
pub use pods::{Lookup, PodChange, Pods, Port, Subscription};
pub use sources::{KURYR_PORTS, watch_kuryr_ports, watch_nodes, watch_pods, watch_service_cidrs};
