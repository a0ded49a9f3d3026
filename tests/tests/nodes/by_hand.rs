//! Routes set by hand, in place of an agent's: the harness itself under test.

use ferrule_tests::{
    fabric::{Fabric, Member},
    pod::Pod,
};

/// The agent is not to translate what it does not know as a pod or node.
pub(crate) const FLAGS: [&str; 12] = [
    "--non-masquerade-cidr",
    "10.244.0.0/16",
    "--non-masquerade-cidr",
    "fd00:10:244::/48",
    "--non-masquerade-cidr",
    "192.0.2.0/24",
    "--non-masquerade-cidr",
    "198.51.100.0/24",
    "--non-masquerade-cidr",
    "2001:db8:1::/64",
    "--non-masquerade-cidr",
    "2001:db8:2::/64",
];

/// Gives each node routes to the others' pods: direct to a neighbour, by VXLAN otherwise.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn routes(fabric: &Fabric) -> anyhow::Result<()> {
    for node in &fabric.nodes {
        let mac = tunnel_mac(node);
        node.run(&format!("ip link add tunnel address {mac} mtu 1400 type vxlan external dstport 4789"))?;
        node.run("ip link set tunnel up")?;
        node.run("sysctl -qw net.ipv4.conf.tunnel.rp_filter=2")?;
        for (family, range) in ["-4", "-6"].iter().zip(&node.ranges) {
            node.run(&format!("ip {family} rule add from {range} lookup 70"))?;
        }
        for other in fabric.nodes.iter().filter(|other| other.name != node.name) {
            let is_near = |it: &Member| it.name != "node-3";
            let [outer, _] = other.addresses;
            for (number, (range, to)) in other.ranges.iter().zip(&other.addresses).enumerate() {
                let family = if number == 0 { "-4" } else { "-6" };
                let src = node.addresses.get(number).map(ToString::to_string).unwrap_or_default();
                let way = if is_near(node) && is_near(other) {
                    format!("via {to} dev uplink")
                } else {
                    node.run(&format!("ip neigh add {to} lladdr {} dev tunnel", tunnel_mac(other)))?;
                    let way = format!("encap ip id 70 dst {outer} via {to} dev tunnel onlink mtu 1400");
                    node.run(&format!("ip {family} route add {to} {way} src {src} table 70"))?;
                    way
                };
                node.run(&format!("ip {family} route add {range} {way} src {src}"))?;
            }
        }
    }
    Ok(())
}

fn tunnel_mac(node: &Member) -> String {
    format!("02:fe:00:00:00:0{}", node.name.trim_start_matches("node-"))
}

/// Tells a pod the length that fits, as agents do.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn mtu(pod: &Pod) -> anyhow::Result<()> {
    pod.run("ip -4 route replace default via 169.254.1.1 dev eth0 onlink mtu 1400")?;
    pod.run("ip -6 route replace default via fe80::1 dev eth0 mtu 1400").map(drop)
}
