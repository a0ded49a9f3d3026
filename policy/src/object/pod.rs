//! Pods.

use serde::{Deserialize, Serialize};

use super::metadata::{Metadata, null};

/// A Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct Pod {
    /// The metadata.
    pub metadata: Metadata,
    /// The spec.
    #[serde(default, deserialize_with = "null")]
    pub spec: PodSpec,
    /// The status.
    #[serde(default, deserialize_with = "null")]
    pub status: PodStatus,
}

/// The spec of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// The node that runs the pod; empty before the scheduler has chosen one.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Whether the pod uses the node's network: its addresses are the node's, and policy ignores it.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// The containers.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    /// Those with the restart policy `Always` run as long as the pod.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// The declared ports.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// Of init containers only.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub restart_policy: String,
}

/// A declared port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// Empty for a port without a name.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The number.
    pub container_port: u16,
    /// Empty is TCP.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub protocol: String,
}

/// The status of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// `Succeeded` and `Failed` are final.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The first address; older servers set only this one.
    #[serde(default, rename = "podIP", deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    /// All addresses.
    #[serde(default, rename = "podIPs", deserialize_with = "null", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
}

/// An address of a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct PodIp {
    /// The text.
    #[serde(default, deserialize_with = "null")]
    pub ip: String,
}

// === impl Pod ===

impl Pod {
    /// Whether all containers have ended and will not restart: the addresses may be another pod's.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The ports of all containers that run as long as the pod does.
    pub fn ports(&self) -> impl Iterator<Item = &ContainerPort> {
        let sidecars = self.spec.init_containers.iter().filter(|it| it.restart_policy == "Always");
        self.spec.containers.iter().chain(sidecars).flat_map(|it| &it.ports)
    }

    /// The texts of all addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let all = self.status.pod_ips.iter().map(|it| it.ip.as_str());
        all.chain([self.status.pod_ip.as_str()]).filter(|it| !it.is_empty())
    }
}
