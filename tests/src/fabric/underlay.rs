//! The network between nodes: a segment with two of them, a router, a node behind the router, and a world.
//!
//! ```text
//!   node-1   node-2   control   stranger
//!      └────────┴─ switch ┴────────┘
//!                    │ segment: 192.0.2.0/24, 2001:db8:1::/64
//!                 router ── world: 203.0.113.0/24, 2001:db8:f::/64
//!                    │ far: 198.51.100.0/24, 2001:db8:2::/64
//!                  node-3
//! ```
//!
//! Switch, router and world have no route to pods, and every host checks sources strictly (`rp_filter` 1).

use std::{fs, path::PathBuf};

use anyhow::Context as _;

use crate::{node::UPLINK_MTU, sys};

/// The namespaces of the underlay, by their names below `/run/netns`.
pub const SWITCH: &str = "switch";
pub const ROUTER: &str = "router";
/// Where the API server listens.
pub const CONTROL: &str = "control";
/// A host of the segment that belongs to no cluster.
pub const STRANGER: &str = "stranger";
pub const WORLD: &str = "world";

pub const API: &str = "192.0.2.10:6443";
/// IPv4 and IPv6 of the stranger and of the world.
pub const STRANGER_ADDRESSES: [&str; 2] = ["192.0.2.66", "2001:db8:1::66"];
pub const WORLD_ADDRESSES: [&str; 2] = ["203.0.113.7", "2001:db8:f::7"];

/// A network of the underlay: the router's interface in it, and the beginnings of its addresses.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    pub name: &'static str,
    v4: &'static str,
    v6: &'static str,
}

pub const SEGMENT: Network = Network { name: "segment", v4: "192.0.2.", v6: "2001:db8:1::" };
pub const FAR: Network = Network { name: "far", v4: "198.51.100.", v6: "2001:db8:2::" };
const OUTSIDE: Network = Network { name: "world", v4: "203.0.113.", v6: "2001:db8:f::" };

/// The last part of the router's address in each network.
const ROUTER_HOST: u8 = 254;
/// Longer than any packet of a node, so that the nodes' own MTUs decide.
const SWITCH_MTU: u32 = 9000;

/// Settings of hosts and router; the kernel's own defaults check nothing and wait for duplicate addresses.
const SETTINGS: [(&str, &str); 5] = [
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/default/rp_filter", "1"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/keep_addr_on_down", "1"),
    ("ipv6/conf/default/router_solicitations", "0"),
];

/// Makes the underlay without nodes, below this mount namespace's `/run/netns`.
///
/// # Errors
/// If the kernel refuses.
pub fn make() -> anyhow::Result<()> {
    for name in [SWITCH, ROUTER, CONTROL, STRANGER, WORLD] {
        sys::make_netns(&path(name))?;
        set(name, &SETTINGS)?;
        sys::run(&format!("ip -n {name} link set lo up"))?;
    }
    // The bridge forwards frames only; the firewall of its namespace sees none of them.
    set(SWITCH, &[("bridge/bridge-nf-call-iptables", "0"), ("bridge/bridge-nf-call-ip6tables", "0")])?;
    sys::run(&format!("ip -n {SWITCH} link add bridge type bridge forward_delay 0 mcast_snooping 0"))?;
    sys::run(&format!("ip -n {SWITCH} link set bridge up"))?;
    set(ROUTER, &[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")])?;

    plug(ROUTER, SEGMENT.name, 0xfe)?;
    cable(WORLD, "eth0", 7, OUTSIDE)?;
    for network in [SEGMENT, OUTSIDE] {
        network.give(ROUTER, network.name, ROUTER_HOST)?;
    }
    OUTSIDE.join(WORLD, "eth0", 7)?;
    for (name, host) in [(CONTROL, 10), (STRANGER, 66)] {
        plug(name, "eth0", host)?;
        SEGMENT.join(name, "eth0", host)?;
    }
    Ok(())
}

/// Connects a node to the segment, by the interface `uplink`.
///
/// # Errors
/// If the kernel refuses.
pub fn add_to_segment(node: &str, host: u8) -> anyhow::Result<()> {
    set(node, &SETTINGS)?;
    plug(node, "uplink", host)?;
    SEGMENT.join(node, "uplink", host)
}

/// Connects a node to the router, by the interface `uplink`.
///
/// # Errors
/// If the kernel refuses.
pub fn add_behind_router(node: &str, host: u8) -> anyhow::Result<()> {
    set(node, &SETTINGS)?;
    cable(node, "uplink", host, FAR)?;
    FAR.give(ROUTER, FAR.name, ROUTER_HOST)?;
    FAR.join(node, "uplink", host)
}

/// The path of a namespace.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(name)
}

/// The MAC of a host's interface.
pub const fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

/// A port of the switch.
fn plug(namespace: &str, interface: &str, host: u8) -> anyhow::Result<()> {
    let peer = format!("peer name {namespace} mtu {SWITCH_MTU} netns {SWITCH}");
    link(namespace, interface, host, &peer)?;
    sys::run(&format!("ip -n {SWITCH} link set {namespace} master bridge up")).map(drop)
}

/// A cable to the router.
fn cable(namespace: &str, interface: &str, host: u8, network: Network) -> anyhow::Result<()> {
    let name = network.name;
    link(namespace, interface, host, &format!("peer name {name} mtu {UPLINK_MTU} netns {ROUTER}"))?;
    sys::run(&format!("ip -n {ROUTER} link set {name} up")).map(drop)
}

fn link(namespace: &str, interface: &str, host: u8, peer: &str) -> anyhow::Result<()> {
    let mac = mac(host).map(|byte| format!("{byte:02x}")).join(":");
    sys::run(&format!(
        "ip -n {namespace} link add {interface} address {mac} mtu {UPLINK_MTU} type veth {peer}"
    ))?;
    sys::run(&format!("ip -n {namespace} link set {interface} up")).map(drop)
}

/// Sets values below `/proc/sys/net` of a namespace.
///
/// # Errors
/// If there is no such setting.
pub fn set(namespace: &str, settings: &[(&str, &str)]) -> anyhow::Result<()> {
    sys::in_netns(&path(namespace), || {
        settings.iter().try_for_each(|(name, value)| {
            fs::write(format!("/proc/sys/net/{name}"), value).with_context(|| format!("cannot set {name}"))
        })
    })
}

// === impl Network ===

impl Network {
    /// IPv4 and IPv6 of a host.
    pub fn addresses(self, host: u8) -> [String; 2] {
        [format!("{}{host}", self.v4), format!("{}{host}", self.v6)]
    }

    /// Gives an interface its addresses, again if they are there already, and the router as the way out.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn join(self, namespace: &str, interface: &str, host: u8) -> anyhow::Result<()> {
        self.give(namespace, interface, host)?;
        for (family, router) in ["-4", "-6"].iter().zip(self.addresses(ROUTER_HOST)) {
            sys::run(&format!(
                "ip {family} -n {namespace} route replace default via {router} dev {interface}"
            ))?;
        }
        Ok(())
    }

    fn give(self, namespace: &str, interface: &str, host: u8) -> anyhow::Result<()> {
        for (address, length) in self.addresses(host).iter().zip([24, 64]) {
            sys::run(&format!("ip -n {namespace} addr replace {address}/{length} dev {interface} nodad"))?;
        }
        Ok(())
    }
}
