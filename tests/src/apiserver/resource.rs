//! The resources that are served, and the groups that they are served in.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// core/v1 Pods.
    Pods,
    /// core/v1 Nodes.
    Nodes,
    /// core/v1 Namespaces.
    Namespaces,
    /// Events: stored as core/v1 has them, served as events.k8s.io/v1 has them too.
    Events,
    /// openstack.org/v1 KuryrPorts, which a cluster may not have.
    KuryrPorts,
}

/// A resource as one API group serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub resource: Resource,
    pub group: &'static str,
}

/// All that is served.
pub(super) const ENDPOINTS: [Endpoint; 6] = [
    Endpoint { resource: Resource::Pods, group: "" },
    Endpoint { resource: Resource::Nodes, group: "" },
    Endpoint { resource: Resource::Namespaces, group: "" },
    Endpoint { resource: Resource::Events, group: "" },
    Endpoint { resource: Resource::Events, group: "events.k8s.io" },
    Endpoint { resource: Resource::KuryrPorts, group: "openstack.org" },
];

/// What the fields of an event are called: in core/v1, and in events.k8s.io/v1.
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
    /// The name in paths, plural.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::Events => "events",
            Self::KuryrPorts => "kuryrports",
        }
    }

    /// The `kind` of its objects.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Pods => "Pod",
            Self::Nodes => "Node",
            Self::Namespaces => "Namespace",
            Self::Events => "Event",
            Self::KuryrPorts => "KuryrPort",
        }
    }

    /// Whether its objects live in namespaces.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        !matches!(self, Self::Nodes | Self::Namespaces)
    }

    /// How its objects are stored.
    pub(super) const fn stored(self) -> Endpoint {
        let group = if self.is_custom() { "openstack.org" } else { "" };
        Endpoint { resource: self, group }
    }

    /// Whether it is a custom resource, to which other rules apply.
    pub(super) const fn is_custom(self) -> bool {
        matches!(self, Self::KuryrPorts)
    }

    /// Whether `status` is a subresource, so that a write to the object itself leaves it alone.
    pub(super) const fn has_status(self) -> bool {
        matches!(self, Self::Pods | Self::Nodes | Self::Namespaces)
    }

    /// The fields that a field selector may name, besides name and namespace: label, and JSON pointer.
    pub(super) const fn fields(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Pods => &[
                ("spec.nodeName", "/spec/nodeName"),
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
            Self::Nodes | Self::KuryrPorts => &[],
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
    /// Who serves a path `/apis/<group>/v1/<name>`, or `/api/v1/<name>` where the group is empty.
    pub fn find(group: &str, name: &str) -> Option<Self> {
        ENDPOINTS.into_iter().find(|endpoint| endpoint.group == group && endpoint.resource.name() == name)
    }

    /// The `apiVersion` of its objects.
    pub const fn api_version(self) -> &'static str {
        match self.group.as_bytes() {
            b"events.k8s.io" => "events.k8s.io/v1",
            b"openstack.org" => "openstack.org/v1",
            _ => "v1",
        }
    }

    /// Whether objects are served as they are stored.
    pub fn is_stored(self) -> bool {
        self == self.resource.stored()
    }

    /// An object as it is stored, made what this endpoint serves.
    pub fn serving(self, value: Value) -> Value {
        self.renamed(value, |(core, own)| (core, own))
    }

    /// An object as this endpoint serves it, made what is stored.
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
