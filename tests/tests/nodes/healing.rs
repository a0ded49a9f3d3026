//! What others change by hand, and what happens to the uplink, is made good.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use ferrule_tests::{
    apiserver::Resource,
    dist,
    fabric::{Fabric, Member, destination, on_fabric},
    node::{PINS, UPLINK_MTU},
    others::{self, TUNNEL},
    pod::Pod,
    sys, traffic,
};
use serde_json::Value;

use crate::fixture::{TIMEOUT, expect_all, ping, probes_between, wait_until_connected, with_pods};

/// A stream sends some tens of megabytes in a second.
const A_WHILE: Duration = Duration::from_secs(1);

#[test]
fn the_tunnel_device_is_corrected_after_each_change_by_hand() {
    with_pods(&[], |fabric, pods| {
        let [one, ..] = &fabric.nodes;
        let before = one.on(|_| others::tunnel())?;
        // Their nodes need no tunnel.
        let [a, b, _] = pods;
        let direct = probes_between([a, b])?;
        let repairs = || one.on(|node| node.metric("ferrule_node_repairs_total"));
        for damage in [
            "ip link del NAME",
            "ip link set NAME down",
            "ip link set NAME mtu 1000",
            "ip link set NAME arp on",
            "ip link set NAME alias another",
            "ip link set NAME alias ",
            "ip link set NAME group 0",
            "ip link set NAME address 02:00:00:00:00:99",
            "ip link set NAME type vxlan learning",
            "ip addr flush dev NAME",
            "ip addr add 192.0.2.77/32 dev NAME",
            "sysctl -qw net.ipv6.conf.NAME.disable_ipv6=1",
            "bridge vni delete dev NAME vni 70",
        ] {
            let (damage, repaired) = (damage.replace("NAME", TUNNEL), repairs()?);
            // Not by whitespace: an alias may be empty.
            let (program, args) = damage.split_once(' ').context("no arguments")?;
            one.on(|_| sys::output(Command::new(program).args(args.split(' '))).map(drop))?;
            sys::wait_until(&format!("the tunnel device is as before: {damage}"), TIMEOUT, || {
                let found = one.on(|_| others::tunnel())?;
                ensure!(found.is_some() && found == before, "{found:?}, expected {before:?}");
                Ok(true)
            })?;
            // No packet depends on the device's group or MAC address.
            if !["group 0", "address 02:"].iter().any(|it| damage.contains(it)) {
                sys::wait_until(&format!("the repair is counted: {damage}"), TIMEOUT, || {
                    Ok(repairs()? > repaired)
                })?;
            }
            wait_until_connected(pods).context(damage)?;
        }
        expect_all(direct)
    })
    .unwrap();
}

