//! Other uplinks than one cable: a bridge, a second one, and one that is deleted and made again.

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    capture::Capture,
    fabric::{Fabric, Member, on_fabric, underlay},
    node::UPLINK_MTU,
    pod::Pod,
    sys, traffic,
};

use crate::{
    fast_path::wait_for_links,
    fixture::{TIMEOUT, expect_all, of, probes_between, wait_until_connected, with_pods},
};

const MEGABYTE: u64 = 1 << 20;

/// Traffic in both families and both directions.
fn exchange(from: &Pod, to: &Pod) -> anyhow::Result<()> {
    for (from, to) in [(from, to), (to, from)] {
        for address in &to.addresses {
            traffic::stream(from.path(), to.path(), *address, 4 * MEGABYTE)?;
        }
    }
    Ok(())
}

#[test]
fn a_bridge_is_the_uplink() {
    on_fabric(|fabric: &Fabric| {
        let [one, two, three] = &fabric.nodes;
        let mac = one.mac().map(|byte| format!("{byte:02x}")).join(":");
        for line in [
            &format!(
                "ip link add br0 address {mac} mtu {UPLINK_MTU} type bridge forward_delay 0 mcast_snooping 0"
            ),
            "ip addr flush dev uplink",
            "ip link set uplink master br0",
            "ip link set br0 up",
        ] {
            one.run(line)?;
        }
        one.configure("br0")?;
        fabric.nodes.iter().try_for_each(Member::register)?;
        fabric.nodes.iter().try_for_each(|node| node.begin_agent(&[]))?;
        fabric.nodes.iter().try_for_each(Member::wait_until_ready)?;
        let pods = [one.attach("a")?, two.attach("b")?, three.attach("c")?];
        wait_until_connected(&pods)?;
        let [a, b, c] = &pods;
        // Of the tunnel device, and of the bridge.
        wait_for_links(one, "  on", 2)?;
        let status = one.status()?;
        ensure!(status.lines().any(|it| it.starts_with("br0 ") && it.ends_with("  on")), "{status}");
        exchange(a, b)?;
        exchange(a, c)?;
        one.on(|node| node.ctl(&["verify"])).map(drop)
    })
    .unwrap();
}

/// As where routers speak BGP without numbers, and on another interface besides.
#[test]
fn an_interface_with_the_nodes_address_is_an_uplink_unless_it_is_the_loopback_interface() {
    with_pods(&[], |fabric, pods| {
        let [one, ..] = &fabric.nodes;
        one.run("ip link add more0 type bridge")?;
        for (len, own) in [32, 128].into_iter().zip(&one.addresses) {
            for interface in ["lo", "more0"] {
                one.run(&format!("ip addr add {own}/{len} dev {interface} nodad"))?;
            }
        }
        one.run("ip link set more0 up")?;
        let has = |status: &str, name: &str| status.lines().any(|it| it.starts_with(&format!("{name} ")));
        sys::wait_until("another interface with the node's address is an uplink", TIMEOUT, || {
            Ok(has(&one.status()?, "more0"))
        })?;
        let status = one.status()?;
        ensure!(!has(&status, "lo"), "{status}");
        ensure!(!status.contains("unhealthy"), "{status}");
        wait_until_connected(pods)
    })
    .unwrap();
}

/// A second cable between two nodes of the segment.
fn connect(one: &Member, two: &Member) -> anyhow::Result<()> {
    let end = |host| format!("second address 02:00:00:00:77:0{host} mtu {UPLINK_MTU}");
    let (near, far) = (one.name, two.name);
    sys::run(&format!("ip -n {near} link add {} type veth peer name {} netns {far}", end(1), end(2)))?;
    for (node, other, host) in [(one, two, 1), (two, one, 2)] {
        node.run("ip link set second up")?;
        // Nodes answer solicitations for the addresses of the same interface only.
        let (to, mac) = (of(&other.addresses, 1)?, 3 - host);
        node.run(&format!("ip neigh add {to} lladdr 02:00:00:00:77:0{mac} dev second nud permanent"))?;
        node.run(&format!("ip addr add 10.77.0.{host}/24 dev second"))?;
        node.run(&format!("ip addr add 2001:db8:77::{host}/64 dev second nodad"))?;
    }
    Ok(())
}

fn wait_until_routed_by(node: &Member, other: &Member, interface: &str) -> anyhow::Result<()> {
    sys::wait_until(&format!("{} reaches {} by {interface}", node.name, other.name), TIMEOUT, || {
        let routes = node.node_routes()?;
        let of_other = |it: &&String| other.ranges.iter().any(|range| it.starts_with(range.as_str()));
        let found: Vec<_> = routes.iter().filter(of_other).collect();
        let is_by = |it: &&String| it.contains(&format!("dev {interface} "));
        ensure!(found.len() == 2 && found.iter().all(is_by), "{routes:#?}");
        Ok(true)
    })
}

