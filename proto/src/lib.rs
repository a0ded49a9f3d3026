//! The gRPC protocols of Ferrule, and the formats that shim, agent and `ferrulectl` share.

#![forbid(unsafe_code)]

pub mod deferred;
mod json;
pub mod misspelt;
pub mod names;
pub mod quoted;
pub mod trace;

/// `ferrule.cni.v1`, between shim and agent.
#[expect(clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod cni {
    tonic::include_proto!("ferrule.cni.v1");
}

/// `ferrule.agent.v1`, between `ferrulectl` and agent. The messages serialize to the JSON of `ferrulectl -o
/// json`.
#[expect(clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod agent {
    tonic::include_proto!("ferrule.agent.v1");
}

/// `flow`: dropped packets and flows, as a subset of Hubble's messages.
pub mod flow {
    tonic::include_proto!("flow");
}

/// `observer`: the service of dropped packets and flows, as a subset of Hubble's.
#[expect(clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod observer {
    tonic::include_proto!("observer");
}

/// The API versions that this build supports.
pub const API: cni::ApiRange = cni::ApiRange { min: 1, max: 1 };

/// The encoded `FileDescriptorSet` of all packages, for gRPC reflection and for JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The agent's default socket.
pub const DEFAULT_SOCKET: &str = "/run/ferrule/agent.sock";

/// Keys of the pod annotations that the agent reads, in [`cni::Annotations`] and at the API server.
pub mod annotations {
    /// The VIF in Ferrule's own format, see `docs/vif.md`.
    pub const VIF: &str = "vif.ferrule.dev/v1";
    /// The VIF in Kuryr's formats before KuryrPort.
    pub const KURYR_VIF: &str = "openstack.org/kuryr-vif";
    /// Where the kubelet got the pod from: `api`, or `file` or `http` for a static pod.
    pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
}

impl cni::ApiRange {
    /// Whether the two ranges share a version.
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
    fn api_ranges_meet_if_they_share_a_version() {
        let range = |min, max| ApiRange { min, max };
        assert!(range(1, 1).meets(&range(1, 3)));
        assert!(range(2, 4).meets(&range(1, 2)));
        assert!(!range(1, 1).meets(&range(2, 3)));
        assert!(!range(4, 5).meets(&range(2, 3)));
    }
}
