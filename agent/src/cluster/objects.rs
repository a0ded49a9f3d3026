//! The API's objects, as far as we use them: a whole Pod costs four times the time and 25 times the memory.
//!
//! Each is read from the API's JSON and, as it is the same shape with less in it, from what was kept of it.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::watch::{Object, ObjectKey};

/// What `null` stands for is what nothing stands for.
fn null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    #[serde(default, deserialize_with = "null")]
    pub uid: String,
    /// Taken out as soon as it is known: it moves the position and is of no use afterwards.
    #[serde(default, deserialize_with = "null", skip_serializing)]
    pub resource_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    #[serde(default, deserialize_with = "null", skip_serializing_if = "Annotations::is_empty")]
    pub annotations: Annotations,
}

/// The annotations that tell of a VIF (`ferrule_proto::annotations`); all others are passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Annotations {
    /// Ours.
    #[serde(default, rename = "vif.ferrule.dev/v1", skip_serializing_if = "Option::is_none")]
    pub ferrule: Option<String>,
    /// Kuryr's.
    #[serde(default, rename = "openstack.org/kuryr-vif", skip_serializing_if = "Option::is_none")]
    pub kuryr: Option<String>,
    /// Where the kubelet has the pod from. For a static pod, which it does not have from the API, that is a file or
    /// a URL; and what the API has is a mirror of it, with a UID of its own.
    #[serde(default, rename = "kubernetes.io/config.source", skip_serializing_if = "Option::is_none")]
    pub config_source: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Pod {
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "null")]
    pub spec: PodSpec,
    #[serde(default, deserialize_with = "null")]
    pub status: PodStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(default, deserialize_with = "null", skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct PodStatus {
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub phase: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Node {
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "null")]
    pub spec: NodeSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// What the controller gave the node for its pods, of each family; there may be none yet.
    #[serde(default, deserialize_with = "null", rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    /// The first of them, from a time when there was one only.
    #[serde(
        default,
        deserialize_with = "null",
        rename = "podCIDR",
        skip_serializing_if = "String::is_empty"
    )]
    pub pod_cidr: String,
}

/// Kuryr's decision for a pod, which has the same name.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct KuryrPort {
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "null")]
    pub spec: KuryrPortSpec,
    #[serde(default)]
    pub status: Option<KuryrPortStatus>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KuryrPortSpec {
    #[serde(default, deserialize_with = "null")]
    pub pod_uid: String,
    #[serde(default)]
    pub pod_static: Option<bool>,
    /// As it stands: it is decoded when somebody asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vifs: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct KuryrPortStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vifs: Option<Box<RawValue>>,
}

// === impl Metadata ===

impl Metadata {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }
}

// === impl Annotations ===

impl Annotations {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

// === impl Pod ===

impl Pod {
    /// Whether all of it has ended, for good.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether it is the mirror of a pod that the kubelet has not from the API.
    pub fn is_static(&self) -> bool {
        self.metadata.annotations.is_static()
    }
}

impl Annotations {
    /// Whether they are a static pod's.
    pub fn is_static(&self) -> bool {
        self.config_source.as_deref().is_some_and(|source| source != "api")
    }
}

macro_rules! watched {
    ($($type:ty),*) => {$(
        impl Object for $type {
            fn key(&self) -> ObjectKey {
                self.metadata.key()
            }

            fn uid(&self) -> &str {
                &self.metadata.uid
            }

            fn take_version(&mut self) -> String {
                std::mem::take(&mut self.metadata.resource_version)
            }
        }
    )*};
}
watched!(Pod, Node, KuryrPort);
