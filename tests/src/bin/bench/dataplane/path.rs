//! The paths between two pods of a node.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use ferrule_tests::{node::Node, sys};

use super::redirect::redirect;
use crate::{
    rates::path::Path,
    target::{Name, Target},
};

pub(super) const LOOPBACK: &str = "loopback";
pub(super) const FERRULE: &str = "ferrule";
pub(super) const BRIDGE: &str = "bridge";
pub(super) const REDIRECT: &str = "redirect";
pub(super) const FERRULE_SERVICE: &str = "ferrule, Service";
pub(super) const BRIDGE_SERVICE: &str = "bridge, Service";

/// Not the same: a client's connection by the pod's address leaves TIME_WAIT behind at the server, which
/// refuses one from the same port by the Service's address, because timestamps differ by the address called.
const BACKEND_PORT: u16 = 5202;
/// Its address is in no network of the node; rules translate it, as kube-proxy's do.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const VETH: [&str; 2] = ["10.247.0.1", "10.247.0.2"];
/// The ports of the Service, for each plugin.
const SERVICE_PORTS: u16 = 8000;

/// Loopback first, with which the others are compared.
pub(super) fn all(node: &Node) -> anyhow::Result<Vec<Path>> {
    let mut paths = vec![loopback(node)?, veth(node)?, redirect(node)?];
    let mut services = Vec::new();
    for name in Name::ALL {
        let target = Target::new(name)?;
        let mut pods = [node.pod(&format!("{name}-client"))?, node.pod(&format!("{name}-server"))?];
        pods.iter_mut().try_for_each(|pod| target.add(pod).map(drop))?;
        let [client, server] = &pods;
        let v4 = server.addresses.iter().find(|it| it.is_ipv4()).context("no IPv4 address")?;
        paths.push(Path::new(name.as_str(), client, server, *v4));
        if let Some(v6) = server.addresses.iter().find(|it| it.is_ipv6()) {
            paths.push(Path::new("ferrule, IPv6", client, server, *v6));
        }
        let port = SERVICE_PORTS + u16::try_from(services.len())?;
        let through = match name {
            Name::Ferrule => FERRULE_SERVICE,
            Name::Bridge => BRIDGE_SERVICE,
            Name::Ptp => "ptp, Service",
        };
        let call = SocketAddr::new(SERVICE.into(), port);
        let listen = SocketAddr::new(*v4, BACKEND_PORT);
        services.push(Path::new(through, client, server, *v4).translated(call, listen));
    }
    translate(&services)?;
    paths.extend(services);
    Ok(paths)
}

fn loopback(node: &Node) -> anyhow::Result<Path> {
    let pod = node.pod("loopback")?;
    pod.run("ip link set lo up")?;
    Ok(Path::new(LOOPBACK, &pod, &pod, Ipv4Addr::LOCALHOST.into()))
}

/// Two namespaces with a bare veth pair between them.
fn veth(node: &Node) -> anyhow::Result<Path> {
    let pods = [node.pod("veth-client")?, node.pod("veth-server")?];
    let [client, server] = pods.each_ref().map(|pod| pod.path().display());
    sys::run(&format!("ip link add bench-a netns {client} type veth peer name bench-b netns {server}"))?;
    for ((pod, interface), address) in pods.iter().zip(["bench-a", "bench-b"]).zip(VETH) {
        pod.run(&format!("ip address add {address}/24 dev {interface}"))?;
        pod.run(&format!("ip link set {interface} up"))?;
    }
    let [client, server] = &pods;
    Ok(Path::new("veth", client, server, VETH[1].parse()?))
}

/// Rules as kube-proxy's nftables mode has them: a map from the Service to its backend, and the chain that
/// drops what conntrack considers invalid.
fn translate(services: &[Path]) -> anyhow::Result<()> {
    let elements: Vec<_> = services
        .iter()
        .map(|it| {
            format!("{} . tcp . {} : {} . {}", it.call.ip(), it.call.port(), it.listen.ip(), BACKEND_PORT)
        })
        .chain(services.iter().map(|it| {
            format!("{} . udp . {} : {} . {}", it.call.ip(), it.call.port(), it.listen.ip(), BACKEND_PORT)
        }))
        .collect();
    let rules = format!(
        "table ip services {{\n\
         map backends {{ type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service\n\
         elements = {{ {} }} }}\n\
         chain prerouting {{ type nat hook prerouting priority dstnat;\n\
         dnat to ip daddr . meta l4proto . th dport map @backends\n}}\n\
         chain forward {{ type filter hook forward priority filter;\nct state invalid drop\n}}\n}}\n",
        elements.join(", ")
    );
    std::fs::write("/run/services.nft", rules)?;
    sys::run("nft -f /run/services.nft").map(drop)
}
