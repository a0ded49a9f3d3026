//! Routes set by hand, in place of an agent's: the harness itself under test.

use ferrule_tests::fabric::{Fabric, Member};

/// The agent is not to translate what it does not know as a pod.
pub(crate) const FLAGS: [&str; 4] =
    ["--non-masquerade-cidr", "10.244.0.0/16", "--non-masquerade-cidr", "fd00:10:244::/48"];

/// Gives each node routes to the others' pods: direct to a neighbour, by VXLAN otherwise.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn routes(fabric: &Fabric) -> anyhow::Result<()> {
    for node in &fabric.nodes {
        let mac = tunnel_mac(node);
        node.run(&format!("ip link add tunnel address {mac} mtu 1400 type vxlan external dstport 4789"))?;
        node.run("ip link set tunnel up")?;
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
                    format!("encap ip id 70 dst {outer} via {to} dev tunnel onlink mtu 1400")
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
