//! What Ferrule is compared with: nodes without agent and eBPF, and, except for two paths, without connection
//! tracking.

use std::{path::PathBuf, process::Command};

use ferrule_tests::{
    fabric::underlay::{self, path},
    node::UPLINK_MTU,
    sys,
};

use super::cable::{Cable, INTERFACE, bare_node};
use crate::rates::path::Path;

pub(super) const UNDERLAY: &str = "underlay";
pub(super) const KERNEL: &str = "kernel routing";
pub(super) const FLANNEL: &str = "like flannel";
pub(super) const KERNEL_IPV6: &str = "kernel routing, IPv6";
pub(super) const FLANNEL_IPV6: &str = "like flannel, IPv6";

pub(super) const KERNEL_TRACKED: &str = "kernel routing, tracked";
pub(super) const FLANNEL_TRACKED: &str = "like flannel, tracked";

const BARE: Cable = Cable { ends: ["bare-1", "bare-2"], networks: ["10.101.0.", "fd00:10:101::"] };
const TRACKED: Cable = Cable { ends: ["tracked-1", "tracked-2"], networks: ["10.102.0.", "fd00:10:102::"] };
/// The rule of kube-proxy that makes the kernel track all connections of a node.
const TRACK: &str = "add table inet tracked; \
                     add chain inet tracked forward { type filter hook forward priority 0; }; \
                     add rule inet tracked forward ct state invalid drop";
/// The beginnings of pods' addresses; the node's number follows.
const ROUTED: [&str; 2] = ["10.201", "fd00:10:201"];
const TUNNELLED: [&str; 2] = ["10.202", "fd00:10:202"];
/// Of IPv4, with UDP and VXLAN (RFC 7348, 5).
const OVERHEAD: u32 = 50;
/// flannel's.
const TUNNEL: &str = "flannel.1";
const BRIDGE: &str = "cni0";

/// The paths: that between the nodes themselves, those without a tunnel, and the others.
pub(super) fn all() -> anyhow::Result<[Vec<Path>; 2]> {
    for cable in [BARE, TRACKED] {
        cable.ends.iter().try_for_each(|name| bare_node(name))?;
        cable.lay()?;
    }
    TRACKED.ends.iter().try_for_each(|name| {
        sys::in_netns(&path(name), || sys::output(Command::new("nft").arg(TRACK)).map(drop))
    })?;
    let [one, two] = BARE.ends.map(path);
    let [node, _] = BARE.parsed(1)?;
    let underlay = Path::between(UNDERLAY, &one, &two, node);
    Ok([
        [
            vec![underlay],
            paths(&[KERNEL, KERNEL_IPV6], &BARE, ROUTED, routed)?,
            paths(&[KERNEL_TRACKED], &TRACKED, ROUTED, routed)?,
        ]
        .concat(),
        [
            paths(&[FLANNEL, FLANNEL_IPV6], &BARE, TUNNELLED, tunnelled)?,
            paths(&[FLANNEL_TRACKED], &TRACKED, TUNNELLED, tunnelled)?,
        ]
        .concat(),
    ])
}

