//! The served resources and their API groups.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A type of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    Pods,
    Nodes,
    Namespaces,
    /// Stored as core/v1 and also served as events.k8s.io/v1.
    Events,
    /// openstack.org/v1, optional in a cluster.
    KuryrPorts,
    Services,
    /// networking.k8s.io/v1.
    NetworkPolicies,
    /// networking.k8s.io/v1.
    ServiceCidrs,
    /// policy.networking.k8s.io/v1alpha2, optional in a cluster.
    ClusterNetworkPolicies,
}

/// A resource as served by one API group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub resource: Resource,
    pub group: &'static str,
}

pub(super) const ENDPOINTS: [Endpoint; 10] = [
    Endpoint { resource: Resource::Pods, group: "" },
    Endpoint { resource: Resource::Nodes, group: "" },
    Endpoint { resource: Resource::Namespaces, group: "" },
    Endpoint { resource: Resource::Events, group: "" },
    Endpoint { resource: Resource::Events, group: "events.k8s.io" },
    Endpoint { resource: Resource::KuryrPorts, group: "openstack.org" },
    Endpoint { resource: Resource::Services, group: "" },
    Endpoint { resource: Resource::NetworkPolicies, group: NETWORKING },
    Endpoint { resource: Resource::ServiceCidrs, group: NETWORKING },
    Endpoint { resource: Resource::ClusterNetworkPolicies, group: CLUSTER_POLICIES },
];

/// All groups but the one without a name.
pub(super) const GROUPS: [&str; 4] = ["events.k8s.io", "openstack.org", NETWORKING, CLUSTER_POLICIES];
const NETWORKING: &str = "networking.k8s.io";
pub(super) const CLUSTER_POLICIES: &str = "policy.networking.k8s.io";

/// An event's field names in core/v1 and in events.k8s.io/v1.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

// === impl Resource ===

impl Resource {
    /// The plural name in paths.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::Events => "events",
            Self::KuryrPorts => "kuryrports",
            Self::Services => "services",
            Self::NetworkPolicies => "networkpolicies",
            Self::ServiceCidrs => "servicecidrs",
            Self::ClusterNetworkPolicies => "clusternetworkpolicies",
        }
    }

    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Pods => "Pod",
            Self::Nodes => "Node",
            Self::Namespaces => "Namespace",
            Self::Events => "Event",
            Self::KuryrPorts => "KuryrPort",
            Self::Services => "Service",
            Self::NetworkPolicies => "NetworkPolicy",
            Self::ServiceCidrs => "ServiceCIDR",
            Self::ClusterNetworkPolicies => "ClusterNetworkPolicy",
        }
    }

    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        !matches!(self, Self::Nodes | Self::Namespaces | Self::ServiceCidrs | Self::ClusterNetworkPolicies)
    }

    /// The endpoint whose form the store uses.
    pub(super) const fn stored(self) -> Endpoint {
        let group = match self {
            Self::KuryrPorts => "openstack.org",
            Self::NetworkPolicies | Self::ServiceCidrs => NETWORKING,
            Self::ClusterNetworkPolicies => CLUSTER_POLICIES,
            _ => "",
        };
        Endpoint { resource: self, group }
    }

    /// Custom resources follow other rules than built-in ones.
    pub(super) const fn is_custom(self) -> bool {
        matches!(self, Self::KuryrPorts | Self::ClusterNetworkPolicies)
    }

    /// Whether `status` is a subresource, so that a write to the main resource ignores it.
    pub(super) const fn has_status(self) -> bool {
        matches!(self, Self::Pods | Self::Nodes | Self::Namespaces | Self::Services)
    }

    /// Fields that a field selector may name besides name and namespace: label and JSON pointer.
    pub(super) const fn fields(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Pods => &[
                ("spec.nodeName", "/spec/nodeName"),
                ("spec.hostNetwork", "/spec/hostNetwork"),
                ("status.phase", "/status/phase"),
                ("status.podIP", "/status/podIP"),
            ],
            Self::Namespaces => &[("status.phase", "/status/phase")],
            Self::Events => &[
                ("involvedObject.kind", "/involvedObject/kind"),
                ("involvedObject.name", "/involvedObject/name"),
                ("involvedObject.namespace", "/involvedObject/namespace"),
                ("involvedObject.uid", "/involvedObject/uid"),
                ("reason", "/reason"),
                ("type", "/type"),
            ],
            Self::Services => &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")],
            Self::Nodes
            | Self::KuryrPorts
            | Self::NetworkPolicies
            | Self::ServiceCidrs
            | Self::ClusterNetworkPolicies => &[],
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// The endpoint of a path `/apis/<group>/<version>/<name>`, or `/api/v1/<name>` for the empty group.
    pub fn find(group: &str, version: &str, name: &str) -> Option<Self> {
        let mut all = ENDPOINTS.into_iter().filter(|it| it.group == group && version_of(group) == version);
        all.find(|endpoint| endpoint.resource.name() == name)
    }

    pub const fn api_version(self) -> &'static str {
        match self.group.as_bytes() {
            b"events.k8s.io" => "events.k8s.io/v1",
            b"openstack.org" => "openstack.org/v1",
            b"networking.k8s.io" => "networking.k8s.io/v1",
            b"policy.networking.k8s.io" => "policy.networking.k8s.io/v1alpha2",
            _ => "v1",
        }
    }

    /// Whether the served form equals the stored form.
    pub fn is_stored(self) -> bool {
        self == self.resource.stored()
    }

    /// Converts a stored object to this endpoint's form.
    pub fn serving(self, value: Value) -> Value {
        self.renamed(value, |(core, own)| (core, own))
    }

    /// Converts an object of this endpoint to the stored form.
    pub fn storing(self, value: Value) -> Value {
        self.renamed(value, |(core, own)| (own, core))
    }

    fn renamed(
        self,
        value: Value,
        way: fn((&'static str, &'static str)) -> (&'static str, &'static str),
    ) -> Value {
        match value {
            Value::Object(mut object) if !self.is_stored() => {
                for (from, to) in EVENT_FIELDS.map(way) {
                    if let Some(field) = object.remove(from) {
                        object.insert(to.to_owned(), field);
                    }
                }
                Value::Object(object)
            }
            other => other,
        }
    }

    /// Sets `apiVersion` and `kind`.
    pub fn name_type(self, object: &mut Map<String, Value>) {
        object.insert("apiVersion".to_owned(), self.api_version().into());
        object.insert("kind".to_owned(), self.resource.kind().into());
    }
}

/// The only served version of a group.
pub(super) fn version_of(group: &str) -> &'static str {
    if group == CLUSTER_POLICIES { "v1alpha2" } else { "v1" }
}
