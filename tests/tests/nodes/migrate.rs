//! Nodes that have moved from flannel or kindnet, beside one that has not: `docs/migrating.md`.

use anyhow::ensure;
use ferrule_tests::{
    fabric::{Fabric, Member, on_fabric},
    pod::Pod,
    probe::Probe,
    sys,
};

use crate::fixture::{TIMEOUT, of, wait_until_connected};

const TUNNEL: &str = "flannel.1";
const BRIDGE: &str = "cni0";
const HOST_END: &str = "veth0";
/// The uplink's MTU less the headers of VXLAN.
const MTU: u32 = 1400;
const ROUTES_OFF: [&str; 2] = ["--node-routes", "off"];

/// The beginning of the addresses of a node's range, of which the plugin `host-local` gives the second one to
/// the first pod.
fn network(node: &Member) -> String {
    node.ranges[0].trim_end_matches(".0/24").to_owned()
}

/// flannel's device MAC of a node.
fn mac(node: &Member) -> String {
    node.name.replace("node-", "02:00:00:00:fb:0")
}

/// What flannel's daemon keeps on a node: a device, and a route, a neighbour and a peer for each other node.
fn flannel(node: &Member, others: &[&Member]) -> anyhow::Result<()> {
    let (own, local) = (network(node), node.addresses[0]);
    node.run("sysctl -qw net.ipv4.ip_forward=1")?;
    node.run(&format!(
        "ip link add {TUNNEL} address {} mtu {MTU} type vxlan id 1 dev uplink local {local} dstport 8472 nolearning",
        mac(node)
    ))?;
    node.run(&format!("ip addr add {own}.0/32 dev {TUNNEL}"))?;
    node.run(&format!("ip link set {TUNNEL} up"))?;
    for other in others {
        let (range, via, mac, peer) = (&other.ranges[0], network(other), mac(other), other.addresses[0]);
        node.run(&format!("bridge fdb append {mac} dev {TUNNEL} dst {peer}"))?;
        node.run(&format!("ip neigh add {via}.0 lladdr {mac} dev {TUNNEL} nud permanent"))?;
        node.run(&format!("ip route add {range} via {via}.0 dev {TUNNEL} onlink"))?;
    }
    Ok(())
}

/// A pod as flannel's CNI plugin attaches it, at a bridge.
fn bridged(node: &Member, name: &str) -> anyhow::Result<Pod> {
    let mut pod = node.pod(name, &[])?;
    let (own, netns) = (network(node), pod.path().display().to_string());
    node.run(&format!("ip link add {BRIDGE} mtu {MTU} type bridge"))?;
    node.run(&format!("ip addr add {own}.1/24 dev {BRIDGE}"))?;
    node.run(&format!("ip link set {BRIDGE} up"))?;
    node.run(&format!("ip link add veth0 mtu {MTU} type veth peer name eth0 mtu {MTU} netns {netns}"))?;
    node.run(&format!("ip link set veth0 master {BRIDGE} up"))?;
    pod.run(&format!("ip addr add {own}.2/24 dev eth0"))?;
    pod.run("ip link set eth0 up")?;
    pod.run(&format!("ip route add default via {own}.1"))?;
    pod.addresses = vec![format!("{own}.2").parse()?];
    Ok(pod)
}

/// A pod as the plugin `ptp` attaches it, which kindnet's configuration names: the host end has the gateway's
/// address, and the pod sends to its own range by it, too.
fn point_to_point(node: &Member, name: &str) -> anyhow::Result<Pod> {
    let mut pod = node.pod(name, &[])?;
    let (own, netns) = (network(node), pod.path().display().to_string());
    node.run(&format!("ip link add {HOST_END} type veth peer name eth0 netns {netns}"))?;
    node.run(&format!("ip addr add {own}.1/32 dev {HOST_END}"))?;
    node.run(&format!("ip link set {HOST_END} up"))?;
    pod.run(&format!("ip addr add {own}.2/24 dev eth0 noprefixroute"))?;
    pod.run("ip link set eth0 up")?;
    pod.run(&format!("ip route add {own}.1 dev eth0 src {own}.2"))?;
    pod.run(&format!("ip route add {own}.0/24 via {own}.1 src {own}.2"))?;
    pod.run(&format!("ip route add default via {own}.1"))?;
    node.run(&format!("ip route add {own}.2 dev {HOST_END}"))?;
    pod.addresses = vec![format!("{own}.2").parse()?];
    Ok(pod)
}

/// A stream from each pod to the next one, and from the last one to the first one.
fn ring(pods: &[&Pod]) -> anyhow::Result<Vec<Probe>> {
    let next = pods.iter().cycle().skip(1);
    pods.iter()
        .zip(next)
        .map(|(from, to)| Probe::start(from.path(), to.path(), of(&to.addresses, 0)?))
        .collect()
}

fn expect_all(streams: Vec<Probe>, when: &str) -> anyhow::Result<()> {
    for stream in &streams {
        stream.expect_flow(when)?;
    }
    streams.into_iter().try_for_each(|it| it.end()?.expect_all())
}