/// The paths between a new pod on each node, with IPv4 and, if there is a second name, IPv6.
fn paths(
    names: &[&'static str],
    cable: &Cable,
    networks: [&str; 2],
    plug: fn(&Cable, usize) -> anyhow::Result<PathBuf>,
) -> anyhow::Result<Vec<Path>> {
    let [client, server] = [plug(cable, 0)?, plug(cable, 1)?];
    let path = |(name, address): (&&'static str, String)| {
        Ok(Path::between(name, &client, &server, address.parse()?))
    };
    names.iter().zip(pod_addresses(networks, 1)).map(path).collect()
}

/// A pod as the plugin `ptp` makes it, and routes to the other node's pods.
fn routed(cable: &Cable, number: usize) -> anyhow::Result<PathBuf> {
    let (node, other) = (cable.node(number), 1 - number);
    let pod = format!("{node}-r");
    sys::make_netns(&path(&pod))?;
    sys::run(&format!(
        "ip -n {node} link add {pod} mtu {UPLINK_MTU} type veth peer name eth0 mtu {UPLINK_MTU} netns {pod}"
    ))?;
    sys::run(&format!("ip -n {node} link set {pod} up"))?;
    for (gateway, address) in gateways(ROUTED, number).iter().zip(pod_addresses(ROUTED, number)) {
        let len = if address.contains(':') { 128 } else { 32 };
        sys::run(&format!("ip -n {node} addr add {gateway}/{len} dev {pod} nodad"))?;
        sys::run(&format!("ip -n {node} route add {address}/{len} dev {pod}"))?;
    }
    for (range, via) in ranges(ROUTED, other).iter().zip(cable.addresses(other)) {
        sys::run(&format!("ip -n {node} route add {range} via {via} dev {INTERFACE}"))?;
    }
    configure(&pod, ROUTED, number)
}

/// A pod at a bridge, and a tunnel with permanent entries for the other node, as flannel configures it.
fn tunnelled(cable: &Cable, number: usize) -> anyhow::Result<PathBuf> {
    let (node, other, mtu) = (cable.node(number), 1 - number, UPLINK_MTU - OVERHEAD);
    let pod = format!("{node}-t");
    sys::make_netns(&path(&pod))?;
    sys::run(&format!("ip -n {node} link add {BRIDGE} mtu {mtu} type bridge"))?;
    sys::run(&format!("ip -n {node} link set {BRIDGE} up"))?;
    sys::run(&format!(
        "ip -n {node} link add {pod} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pod}"
    ))?;
    sys::run(&format!("ip -n {node} link set {pod} master {BRIDGE} up"))?;
    // Bridged frames are not shown to a firewall: the reference is as fast as the kernel can be.
    underlay::set(
        node,
        &[("bridge/bridge-nf-call-iptables", "0"), ("bridge/bridge-nf-call-ip6tables", "0")],
    )?;

    let ([local, _], [remote, _]) = (cable.addresses(number), cable.addresses(other));
    sys::run(&format!(
        "ip -n {node} link add {TUNNEL} address {} mtu {mtu} type vxlan id 1 dev {INTERFACE} local {local} \
         dstport 8472 nolearning",
        tunnel_mac(number)
    ))?;
    sys::run(&format!("ip -n {node} link set {TUNNEL} up"))?;
    let mac = tunnel_mac(other);
    sys::run(&format!("bridge -n {node} fdb append {mac} dev {TUNNEL} dst {remote}"))?;
    for (gateway, len) in gateways(TUNNELLED, number).iter().zip([24, 64]) {
        sys::run(&format!("ip -n {node} addr add {gateway}/{len} dev {BRIDGE} nodad"))?;
    }
    for (range, via) in ranges(TUNNELLED, other).iter().zip(gateways(TUNNELLED, other)) {
        sys::run(&format!("ip -n {node} neigh add {via} lladdr {mac} dev {TUNNEL} nud permanent"))?;
        sys::run(&format!("ip -n {node} route add {range} via {via} dev {TUNNEL} onlink"))?;
    }
    configure(&pod, TUNNELLED, number)
}

/// Addresses and default routes of a pod.
fn configure(pod: &str, networks: [&str; 2], number: usize) -> anyhow::Result<PathBuf> {
    sys::run(&format!("ip -n {pod} link set eth0 up"))?;
    let lens = [24, 64];
    for ((address, gateway), len) in
        pod_addresses(networks, number).iter().zip(gateways(networks, number)).zip(lens)
    {
        sys::run(&format!("ip -n {pod} addr add {address}/{len} dev eth0 nodad"))?;
        sys::run(&format!("ip -n {pod} route add default via {gateway} dev eth0"))?;
    }
    Ok(path(pod))
}

fn ranges([v4, v6]: [&str; 2], number: usize) -> [String; 2] {
    [format!("{v4}.{number}.0/24"), format!("{v6}:{number}::/64")]
}

fn gateways([v4, v6]: [&str; 2], number: usize) -> [String; 2] {
    [format!("{v4}.{number}.1"), format!("{v6}:{number}::1")]
}

fn pod_addresses([v4, v6]: [&str; 2], number: usize) -> [String; 2] {
    [format!("{v4}.{number}.2"), format!("{v6}:{number}::2")]
}

fn tunnel_mac(number: usize) -> String {
    format!("02:00:00:00:fb:0{number}")
}
