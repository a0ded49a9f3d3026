//! Which way packets take to another node, by settings, addresses and the node's own routes.

use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    capture::Frame,
    fabric::{
        Fabric, Member, on_fabric,
        underlay::{self, CONTROL, FAR, ROUTER, SEGMENT},
        with_fabric,
    },
    node::UPLINK_MTU,
    packet::UDP,
    pod::Pod,
    sys, traffic,
};

use crate::fixture::{
    TIMEOUT, begin_over, captured, of, ping, wait_until_connected, wait_until_reached, with_pods,
};

fn attach(fabric: &Fabric) -> anyhow::Result<[Pod; 3]> {
    let [one, two, three] = &fabric.nodes;
    Ok([one.attach("a")?, two.attach("b")?, three.attach("c")?])
}

/// Gives the router routes to all pods.
fn know_ranges(fabric: &Fabric) -> anyhow::Result<()> {
    for node in &fabric.nodes {
        for (range, via) in node.ranges.iter().zip(&node.addresses) {
            sys::run(&format!("ip -n {ROUTER} route add {range} via {via}"))?;
        }
    }
    Ok(())
}

/// Waits until a ping's own way, not its reply's, is as judged on the sender's wire.
fn wait_for_way(
    node: &Member,
    from: &Pod,
    to: IpAddr,
    judge: impl Fn(&ferrule_tests::capture::Frames) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    sys::wait_until(&format!("{} takes another way to {to}", from.name), TIMEOUT, || {
        let frames = captured(node, || from.ping(&to.to_string()).map(drop))?;
        judge(&frames.to(to))?;
        Ok(true)
    })
}

