//! Metadata, and the objects of which little more matters.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

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
    #[serde(default, deserialize_with = "null", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Namespace {
    /// The metadata.
    pub metadata: Metadata,
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

/// Treats `null` like a missing field.
pub(super) fn null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
