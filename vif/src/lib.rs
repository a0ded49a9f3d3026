//! What a VIF is: the interface that a pod should get; and what annotations and KuryrPorts say of one.
//!
//! Only decoding is done here, of bytes that anybody may have written: no I/O, no state. Whether an address may be
//! used on a node is for the agent to say.

#![forbid(unsafe_code)]

mod annotation;
mod at;
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

/// The VIF of a pod: what a source says that it should get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VifRequest {
    /// How it was written.
    pub format: Format,
    /// The pod's default interface first; never empty. The default one is named as the runtime asks, and it alone
    /// gets default routes.
    pub interfaces: Vec<InterfaceRequest>,
}

/// How a VIF was written.
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

/// One interface that a pod should get.
///
/// Whatever the source, its name, its MAC and its MTU are ones that the kernel takes, and its addresses are unicast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InterfaceRequest {
    /// Its name in the pod, as the source has it.
    pub name: String,
    /// What is to be made.
    pub kind: Kind,
    /// Whether whoever has to prepare the network for it has done so: an ADD plugs an inactive one and answers when
    /// it is active.
    pub active: bool,
    /// `None` leaves it to the agent.
    pub mac: Option<Mac>,
    /// Bytes; `None` leaves it to the agent.
    pub mtu: Option<u32>,
    /// With the length of the prefix of the subnet, as far as the source knows it. Kuryr may have several of one
    /// family, and none before it has given any.
    pub addresses: Vec<IpNet>,
    /// At most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Beside the default ones.
    pub routes: Vec<Route>,
    /// What else the source says, for people to read: such as Kuryr's `vlan_id`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<&'static str, String>,
}

/// A route of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Without host bits.
    pub dst: IpNet,
    /// `None` is the gateway of the family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// The largest packet to these destinations, in bytes; `None` leaves it to the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The maximum segment size that TCP advertises to them, in bytes; `None` leaves it to the MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Which of several routes wins: the lower one. `None` leaves it to the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

/// What is to be made for an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A veth pair, routed by the host: os_vif's `VIFGeneric`.
    Veth,
    /// A kind that is understood, but which the agent cannot plug: its name in the source, such as `VIFVlanNested`.
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
    /// A route that leaves all else to the kernel.
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