#[test]
fn vxlan_can_be_forced_between_neighbours() {
    with_pods(&["--node-routes", "vxlan"], |fabric, [a, b, _]| {
        let [one, two, _] = &fabric.nodes;
        for (from, to) in a.addresses.iter().zip(&b.addresses) {
            let frames = captured(one, || a.ping(&to.to_string()).map(drop))?;
            frames.between(*from, *to).expect_tunnelled(&one.addresses, &two.addresses)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn direct_routes_can_be_forced_where_the_fabric_knows_the_ranges() {
    with_fabric(&["--node-routes", "direct"], |fabric| {
        know_ranges(fabric)?;
        let pods = attach(fabric)?;
        wait_until_connected(&pods)?;
        let ([one, ..], [a, _, c]) = (&fabric.nodes, &pods);
        for (from, to) in a.addresses.iter().zip(&c.addresses) {
            let frames = captured(one, || a.ping(&to.to_string()).map(drop))?;
            frames.between(*from, *to).expect_bare()?;
        }
        ensure!(one.run("ip -o link show type vxlan")?.is_empty(), "there is a tunnel");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_gateway_beyond_the_networks_of_its_interface_leads_to_pods_too() {
    with_fabric(&["--node-routes", "direct"], |fabric| {
        know_ranges(fabric)?;
        let pods = attach(fabric)?;
        let ([one, _, three], [a, _, c]) = (&fabric.nodes, &pods);
        for (family, (flag, gateway)) in
            [("-4", "169.254.77.1"), ("-6", "2001:db8:77::1")].into_iter().enumerate()
        {
            let len = if family == 0 { 32 } else { 128 };
            sys::run(&format!("ip -n {ROUTER} addr add {gateway}/{len} dev {} nodad", SEGMENT.name))?;
            one.run(&format!("ip {flag} route replace default via {gateway} dev uplink onlink"))?;
            let range = &three.ranges[family];
            sys::wait_until(&format!("{gateway} leads to {range}"), TIMEOUT, || {
                let routes = one.node_routes()?;
                let route = routes.iter().find(|it| it.starts_with(range));
                ensure!(route.is_some_and(|it| it.contains(&format!("via {gateway} "))), "{routes:#?}");
                Ok(true)
            })?;
            wait_until_reached(a, of(&c.addresses, family)?)?;
        }
        one.on(|node| node.ctl(&["verify"])).map(drop)
    })
    .unwrap();
}

/// That of an administrator's route.
const ROUTE: u32 = 1400;
/// Less than that, and enough for IPv6.
const NARROW: u32 = 1300;

#[test]
fn what_a_router_says_about_its_mtu_concerns_the_sender_and_no_route_of_the_agent() {
    with_fabric(&["--node-routes", "direct"], |fabric| {
        know_ranges(fabric)?;
        let [one, two, three] = &fabric.nodes;
        for (flag, router) in ["-4", "-6"].into_iter().zip(SEGMENT.addresses(254)) {
            two.run(&format!("ip {flag} route replace default via {router} dev uplink mtu {ROUTE}"))?;
        }
        let to_three = |node: &Member| -> anyhow::Result<Vec<String>> {
            let routes = node.node_routes()?.into_iter();
            Ok(routes.filter(|it| three.ranges.iter().any(|range| it.starts_with(range))).collect())
        };
        for (node, mtu) in [(one, UPLINK_MTU), (two, ROUTE)] {
            sys::wait_until("the agent's routes have the MTU of the node's", TIMEOUT, || {
                let routes = to_three(node)?;
                let have = routes.iter().all(|it| it.contains(&format!("mtu {mtu}")));
                ensure!(routes.len() == 2 && have, "{}: {routes:#?}, expected {mtu}", node.name);
                Ok(true)
            })?;
        }
        let pods = attach(fabric)?;
        wait_until_connected(&pods)?;
        let before = [one.node_routes()?, two.node_routes()?];
        let [a, b, c] = &pods;
        sys::run(&format!("ip -n {ROUTER} link set {} mtu {NARROW}", FAR.name))?;
        for ((node, from), fits_link) in [(one, a), (two, b)].into_iter().zip([UPLINK_MTU, ROUTE]) {
            for family in 0..2 {
                // The node learns what fits for its own packets, and a pod for the pod's.
                let (far, pod) = (of(&three.addresses, family)?, of(&c.addresses, family)?);
                let size = fits_link - 48;
                let refused = node.run(&format!("ping -n -c 1 -W 2 -M do -s {size} {far}"));
                ensure!(refused.is_err(), "{refused:?}");
                let learnt = node.run(&format!("ip route get {far}"))?;
                ensure!(learnt.contains(&format!("mtu {NARROW}")) && learnt.contains("expires"), "{learnt}");
                ping(from, pod, fits_link, "do")?;
                let fits = ping(from, pod, NARROW, "do")?;
                ensure!(fits.contains(" 2 received"), "{fits}");
                let long = ping(from, pod, NARROW + 1, "do")?;
                ensure!(long.to_lowercase().contains("message too long"), "{long}");
                traffic::stream(from.path(), c.path(), pod, 4 << 20)?;
            }
        }
        // A further pass, after what was learnt.
        let other = objects::node("node-4", &["10.244.4.0/24"]);
        fabric.api.create(Resource::Nodes, objects::with_addresses(other, &["192.0.2.4".parse()?]))?;
        for (node, before) in [one, two].into_iter().zip(&before) {
            sys::wait_until("node 4 has a route", TIMEOUT, || Ok(node.node_routes()?.len() > before.len()))?;
            let after = node.node_routes()?;
            ensure!(before.is_subset(&after), "{}: {after:#?}, expected {before:#?}", node.name);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn routes_can_be_left_to_others() {
    with_fabric(&["--node-routes", "off"], |fabric| {
        let pods = attach(fabric)?;
        let ([one, two, three], [a, b, _]) = (&fabric.nodes, &pods);
        for node in [one, two, three] {
            ensure!(node.node_routes()?.is_empty(), "{:?}", node.node_routes()?);
            ensure!(node.run("ip -o link show type vxlan")?.is_empty(), "there is a tunnel");
        }
        // By what others add, here by hand.
        for (node, other) in [(one, two), (two, one)] {
            for (range, via) in other.ranges.iter().zip(&other.addresses) {
                node.run(&format!("ip route add {range} via {via} proto bird"))?;
            }
        }
        wait_until_connected(&[a.clone(), b.clone()])?;
        for (from, to) in a.addresses.iter().zip(&b.addresses) {
            let frames = captured(one, || a.ping(&to.to_string()).map(drop))?;
            frames.between(*from, *to).expect_bare()?;
        }
        ensure!(one.run("ip route show proto bird")?.contains(&two.ranges[0]), "the foreign route is gone");
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_port_of_the_tunnel_is_a_setting() {
    with_pods(&["--tunnel-port", "8472"], |fabric, [a, _, c]| {
        let [one, _, three] = &fabric.nodes;
        for to in &c.addresses {
            let frames = captured(one, || a.ping(&to.to_string()).map(drop))?;
            let is_tunnelled = |it: &&Frame| {
                let packet = &it.packet;
                packet.protocol == UDP
                    && packet.ports.is_some_and(|(_, to)| to == 8472)
                    && one.addresses.contains(&packet.source)
                    && three.addresses.contains(&packet.destination)
            };
            ensure!(frames.0.iter().any(|it| is_tunnelled(&it)), "{frames}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_way_is_chosen_again_when_the_nodes_routes_change() {
    with_pods(&[], |fabric, [a, b, _]| {
        let [one, two, _] = &fabric.nodes;
        for (family, router) in ["192.0.2.254", "2001:db8:1::254"].into_iter().enumerate() {
            let (to, neighbour) = (of(&b.addresses, family)?, of(&two.addresses, family)?);
            let flag = if family == 0 { "-4" } else { "-6" };
            let route = format!("{neighbour} via {router} dev uplink");
            one.run(&format!("ip {flag} route add {route}"))?;
            wait_for_way(one, a, to, |sent| sent.expect_tunnelled(&one.addresses, &two.addresses))?;
            one.run(&format!("ip {flag} route del {route}"))?;
            wait_for_way(one, a, to, |sent| sent.expect_bare())?;
        }
        Ok(())
    })
    .unwrap();
}

/// The routing rules of the agent of a node, one line each.
fn rules(node: &Member) -> anyhow::Result<Vec<String>> {
    let mut rules = Vec::new();
    for flag in ["-4", "-6"] {
        let all = node.run(&format!("ip {flag} rule show"))?;
        rules.extend(all.lines().filter(|it| it.contains("lookup 7070")).map(str::to_owned));
    }
    Ok(rules)
}

/// As Tailscale has them: a rule for all packets, and a route to each other machine.
#[test]
fn pods_reach_a_node_behind_the_tunnel_before_another_programs_rule_for_all_packets() {
    with_pods(&[], |fabric, [a, _, _]| {
        let [one, _, three] = &fabric.nodes;
        for (family, router) in SEGMENT.addresses(254).iter().enumerate() {
            let (flag, to) = (["-4", "-6"][family], of(&three.addresses, family)?);
            one.run(&format!("ip {flag} route add {to} via {router} dev uplink table 52"))?;
            one.run(&format!("ip {flag} rule add pref 5270 lookup 52"))?;
            let frames = captured(one, || wait_until_reached(a, to))?;
            frames.to(to).expect_tunnelled(&one.addresses, &three.addresses)?;
        }
        one.on(|node| node.ctl(&["verify"])).map(drop)
    })
    .unwrap();
}

#[test]
fn a_routing_rule_with_an_earlier_agents_priority_is_replaced() {
    with_pods(&[], |fabric, [a, _, _]| {
        let [one, _, three] = &fabric.nodes;
        let before = rules(one)?;
        ensure!(before.len() == 2 && before.iter().all(|it| it.starts_with("70:")), "{before:?}");
        one.on(|node| node.kill_agent())?;
        for (flag, range) in ["-4", "-6"].into_iter().zip(&one.ranges) {
            one.run(&format!("ip {flag} rule add from {range} lookup 7070 pref 7070 protocol 70"))?;
            one.run(&format!("ip {flag} rule del pref 70"))?;
        }
        for to in &three.addresses {
            a.ping(&to.to_string())?;
        }
        one.on(|node| node.start_again())?;
        sys::wait_until("the rules have their priority", TIMEOUT, || {
            let after = rules(one)?;
            ensure!(after == before, "{after:?}");
            Ok(true)
        })?;
        one.on(|node| node.ctl(&["verify"])).map(drop)
    })
    .unwrap();
}

/// As behind a network that translates the node's address.
#[test]
fn a_node_whose_address_no_interface_has_says_that_there_is_no_way_by_the_tunnel() {
    on_fabric(|fabric| {
        let [one, two, three] = &fabric.nodes;
        let ranges = one.ranges.each_ref().map(String::as_str);
        one.register_as(&ranges, &["203.0.113.1".parse()?])?;
        [two, three].into_iter().try_for_each(Member::register)?;
        fabric.nodes.iter().try_for_each(|node| node.begin_agent(&[]))?;
        fabric.nodes.iter().try_for_each(Member::wait_until_ready)?;
        sys::wait_until("the ways are decided", TIMEOUT, || {
            let shown = one.on(|node| node.ctl(&["nodes"]))?;
            let of = |node: &Member, what: &str| {
                let lines = shown.lines().filter(|line| line.starts_with(&format!("{} ", node.name)));
                lines.filter(|line| line.contains(what)).count()
            };
            ensure!(of(three, "none: no interface of this node has its InternalIP") == 2, "{shown}");
            ensure!(of(two, "direct via") == 2, "{shown}");
            Ok(true)
        })?;
        let status = one.status()?;
        let routes = status.lines().find(|it| it.starts_with("node-routes ")).unwrap_or_default();
        ensure!(routes.contains("unhealthy") && routes.contains("has its InternalIP"), "{status}");
        Ok(())
    })
    .unwrap();
}

/// Tells a host the MACs of others of the segment, in the place of ARP and neighbour discovery.
fn introduce(namespace: &str, interface: &str, others: &[u8]) -> anyhow::Result<()> {
    for host in others {
        let mac = underlay::mac(*host).map(|byte| format!("{byte:02x}")).join(":");
        for address in SEGMENT.addresses(*host) {
            sys::run(&format!(
                "ip -n {namespace} neigh replace {address} lladdr {mac} dev {interface} nud permanent"
            ))?;
        }
    }
    Ok(())
}

/// By a real link of that sort, as WireGuard's, the other end would drop packets to pods.
#[test]
fn a_link_without_neighbours_leads_to_pods_by_the_tunnel_only() {
    with_pods(&[], |fabric, [a, b, _]| {
        let [one, two, _] = &fabric.nodes;
        one.run("ip link set uplink arp off")?;
        introduce(one.name, "uplink", &[2, 10, 254])?;
        introduce(two.name, "uplink", &[1])?;
        introduce(CONTROL, "eth0", &[1])?;
        introduce(ROUTER, SEGMENT.name, &[1])?;
        for to in &b.addresses {
            wait_for_way(one, a, *to, |sent| sent.expect_tunnelled(&one.addresses, &two.addresses))?;
        }
        let nodes = one.on(|node| node.ctl(&["nodes"]))?;
        let of_two = nodes.lines().filter(|line| line.starts_with("node-2 "));
        ensure!(of_two.clone().count() == 2 && of_two.clone().all(|it| it.contains("vxlan to")), "{nodes}");
        one.run("ip link set uplink arp on")?;
        for to in &b.addresses {
            wait_for_way(one, a, *to, |sent| sent.expect_bare())?;
        }
        one.on(|node| node.ctl(&["verify"])).map(drop)
    })
    .unwrap();
}

#[test]
fn pods_of_both_families_reach_each_other_over_an_underlay_of_one() {
    for family in 0..2 {
        on_fabric(|fabric| {
            begin_over(fabric, family)?;
            let pods = attach(fabric)?;
            wait_until_connected(&pods)?;
            let ([one, two, three], [a, b, c]) = (&fabric.nodes, &pods);
            for inner in 0..2 {
                let of = |pod: &Pod| of(&pod.addresses, inner);
                let frames = captured(one, || {
                    b.ping(&of(a)?.to_string())?;
                    c.ping(&of(a)?.to_string()).map(drop)
                })?;
                let near = frames.between(of(a)?, of(b)?);
                let (own, other) = (&one.addresses[family..=family], &two.addresses[family..=family]);
                if inner == family {
                    near.expect_bare()?
                } else {
                    near.expect_tunnelled(own, other)?
                }
                frames.between(of(a)?, of(c)?).expect_tunnelled(own, &three.addresses[family..=family])?;
            }
            Ok(())
        })
        .with_context(|| format!("family {family}"))
        .unwrap();
    }
}