#[test]
fn verify_names_what_does_not_fit_at_the_tunnel_device() {
    with_pods(&["--self-heal", "off"], |fabric, _| {
        let [one, ..] = &fabric.nodes;
        // The first difference is named: in the reverse order of the comparison.
        for (damage, said) in [
            (format!("bridge vni delete dev {TUNNEL} vni 70"), "does not receive the network 70"),
            (format!("sysctl -qw net.ipv4.conf.{TUNNEL}.rp_filter=0"), "another net.ipv4.conf."),
            (format!("ip link set {TUNNEL} type vxlan learning"), "learns where packets come from"),
        ] {
            one.run(&damage)?;
            let verify = || Ok(Command::new(dist::binary("ferrulectl")?).arg("verify").output()?);
            let output = one.on(|_| verify())?;
            let text = String::from_utf8_lossy(&output.stdout);
            ensure!(!output.status.success() && text.contains(said), "after {damage}: {text}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_strict_check_of_sources_at_the_tunnel_is_loosened_again() {
    with_pods(&[], |fabric, [a, ..]| {
        let [one, _, three] = &fabric.nodes;
        let setting = format!("net.ipv4.conf.{TUNNEL}.rp_filter");
        let before = one.run(&format!("sysctl -n {setting}"))?;
        one.run(&format!("sysctl -qw {setting}=1"))?;
        sys::wait_until("the check is loose", TIMEOUT, || {
            Ok(one.run(&format!("sysctl -n {setting}"))? == before)
        })?;
        a.addresses.iter().try_for_each(|address| three.ping(*address).map(drop))
    })
    .unwrap();
}

#[test]
fn a_strict_check_of_sources_of_the_whole_node_is_loosened_at_uplinks_at_once() {
    with_pods(&[], |fabric, _| {
        let [one, ..] = &fabric.nodes;
        let uplink = "net.ipv4.conf.uplink.rp_filter";
        one.run(&format!("sysctl -qw net.ipv4.conf.all.rp_filter=0 {uplink}=0"))?;
        // By then, passes for other reasons are over.
        thread::sleep(Duration::from_secs(3));
        one.run("sysctl -qw net.ipv4.conf.all.rp_filter=1")?;
        sys::wait_until("the uplink's check is loose", TIMEOUT, || {
            Ok(one.run(&format!("sysctl -n {uplink}"))?.trim() == "2")
        })
    })
    .unwrap();
}

#[test]
fn deleted_and_changed_routes_are_restored_and_foreign_ones_stay() {
    with_pods(&[], |fabric, pods| {
        let [one, ..] = &fabric.nodes;
        let foreign = "203.0.113.128/25 via 192.0.2.254 dev uplink";
        one.run(&format!("ip route add {foreign}"))?;
        let before = one.node_routes()?;
        ensure!(before.len() == 4, "{before:?}");
        let wait = |what: &str| {
            sys::wait_until(what, TIMEOUT, || {
                let found = one.node_routes()?;
                ensure!(found == before, "{found:#?}, expected {before:#?}");
                Ok(true)
            })
        };
        for route in &before {
            let to = destination(route);
            let (family, router) =
                if to.contains(':') { ("-6", "2001:db8:1::254") } else { ("-4", "192.0.2.254") };
            one.run(&format!("ip {family} route del {to}"))?;
            wait(&format!("the route to {to} is there again"))?;
            // In the same place, and in another one that the kernel prefers or not.
            let metric = route.split_once("metric ").and_then(|(_, rest)| rest.split(' ').next());
            for metric in [metric.context("no metric")?, "69", "90"] {
                let other = format!("via {router} dev uplink proto 70 metric {metric}");
                one.run(&format!("ip {family} route replace {to} {other}"))?;
                wait(&format!("the route to {to} is as before, and none with metric {metric}"))?;
            }
        }
        ensure!(one.run("ip route")?.contains(foreign), "the foreign route is gone");
        wait_until_connected(pods)
    })
    .unwrap();
}

#[test]
fn deleted_rows_of_nodes_and_of_their_index_are_restored() {
    with_pods(&["--reconcile-period", "1"], |fabric, pods| {
        let [one, ..] = &fabric.nodes;
        let before = one.on(|_| others::state())?;
        let lengths = format!("bpftool map update pinned {PINS}/NODE_LENGTHS key 0 0 0 0 value 0 1 0 0");
        let damages: [(&str, &dyn Fn() -> anyhow::Result<()>); 3] = [
            ("NODES", &|| others::clear("NODES")),
            ("NODE_PREFIXES", &|| others::clear("NODE_PREFIXES")),
            ("NODE_LENGTHS", &|| sys::run(&lengths).map(drop)),
        ];
        for (map, damage) in damages {
            one.on(|_| damage())?;
            sys::wait_until(&format!("{map} is as before"), TIMEOUT, || {
                let found = one.on(|_| others::state())?;
                ensure!(found == before, "{found:#?}, expected {before:#?}");
                Ok(true)
            })?;
            wait_until_connected(pods).context(map)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn deleted_routes_of_pods_to_nodes_behind_the_tunnel_are_restored_before_a_comparison_is_due() {
    with_pods(&["--reconcile-period", "3600"], |fabric, _| {
        let [one, ..] = &fabric.nodes;
        let list = || one.run("ip route show table 7070");
        let before = list()?;
        ensure!(!before.is_empty(), "no routes to the addresses of nodes");
        // A late notification about new pods may restore them, too, but not each time.
        for _ in 0..3 {
            one.run("ip route flush table 7070")?;
            sys::wait_until("the routes are there again", TIMEOUT, || {
                let found = list()?;
                ensure!(found == before, "{found}, expected {before}");
                Ok(true)
            })?;
        }
        Ok(())
    })
    .unwrap();
}

/// Waits until a pod knows that packets of this length, and no longer ones, get to another.
fn wait_until_fits(from: &Pod, to: &Pod, len: u32) -> anyhow::Result<()> {
    for address in &to.addresses {
        sys::wait_until(&format!("{len} bytes fit from {} to {address}", from.name), TIMEOUT, || {
            let (fits, long) = (ping(from, *address, len, "do")?, ping(from, *address, len + 1, "do")?);
            ensure!(fits.contains(" 2 received"), "{fits}");
            ensure!(long.to_lowercase().contains("message too long"), "{long}");
            Ok(true)
        })?;
    }
    Ok(())
}

#[test]
fn running_pods_follow_the_mtu_of_the_uplink() {
    with_pods(&[], |fabric, [a, _, c]| {
        wait_until_fits(a, c, UPLINK_MTU - 50)?;
        let change = || {
            for mtu in [UPLINK_MTU - 80, UPLINK_MTU] {
                for node in &fabric.nodes {
                    node.run(&format!("ip link set uplink mtu {mtu}"))?;
                }
                wait_until_fits(a, c, mtu - 50).with_context(|| format!("with an uplink of {mtu}"))?;
                thread::sleep(A_WHILE);
            }
            anyhow::Ok(())
        };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let stream = |address| {
                let stop = &stop;
                scope.spawn(move || traffic::stream_until(stop, a.path(), c.path(), address))
            };
            let streams: Vec<_> = c.addresses.iter().copied().map(stream).collect();
            thread::sleep(A_WHILE);
            let changed = change();
            stop.store(true, Ordering::Relaxed);
            for stream in streams {
                let ended = stream.join().map_err(|_| anyhow!("a stream panicked"))?;
                ended.context("a stream did not survive the changes of the MTU")?;
            }
            changed
        })
    })
    .unwrap();
}

#[test]
fn routes_come_back_with_the_uplink() {
    with_pods(&[], |fabric, pods| {
        let [a, b, c] = pods;
        for (node, left) in fabric.nodes.iter().zip([[b, c], [a, c], [a, b]]) {
            let probes = probes_between(left)?;
            node.run("ip link set uplink down")?;
            sys::wait_until("the routes are gone with the link", TIMEOUT, || {
                Ok(!node.run("ip route")?.contains("dev uplink"))
            })?;
            node.run("ip link set uplink up")?;
            node.configure_uplink()?;
            wait_until_connected(pods).with_context(|| format!("after {} was cut off", node.name))?;
            expect_all(probes).with_context(|| format!("while {} was cut off", node.name))?;
        }
        Ok(())
    })
    .unwrap();
}

/// Whether the Node object says that the node's network works.
fn is_announced(fabric: &Fabric, node: &Member) -> anyhow::Result<bool> {
    let object = fabric.api.get(Resource::Nodes, "", node.name).context("no Node")?;
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    let is = |it: &Value, name: &str, value: &str| it.get(name).is_some_and(|it| it == value);
    Ok(conditions.any(|it| is(it, "type", "NetworkUnavailable") && is(it, "status", "False")))
}

fn wait_until_announced(fabric: &Fabric, node: &Member) -> anyhow::Result<()> {
    sys::wait_until(&format!("{} is announced", node.name), TIMEOUT, || is_announced(fabric, node))
}

#[test]
fn another_vxlan_device_at_the_port_is_named_and_its_end_awaited() {
    const FOREIGN: &str = "flannel.1";
    on_fabric(|fabric: &Fabric| {
        let [one, two, three] = &fabric.nodes;
        one.run(&format!("ip link add {FOREIGN} type vxlan id 1 dstport 4789 dev uplink"))?;
        one.run(&format!("ip link set {FOREIGN} up"))?;
        fabric.nodes.iter().try_for_each(Member::register)?;
        fabric.nodes.iter().try_for_each(|node| node.begin_agent(&[]))?;
        fabric.nodes.iter().try_for_each(Member::wait_until_ready)?;
        let pods = [one.attach("a")?, two.attach("b")?, three.attach("c")?];
        sys::wait_until("the status names the device", TIMEOUT, || {
            let status = one.status()?;
            ensure!(status.contains(FOREIGN) && status.contains("4789"), "{status}");
            Ok(true)
        })?;
        wait_until_announced(fabric, two)?;
        wait_until_announced(fabric, three)?;
        ensure!(!is_announced(fabric, one)?, "a node whose tunnel does not work is announced");
        let status = one.status()?;
        let line =
            status.lines().find(|line| line.trim_start().starts_with("node-status ")).unwrap_or_default();
        ensure!(line.contains("unhealthy") && line.contains(FOREIGN), "{status}");
        wait_until_connected(&pods[..2]).context("direct routes need no tunnel")?;
        one.run(&format!("ip link del {FOREIGN}"))?;
        wait_until_announced(fabric, one)?;
        wait_until_connected(&pods)
    })
    .unwrap();
}
