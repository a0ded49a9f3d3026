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

/// Keys of the annotations that the agent reads, in [`cni::Annotations`] and at the API server.
pub mod annotations {
    /// The VIF in Ferrule's own format, see `docs/vif.md`.
    pub const VIF: &str = "vif.ferrule.dev/v1";
    /// The VIF in Kuryr's formats before KuryrPort.
    pub const KURYR_VIF: &str = "openstack.org/kuryr-vif";
    /// Of a Namespace: `true` lets pass, and records, what policies deny to its pods.
    pub const AUDIT: &str = "policy.ferrule.dev/audit";
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
    use prost::Message as _;

    use super::{
        cni::ApiRange,
        flow::{DropReason, Flow, FlowFilter, Verdict},
        observer::GetFlowsRequest,
    };

    /// A field with a length: tag (number and wire type 2), length, bytes.
    fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
        let mut field = Vec::new();
        prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut field);
        prost::encoding::encode_varint(bytes.len() as u64, &mut field);
        field.extend(bytes);
        field
    }

    /// The numbers are those of Cilium's `flow.proto` and `observer.proto`.
    #[test]
    fn messages_of_hubble_are_read() {
        let ip = field(5, &[field(1, b"10.0.0.1"), field(2, b"10.0.0.2")].concat());
        // Verdict: 2, varint. Reason: 25, varint, 132.
        let numbers = [0x10, 2, 0xc8, 1, 0x84, 1];
        let ends = [field(8, &field(5, b"web-0")), field(9, &field(3, b"shop"))].concat();
        let interface = field(28, &field(2, b"eth0"));
        let flow = Flow::decode(&*[numbers.to_vec(), ip, ends, interface].concat()).unwrap();
        assert_eq!(
            (flow.verdict(), flow.drop_reason_desc()),
            (Verdict::Dropped, DropReason::InvalidSourceIp)
        );
        let ip = flow.ip.unwrap();
        assert_eq!((ip.source.as_str(), ip.destination.as_str()), ("10.0.0.1", "10.0.0.2"));
        let (source, destination) = (flow.source.unwrap(), flow.destination.unwrap());
        assert_eq!((source.pod_name.as_str(), destination.namespace.as_str()), ("web-0", "shop"));
        assert_eq!(flow.interface.unwrap().name, "eth0");

        let filter = [field(2, b"shop/"), field(14, b"80"), field(26, &field(1, b"web"))].concat();
        // Number: 1, varint, 20. Follow: 3, varint.
        let request = [vec![8, 20, 0x18, 1], field(6, &filter), field(5, &[])].concat();
        let request = GetFlowsRequest::decode(&*request).unwrap();
        assert_eq!(
            (request.number, request.follow, &*request.blacklist),
            (20, true, &[FlowFilter::default()][..])
        );
        let [filter] = &*request.whitelist else { panic!("{request:?}") };
        assert_eq!((&*filter.source_pod[0], &*filter.destination_port[0]), ("shop/", "80"));
        assert_eq!(filter.source_workload[0].name, "web");
    }

    #[test]
    fn api_ranges_meet_if_they_share_a_version() {
        let range = |min, max| ApiRange { min, max };
        assert!(range(1, 1).meets(&range(1, 3)));
        assert!(range(2, 4).meets(&range(1, 2)));
        assert!(!range(1, 1).meets(&range(2, 3)));
        assert!(!range(4, 5).meets(&range(2, 3)));
    }
}
