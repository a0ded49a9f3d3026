//! Which object a change is about.

use crate::{Change, EndpointId, PolicyId};

/// An object of the cluster, or an interface of this node: of two changes about the same one, only the later
/// counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// By UID.
    Pod(String),
    /// By UID.
    Node(String),
    /// By name and UID.
    Namespace(String, String),
    /// By name and UID.
    Policy(PolicyId, String),
    /// By UID.
    Service(String),
    /// The one list of this node's addresses.
    HostAddresses,
    /// By number.
    Endpoint(EndpointId),
}

// === impl Change ===

impl Change {
    /// Which object the change is about.
    pub fn object(&self) -> ObjectKey {
        match self {
            Self::Pod(pod) => ObjectKey::Pod(pod.metadata.uid.clone()),
            Self::PodGone { uid } => ObjectKey::Pod(uid.clone()),
            Self::Node(node) => ObjectKey::Node(node.metadata.uid.clone()),
            Self::NodeGone { uid } => ObjectKey::Node(uid.clone()),
            Self::Namespace(it) => ObjectKey::Namespace(it.metadata.name.clone(), it.metadata.uid.clone()),
            Self::NamespaceGone { name, uid } => ObjectKey::Namespace(name.clone(), uid.clone()),
            Self::Policy(policy) => ObjectKey::Policy(policy.id.clone(), policy.uid.clone()),
            Self::PolicyGone { id, uid } => ObjectKey::Policy(id.clone(), uid.clone()),
            Self::Service(service) => ObjectKey::Service(service.metadata.uid.clone()),
            Self::ServiceGone { uid } => ObjectKey::Service(uid.clone()),
            Self::HostAddresses(_) => ObjectKey::HostAddresses,
            Self::Endpoint(endpoint) => ObjectKey::Endpoint(endpoint.id),
            Self::EndpointGone { id } => ObjectKey::Endpoint(*id),
        }
    }
}
