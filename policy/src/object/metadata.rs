//! Metadata, and the objects of which little more matters.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::labels::Labels;

/// What names an object, and its labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Empty for objects of the cluster.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
    /// Tells an object from its successor of the same name.
    #[serde(default, deserialize_with = "null")]
    pub uid: String,
    /// For the watch only.
    #[serde(default, deserialize_with = "null", skip_serializing)]
    pub resource_version: String,
    /// RFC 3339, UTC, in seconds.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub creation_timestamp: String,
    /// Set while the object is being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// The labels.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// A policy of either API, not decoded yet.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct PolicyObject {
    /// The metadata.
    pub metadata: Metadata,
    /// The JSON of the field `spec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Box<RawValue>>,
}

/// A Namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "WrittenNamespace", into = "WrittenNamespace")]
pub struct Namespace {
    /// The metadata.
    pub metadata: Metadata,
    /// Whether the annotation [`AUDIT`] asks that what policies deny to its pods passes, and is recorded.
    pub is_audited: bool,
}

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Node {
    /// The metadata.
    pub metadata: Metadata,
    /// The status.
    #[serde(default, deserialize_with = "null")]
    pub status: NodeStatus,
}

/// The status of a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct NodeStatus {
    /// Addresses and host names.
    #[serde(default, deserialize_with = "null")]
    pub addresses: Vec<NodeAddress>,
}

/// An address or a host name of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct NodeAddress {
    /// The text.
    pub address: String,
}

/// The annotation of a Namespace that asks for audit, with the value `true`.
pub const AUDIT: &str = ferrule_proto::annotations::AUDIT;

/// A Namespace as in JSON.
#[derive(Deserialize, Serialize)]
struct WrittenNamespace {
    metadata: AnnotatedMetadata,
}

#[derive(Deserialize, Serialize)]
struct AnnotatedMetadata {
    #[serde(flatten)]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null", skip_serializing_if = "Annotations::is_empty")]
    annotations: Annotations,
}

/// Of all annotations, only [`AUDIT`] is kept: others may be long.
#[derive(Default, Deserialize, Serialize)]
struct Annotations {
    #[serde(rename = "policy.ferrule.dev/audit", default, skip_serializing_if = "Option::is_none")]
    audit: Option<String>,
}

// === impl Namespace ===

impl From<WrittenNamespace> for Namespace {
    fn from(
        WrittenNamespace { metadata: AnnotatedMetadata { metadata, annotations } }: WrittenNamespace,
    ) -> Self {
        Self { metadata, is_audited: annotations.audit.as_deref() == Some("true") }
    }
}

impl From<Namespace> for WrittenNamespace {
    fn from(Namespace { metadata, is_audited }: Namespace) -> Self {
        let annotations = Annotations { audit: is_audited.then(|| "true".to_owned()) };
        Self { metadata: AnnotatedMetadata { metadata, annotations } }
    }
}

// === impl Annotations ===

impl Annotations {
    fn is_empty(&self) -> bool {
        self.audit.is_none()
    }
}

/// Treats `null` like a missing field.
pub(super) fn null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_namespaces_annotations_only_audit_is_kept_and_only_true_means_it() {
        let namespace = |annotations: &str| -> Namespace {
            let json = format!(
                r#"{{"metadata": {{"name": "web", "uid": "1", "labels": {{"a": "b"}}, "annotations": {annotations}}}}}"#
            );
            serde_json::from_str(&json).unwrap()
        };
        for (annotations, is_audited) in [
            (r#"{"policy.ferrule.dev/audit": "true", "x": "y"}"#, true),
            (r#"{"policy.ferrule.dev/audit": "false"}"#, false),
            (r#"{"policy.ferrule.dev/audit": "yes"}"#, false),
            (r#"{"x": "true"}"#, false),
            ("{}", false),
            ("null", false),
        ] {
            let namespace = namespace(annotations);
            assert_eq!(namespace.is_audited, is_audited, "{annotations}");
            assert_eq!((&*namespace.metadata.name, namespace.metadata.labels.get("a")), ("web", Some("b")));
            let kept = serde_json::to_string(&namespace).unwrap();
            assert_eq!(serde_json::from_str::<Namespace>(&kept).unwrap(), namespace, "{kept}");
            assert_eq!(kept.contains("annotations"), is_audited, "{kept}");
        }
    }

    #[test]
    fn the_annotation_has_the_documented_key() {
        let namespace = Namespace { is_audited: true, ..Namespace::default() };
        let json = serde_json::to_value(&namespace).unwrap();
        assert_eq!(json["metadata"]["annotations"][AUDIT], "true");
    }
}
