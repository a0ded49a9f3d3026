//! Objects of the API, reduced to what policy needs.
//!
//! Pods, namespaces, nodes and Services ignore fields that they do not know. Policies do not: a field of a
//! newer API could narrow what a rule allows. Their `spec` stays JSON in a [`PolicyObject`], and decoding
//! never opens:
//!
//! * a NetworkPolicy that is not understood as a whole isolates its subjects and allows nothing;
//! * a rule of a ClusterNetworkPolicy that is not understood matches nothing if it accepts, and denies
//!   everything otherwise, as its API prescribes for unknown peers;
//! * a ClusterNetworkPolicy whose other fields are not understood applies to all pods that it may mean,
//!   before all others that it may follow, and only with the rules that deny.
//!
//! The reasons are in [`Policy::problems`](crate::Policy::problems), for an Event.

mod cluster_policy;
mod fields;
mod labels;
mod metadata;
mod network_policy;
mod pod;
mod problem;
mod selector;
mod service;

pub use cluster_policy::cluster_network_policy;
pub use labels::Labels;
pub use metadata::{AUDIT, Metadata, Namespace, Node, NodeAddress, NodeStatus, PolicyObject};
pub use network_policy::network_policy;
pub use pod::{ContainerPort, Pod};
pub use problem::{DecodeError, Effect, Problem};
pub use service::{LoadBalancer, LoadBalancerIngress, Service, ServiceSpec, ServiceStatus};

/// The longest `spec` of a policy, in bytes; etcd stores objects of at most 1.5 MiB.
pub const MAX_SPEC: usize = 2 << 20;
