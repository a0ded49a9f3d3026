//! The gRPC protocols of Ferrule.
//!
//! The `.proto` files hold the prose; this crate holds what was generated from them, the range of API
//! versions that this build speaks, the [`names`] and the [`trace`] that both ends check, and the [`deferred`] DELs that one leaves
//! for the other.

#![forbid(unsafe_code)]

pub mod deferred;
pub mod names;
pub mod trace;

/// `ferrule.cni.v1`: shim and agent.
#[expect(clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod cni {
    tonic::include_proto!("ferrule.cni.v1");
}

/// `ferrule.agent.v1`: `ferrulectl` and agent.
#[expect(clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod agent {
    tonic::include_proto!("ferrule.agent.v1");
}

/// The API versions that this build speaks.
pub const API: cni::ApiRange = cni::ApiRange { min: 1, max: 1 };

/// The encoded `FileDescriptorSet` of both packages, for gRPC reflection.
#[cfg(feature = "server")]
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Where the agent listens unless it is told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/ferrule/agent.sock";

/// The annotations of a pod that matter to its VIF, in [`cni::Annotations`] and at the API server.
pub mod annotations {
    /// The VIF, as ours: see `docs/vif.md`.
    pub const VIF: &str = "vif.ferrule.dev/v1";
    /// The VIF, as Kuryr wrote it in the eras before KuryrPort.
    pub const KURYR_VIF: &str = "openstack.org/kuryr-vif";
    /// Where the kubelet has the pod from; for a static pod, not from the API.
    pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
}

impl cni::ApiRange {
    /// Whether two sides can talk.
    pub fn meets(&self, other: &Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

impl std::fmt::Display for cni::ApiRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.min == self.max {
            write!(f, "v{}", self.min)
        } else {
            write!(f, "v{} to v{}", self.min, self.max)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cni::ApiRange;

    #[test]
    fn ranges_meet_only_if_they_share_a_version() {
        let range = |min, max| ApiRange { min, max };
        assert!(range(1, 1).meets(&range(1, 3)));
        assert!(range(2, 4).meets(&range(1, 2)));
        assert!(!range(1, 1).meets(&range(2, 3)));
        assert!(!range(4, 5).meets(&range(2, 3)));
    }
}