#[test]
fn pods_follow_the_route_to_a_node_to_a_second_uplink_and_back() {
    with_pods(&[], |fabric, [a, b, _]| {
        let [one, two, _] = &fabric.nodes;
        connect(one, two)?;
        let pairs = [(one, two), (two, one)];
        let change = |verb: &str| {
            pairs.iter().try_for_each(|(node, other)| {
                for (family, flag) in ["-4", "-6"].into_iter().enumerate() {
                    let (to, source) = (of(&other.addresses, family)?, of(&node.addresses, family)?);
                    node.run(&format!("ip {flag} route {verb} {to} dev second src {source}"))?;
                }
                anyhow::Ok(())
            })
        };
        change("add")?;
        pairs.iter().try_for_each(|(node, other)| wait_until_routed_by(node, other, "second"))?;
        // The first uplink still carries the tunnel to the third node.
        wait_for_links(one, "  on", 3)?;
        let capture = Capture::start(&underlay::path(two.name), "second")?;
        let exchanged = exchange(a, b);
        let frames = capture.end()?;
        exchanged?;
        for (from, to) in a.addresses.iter().zip(&b.addresses) {
            frames.between(*from, *to).expect_bare()?;
        }
        change("del")?;
        pairs.iter().try_for_each(|(node, other)| wait_until_routed_by(node, other, "uplink"))?;
        exchange(a, b)
    })
    .unwrap();
}

#[test]
fn filters_of_others_that_keep_the_agents_from_running_on_an_uplink_are_named() {
    with_pods(&[], |fabric, _| {
        let [one, ..] = &fabric.nodes;
        let verify = || one.on(|node| node.ctl(&["verify"]));
        let before = verify()?;
        ensure!(!before.contains("(foreign)"), "{before}");
        // It accepts each packet.
        let add = |place: &str| {
            one.run(&format!("tc filter add dev {place} u32 match u32 0 0 classid 1:1")).map(drop)
        };
        // Behind the agent's, which it cannot keep from running.
        add("uplink egress protocol all prio 71")?;
        ensure!(verify()? == before, "{}", verify()?);
        add("uplink egress protocol all prio 1")?;
        add("ferrule-vxlan ingress protocol ip prio 2")?;
        let found = verify()?;
        for (link, what) in [
            ("uplink", "a u32 filter at the hook egress, priority 1"),
            ("ferrule-vxlan", "a u32 filter at the hook ingress, priority 2"),
        ] {
            let is_it = |line: &str| line.contains(link) && line.contains("(foreign)") && line.contains(what);
            ensure!(found.lines().any(is_it), "{what} of {link} is missing in {found}");
        }
        // The keeper's next pass.
        one.run("ip addr add 203.0.113.9/32 dev uplink")?;
        sys::wait_until("the agent warns of what leaves unjudged", TIMEOUT, || {
            let told = "may not be judged where it leaves by uplink (a u32 filter at the hook egress";
            one.on(|node| Ok(node.log().contains(told)))
        })
    })
    .unwrap();
}

#[test]
fn an_uplink_that_is_deleted_and_made_again_is_used_again() {
    with_pods(&[], |fabric, pods| {
        let ([one, _, three], [a, b, c]) = (&fabric.nodes, pods);
        // The third one reaches all others by the tunnel, and nothing directly.
        for (node, uplink, left) in [(one, "  on", [b, c]), (three, "  on: by the tunnel", [a, b])] {
            let probes = probes_between(left)?;
            node.run("ip link del uplink")?;
            sys::wait_until("the routes are gone with the link", TIMEOUT, || {
                Ok(!node.run("ip route")?.contains("dev uplink"))
            })?;
            node.plug_again()?;
            wait_until_connected(pods)?;
            wait_for_links(node, "  on", 2)?;
            let status = node.status()?;
            ensure!(status.lines().any(|it| it.starts_with("uplink ") && it.ends_with(uplink)), "{status}");
            // The new interface inherits forwarding, with which 1 would ignore routers.
            let setting = |name: &str| node.run(&format!("sysctl -n net.ipv6.conf.uplink.{name}"));
            ensure!(setting("forwarding")?.trim() == "1", "the new uplink does not forward");
            sys::wait_until("the new uplink accepts router advertisements", TIMEOUT, || {
                Ok(setting("accept_ra")?.trim() == "2")
            })?;
            sys::wait_until("nothing deviates", TIMEOUT, || {
                node.on(|node| node.ctl(&["verify"])).map(|_| true)
            })?;
            expect_all(probes).with_context(|| format!("while {} had no uplink", node.name))?;
        }
        exchange(a, b)?;
        exchange(a, c)
    })
    .unwrap();
}
