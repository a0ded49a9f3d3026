//! An Event before it is sent.

/// An Event about a pod, a node or a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub about: About,
    /// Empty for an object of the cluster.
    pub namespace: String,
    pub name: String,
    /// Of the API; may be empty. `kubectl describe` searches for it.
    pub uid: String,
    pub reason: &'static str,
    pub is_warning: bool,
    pub note: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum About {
    Pod,
    Node,
    NetworkPolicy,
    ClusterNetworkPolicy,
}

/// The namespace of Events about objects without one; the API server accepts no other.
const CLUSTER: &str = "default";

// === impl Event ===

impl Event {
    /// The namespace that the Event itself is in.
    pub(super) fn home(&self) -> &str {
        if self.namespace.is_empty() { CLUSTER } else { &self.namespace }
    }
}

// === impl About ===

impl About {
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
        }
    }

    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::Pod | Self::Node => "v1",
            Self::NetworkPolicy => "networking.k8s.io/v1",
            Self::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
        }
    }

    /// What was done, or not done, to the object.
    pub(super) fn action(self) -> &'static str {
        match self {
            Self::Pod => "Add",
            Self::Node => "Route",
            Self::NetworkPolicy | Self::ClusterNetworkPolicy => "Enforce",
        }
    }
}

/// The API path of a namespace's Events. The caller has validated the namespace, so that it is safe in a
/// path.
pub(super) fn collection(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}
