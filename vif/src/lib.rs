//! VIFs: the interfaces that a pod should get, and the decoders of annotations and KuryrPorts.
//!
//! The decoders take untrusted text and have neither I/O nor state. Whether a pod may use an address is the
//! agent's decision.

#![forbid(unsafe_code)]

mod annotation;
mod cursor;
mod error;
mod json;
pub mod kuryr;
mod mac;
pub mod manifest;
mod resolved;
mod rules;

use std::{collections::BTreeMap, fmt, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};

pub use annotation::from_annotation;
pub use error::{Source, VifError};
pub use ferrule_proto::annotations::{KURYR_VIF as KURYR_ANNOTATION, VIF as ANNOTATION};
pub use mac::Mac;
pub use resolved::{Addresses, PodRoute, Vif, VifKind};

/// The requested VIF of a pod, as decoded from an annotation or a KuryrPort.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VifRequest {
    /// The format that it was decoded from.
    pub format: Format,
    /// Never empty. The first is the pod's default interface: its name is the runtime's choice, and only it
    /// gets default routes.
    pub interfaces: Vec<InterfaceRequest>,
}

/// A format of a VIF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// [`ANNOTATION`].
    Annotation,
    /// [`KURYR_ANNOTATION`] with one VIF primitive (Kuryr 0.1 to 0.4).
    KuryrVif,
    /// [`KURYR_ANNOTATION`] with a map of VIF primitives (Kuryr of mid 2018, never released).
    KuryrVifMap,
    /// [`KURYR_ANNOTATION`] with a `PodState` (Kuryr 0.5 to 2.1).
    KuryrPodState,
    /// A KuryrPort with VIFs in its spec (Kuryr of August 2020, never released).
    KuryrPortSpec,
    /// A KuryrPort with VIFs in its status (Kuryr 3.0 and later).
    KuryrPort,
}

/// A requested interface of a pod.
///
/// In every format, the kernel accepts name, MAC and MTU, and the addresses are unicast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InterfaceRequest {
    /// The name in the pod.
    pub name: String,
    /// The kind of interface to create.
    pub kind: Kind,
    /// Whether the network is ready for the interface. An ADD plugs an inactive interface and waits until it
    /// is active.
    pub active: bool,
    /// `None` is the agent's choice.
    pub mac: Option<Mac>,
    /// Bytes; `None` is the agent's choice.
    pub mtu: Option<u32>,
    /// With the subnet's prefix length, if known. Kuryr may have several addresses of one family, and no
    /// address before it has allocated one.
    pub addresses: Vec<IpNet>,
    /// At most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Routes other than the default routes.
    pub routes: Vec<Route>,
    /// More fields for display only, for instance Kuryr's `vlan_id`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<&'static str, String>,
}

/// A requested route of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Without host bits.
    pub dst: IpNet,
    /// `None` is the gateway of the destination's family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Largest packet to these destinations, in bytes; `None` is the interface's MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Maximum segment size that TCP advertises to these destinations, in bytes; `None` derives it from the
    /// MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Metric: the kernel uses the route with the lowest value. `None` is the kernel's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

/// The kind of interface to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A veth pair, routed by the host: os_vif's `VIFGeneric`.
    Veth,
    /// An unsupported kind, by its name in the source, for instance `VIFVlanNested`.
    Other(String),
}

// === impl Format ===

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Annotation => "annotation",
            Self::KuryrVif => "kuryr-vif",
            Self::KuryrVifMap => "kuryr-vif-map",
            Self::KuryrPodState => "kuryr-pod-state",
            Self::KuryrPortSpec => "kuryr-port-spec",
            Self::KuryrPort => "kuryr-port",
        })
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Route ===

impl Route {
    /// A route with the kernel's defaults.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self { dst, gw, mtu: None, advmss: None, priority: None }
    }
}

// === impl Kind ===

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Veth => f.write_str("veth"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
