//! What Ferrule is compared with: two nodes without any agent, connection tracking, or eBPF.

use std::path::PathBuf;

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

const CABLE: Cable = Cable { ends: ["bare-1", "bare-2"], networks: ["10.101.0.", "fd00:10:101::"] };
/// The beginnings of pods' addresses; the node's number follows.
const ROUTED: [&str; 2] = ["10.201", "fd00:10:201"];
const TUNNELLED: [&str; 2] = ["10.202", "fd00:10:202"];
/// Of IPv4, with UDP and VXLAN (RFC 7348, 5).
const OVERHEAD: u32 = 50;
/// flannel's.
const TUNNEL: &str = "flannel.1";
const BRIDGE: &str = "cni0";

/// The paths, that between the nodes themselves first.
pub(super) fn all() -> anyhow::Result<Vec<Path>> {
    CABLE.ends.iter().try_for_each(|name| bare_node(name))?;
    CABLE.lay()?;
    let [one, two] = CABLE.ends.map(path);
    let [_, node] = [CABLE.parsed(0)?, CABLE.parsed(1)?];
    let mut paths = vec![Path::between(UNDERLAY, &one, &two, node[0])];
    for (names, networks, plug) in [
        ([KERNEL, KERNEL_IPV6], ROUTED, routed as fn(usize) -> anyhow::Result<PathBuf>),
        ([FLANNEL, FLANNEL_IPV6], TUNNELLED, tunnelled),
    ] {
        let [client, server] = [plug(0)?, plug(1)?];
        for (name, address) in names.iter().zip(pod_addresses(networks, 1)) {
            paths.push(Path::between(name, &client, &server, address.parse()?));
        }
    }
    Ok(paths)
}

/// A pod as the plugin `ptp` makes it, and routes to the other node's pods.
fn routed(number: usize) -> anyhow::Result<PathBuf> {
    let (node, other) = (CABLE.ends[number], 1 - number);
    let pod = format!("routed-{number}");
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
    for (range, via) in ranges(ROUTED, other).iter().zip(CABLE.addresses(other)) {
        sys::run(&format!("ip -n {node} route add {range} via {via} dev {INTERFACE}"))?;
    }
    configure(&pod, ROUTED, number)
}

/// A pod at a bridge, and a tunnel with permanent entries for the other node, as flannel configures it.
fn tunnelled(number: usize) -> anyhow::Result<PathBuf> {
    let (node, other, mtu) = (CABLE.ends[number], 1 - number, UPLINK_MTU - OVERHEAD);
    let pod = format!("tunnelled-{number}");
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

    let ([local, _], [remote, _]) = (CABLE.addresses(number), CABLE.addresses(other));
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