fn start(node: &Member, flags: &[&str]) -> anyhow::Result<()> {
    node.begin_agent(flags)?;
    node.wait_until_ready()
}

/// Runs `run` on a fabric where flannel routes between all nodes.
fn with_flannel(run: impl FnOnce(&Fabric) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    on_fabric(|fabric| {
        let [one, two, three] = &fabric.nodes;
        for (node, others) in [(one, [two, three]), (two, [one, three]), (three, [one, two])] {
            node.register_with(&[&node.ranges[0]])?;
            flannel(node, &others)?;
        }
        run(fabric)
    })
}

#[test]
fn nodes_move_from_flannel_one_by_one_and_pods_that_stay_lose_no_packet() {
    with_flannel(|fabric| {
        let [one, two, three] = &fabric.nodes;
        let old = bridged(one, "old")?;
        [two, three].into_iter().try_for_each(|node| start(node, &ROUTES_OFF))?;
        let (b, c) = (two.attach("b")?, three.attach("c")?);
        wait_until_connected(&[old.clone(), b.clone(), c.clone()])?;
        expect_all(ring(&[&old, &b, &c])?, "beside a node with flannel")?;

        // The last node moves. Its bridge is in the range that its agent is to use.
        let stay = ring(&[&b, &c])?;
        old.remove()?;
        one.begin_agent(&ROUTES_OFF)?;
        sys::wait_until("the agent names the bridge", TIMEOUT, || {
            let status = one.status()?;
            Ok(status.contains("overlaps") && status.contains(BRIDGE))
        })?;
        one.run(&format!("ip link del {BRIDGE}"))?;
        one.wait_until_ready()?;
        let a = one.attach("a")?;
        wait_until_connected(&[a.clone(), b.clone(), c.clone()])?;
        expect_all(stay, "while a node moves")?;

        // Ferrule routes: first beside flannel, whose routes count, then alone.
        let all = ring(&[&a, &b, &c])?;
        for node in &fabric.nodes {
            node.on(|node| node.stop_agent())?;
            start(node, &[])?;
        }
        for node in &fabric.nodes {
            sys::wait_until("the agent has routes", TIMEOUT, || Ok(node.node_routes()?.len() >= 2))?;
        }
        expect_all(all, "while agents begin to route")?;
        for node in &fabric.nodes {
            node.run("sysctl -qw net.ipv4.conf.all.rp_filter=2")?;
        }
        let all = ring(&[&a, &b, &c])?;
        for node in &fabric.nodes {
            node.run(&format!("ip route flush dev {TUNNEL}"))?;
        }
        for node in &fabric.nodes {
            node.run(&format!("ip link del {TUNNEL}"))?;
        }
        expect_all(all, "without flannel")
    })
    .unwrap();
}

#[test]
fn nodes_move_from_kindnet_one_by_one_and_pods_that_stay_lose_no_packet() {
    on_fabric(|fabric| {
        // kindnet routes by the nodes' addresses, so that all nodes are on one network.
        let [one, two, _] = &fabric.nodes;
        for (node, other) in [(one, two), (two, one)] {
            node.register_with(&[&node.ranges[0]])?;
            node.run("sysctl -qw net.ipv4.ip_forward=1")?;
            node.run(&format!("ip route add {} via {}", other.ranges[0], other.addresses[0]))?;
        }
        let old = point_to_point(one, "old")?;
        start(two, &ROUTES_OFF)?;
        let (b, c) = (two.attach("b")?, two.attach("c")?);
        wait_until_connected(&[old.clone(), b.clone(), c.clone()])?;
        expect_all(ring(&[&old, &b, &c])?, "beside a node with kindnet")?;

        let stay = ring(&[&b, &c])?;
        old.remove()?;
        sys::wait_until("the old pod's host end is gone", TIMEOUT, || {
            Ok(!one.run("ip -o link")?.contains(&format!(" {HOST_END}@")))
        })?;
        start(one, &ROUTES_OFF)?;
        let a = one.attach("a")?;
        wait_until_connected(&[a.clone(), b.clone(), c.clone()])?;
        expect_all(stay, "while a node moves")?;

        let all = ring(&[&a, &b, &c])?;
        for node in [one, two] {
            node.on(|node| node.stop_agent())?;
            start(node, &[])?;
        }
        for node in [one, two] {
            sys::wait_until("the agent has a route", TIMEOUT, || Ok(!node.node_routes()?.is_empty()))?;
        }
        expect_all(all, "while agents begin to route")?;
        let all = ring(&[&a, &b, &c])?;
        for node in [one, two] {
            node.run("ip route flush root 10.244.0.0/16 proto boot")?;
            let left = node.run("ip route show root 10.244.0.0/16 proto boot")?;
            ensure!(left.is_empty(), "{left}");
        }
        expect_all(all, "without kindnet")
    })
    .unwrap();
}
