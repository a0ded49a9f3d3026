//! Services.

use serde::{Deserialize, Serialize};

use super::metadata::{Metadata, null};

/// A Service, reduced to the addresses that nodes translate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Service {
    /// The metadata.
    pub metadata: Metadata,
    /// The spec.
    #[serde(default, deserialize_with = "null")]
    pub spec: ServiceSpec,
    /// The status.
    #[serde(default, deserialize_with = "null")]
    pub status: ServiceStatus,
}

/// The spec of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// The first address of the cluster; `None` (the text) for a Service without one.
    #[serde(
        default,
        rename = "clusterIP",
        deserialize_with = "null",
        skip_serializing_if = "String::is_empty"
    )]
    pub cluster_ip: String,
    /// All addresses of the cluster.
    #[serde(
        default,
        rename = "clusterIPs",
        deserialize_with = "null",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub cluster_ips: Vec<String>,
    /// Addresses that the Service's author has chosen.
    #[serde(
        default,
        rename = "externalIPs",
        deserialize_with = "null",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub external_ips: Vec<String>,
}

/// The status of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// Of the type LoadBalancer.
    #[serde(default, deserialize_with = "null")]
    pub load_balancer: LoadBalancer,
}

/// What a load balancer has for a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct LoadBalancer {
    /// Its points of entry.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// A point of entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct LoadBalancerIngress {
    /// Empty for one that has a host name only.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub ip: String,
}

// === impl Service ===

impl Service {
    /// The texts of all addresses. Not all are addresses: see [`ServiceSpec::cluster_ip`].
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let balanced = self.status.load_balancer.ingress.iter().map(|it| &it.ip);
        self.cluster_addresses().chain(self.spec.external_ips.iter().chain(balanced).map(String::as_str))
    }

    /// As [`Self::addresses`], those of the cluster's range for Services: no machine has one of its own.
    pub fn cluster_addresses(&self) -> impl Iterator<Item = &str> {
        let ServiceSpec { cluster_ip, cluster_ips, .. } = &self.spec;
        [cluster_ip].into_iter().chain(cluster_ips).map(String::as_str)
    }
}
