//! Packets between pods of two nodes bypass the host's stack, in both directions or in none.

use std::{
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{fabric::Member, pod::Pod, sys, traffic};
use serde_json::Value;

use crate::fixture::{TIMEOUT, wait_until_connected, with_pods};

const MEGABYTE: u64 = 1 << 20;
/// Counts what the node forwards for pods.
const COUNTER: &str = "add table inet count; add chain inet count forward { type filter hook forward priority -400; }; \
                       add rule inet count forward ip saddr 10.244.0.0/16 counter; \
                       add rule inet count forward ip6 saddr fd00:10:244::/48 counter; \
                       add rule inet count forward ct state invalid counter drop";

fn count_forwarded(node: &Member) -> anyhow::Result<()> {
    node.on(|_| {
        std::fs::write("/run/count.nft", COUNTER.replace("; ", "\n"))?;
        sys::run("nft -f /run/count.nft").map(drop)
    })
}

/// Packets of pods that the node's stack has forwarded: IPv4, IPv6, and those that conntrack calls invalid.
fn forwarded(node: &Member) -> anyhow::Result<Vec<u64>> {
    let text = node.run("nft list chain inet count forward")?;
    let counters = text.split("counter packets ").skip(1);
    Ok(counters.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect())
}

fn exchange(from: &Pod, to: &Pod) -> anyhow::Result<()> {
    for address in &to.addresses {
        traffic::stream(from.path(), to.path(), *address, 4 * MEGABYTE)?;
        from.ping(&address.to_string())?;
    }
    Ok(())
}

#[test]
fn the_stack_sees_no_packet_between_pods_of_two_nodes() {
    with_pods(&[], |fabric, [a, b, c]| {
        fabric.nodes.iter().try_for_each(count_forwarded)?;
        for (from, to) in [(a, b), (b, a), (a, c), (c, a)] {
            exchange(from, to)?;
        }
        for node in &fabric.nodes {
            let seen = forwarded(node)?;
            ensure!(seen == [0, 0, 0], "{} has forwarded {seen:?}", node.name);
        }
        Ok(())
    })
    .unwrap();
}

/// Connects to a pod many times, and returns the number of packets that the tunnel devices of nodes carry.
fn carried_by_devices(nodes: [&Member; 2], from: &Pod, to: &Pod) -> anyhow::Result<u64> {
    const DIRECTIONS: [&str; 2] = ["/0/stats64/rx/packets", "/0/stats64/tx/packets"];
    let carried = || {
        nodes.into_iter().try_fold(0, |sum, node| {
            let link: Value = serde_json::from_str(&node.run("ip -j -s link show ferrule-vxlan")?)?;
            let packets = DIRECTIONS.iter().filter_map(|at| link.pointer(at)?.as_u64()).sum::<u64>();
            anyhow::Ok(sum + packets)
        })
    };
    let before = carried()?;
    for address in &to.addresses {
        let server = SocketAddr::new(*address, 8080);
        for _ in 0..20 {
            traffic::echo(to.path(), server, || sys::in_netns(from.path(), || traffic::connect(server)))?;
        }
    }
    Ok(carried()? - before)
}

#[test]
fn the_programs_spare_the_tunnel_device_unless_only_the_kernel_knows_the_next_hop() {
    with_pods(&[], |fabric, [a, _, c]| {
        let [one, _, three] = &fabric.nodes;
        let nodes = [one, three];
        let carried = carried_by_devices(nodes, a, c)?;
        ensure!(carried == 0, "the devices have carried {carried} packets");
        let address = three.addresses.first().context("no address")?;
        let (hop, of_other_family) = ("nexthop via 192.0.2.254 dev uplink", "2001:db8:1::254");
        for route in [
            format!("{address} {hop} weight 1 {hop} weight 2"),
            // RFC 8950: no host of the network answers for the other node's address.
            format!("{address} via inet6 {of_other_family} dev uplink"),
        ] {
            one.run(&format!("ip route add {route}"))?;
            sys::wait_until(&format!("the device sends by {route}"), TIMEOUT, || {
                Ok(carried_by_devices(nodes, a, c)? > 200)
            })?;
            one.run(&format!("ip route del {address}"))?;
            let spared = "the devices are spared again";
            sys::wait_until(spared, TIMEOUT, || Ok(carried_by_devices(nodes, a, c)? == 0))?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_tunnel_device_takes_over_while_no_agent_follows_the_kernels_routes() {
    with_pods(&[], |fabric, [a, _, c]| {
        let [one, _, three] = &fabric.nodes;
        let nodes = [one, three];
        one.on(|node| node.stop_agent())?;
        let carried = carried_by_devices(nodes, a, c)?;
        ensure!(carried > 200, "the devices have carried {carried} packets");
        one.on(|node| node.start_again())?;
        sys::wait_until("the devices are spared again", TIMEOUT, || Ok(carried_by_devices(nodes, a, c)? == 0))
    })
    .unwrap();
}

#[test]
fn the_stack_sees_every_packet_where_the_fast_path_is_off() {
    with_pods(&["--node-fast-path", "off"], |fabric, [a, b, c]| {
        fabric.nodes.iter().try_for_each(count_forwarded)?;
        exchange(a, b)?;
        exchange(a, c)?;
        for node in &fabric.nodes {
            let seen = forwarded(node)?;
            let [v4, v6, invalid] = seen.as_slice() else { anyhow::bail!("{seen:?}") };
            ensure!(*v4 > 100 && *v6 > 100 && *invalid == 0, "{} has forwarded {seen:?}", node.name);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn packets_with_options_pass_the_stack_and_leave_the_flow_beside_it() {
    with_pods(&[], |fabric, [a, b, c]| {
        fabric.nodes.iter().try_for_each(count_forwarded)?;
        for to in [b, c] {
            let address = to.addresses.first().copied().map(|it| it.to_string()).unwrap_or_default();
            // A record of the route, an IPv4 option.
            a.run(&format!("ping -n -c 2 -i 0.2 -W 2 -R {address}"))?;
            exchange(a, to)?;
        }
        let [one, ..] = &fabric.nodes;
        let seen = forwarded(one)?;
        ensure!(matches!(seen.as_slice(), [4..=12, 0, 0]), "{seen:?}");
        Ok(())
    })
    .unwrap();
}

/// Each node's conntrack sees the whole of such a connection, or nothing.
#[test]
fn a_connection_with_options_passes_the_stacks_of_both_nodes() {
    with_pods(&[], |fabric, [a, b, c]| {
        fabric.nodes.iter().try_for_each(count_forwarded)?;
        for to in [b, c] {
            let address = to.addresses.iter().find(|it| it.is_ipv4()).context("no address")?;
            let server = SocketAddr::new(*address, 8080);
            let listener = sys::bind_in(to.path(), server, TcpListener::bind)?;
            for connect in [traffic::connect, traffic::connect_with_options] {
                let ends = [sys::in_netns(a.path(), || connect(server))?, traffic::accept(&listener)?];
                for end in &ends {
                    end.set_read_timeout(Some(TIMEOUT))?;
                    end.set_write_timeout(Some(TIMEOUT))?;
                }
                let [_, at_server] = &ends;
                sys::add_options(at_server)?;
                traffic::both_send(&ends)?;
            }
        }
        for node in &fabric.nodes {
            let seen = forwarded(node)?;
            let [v4, _, invalid] = seen.as_slice() else { anyhow::bail!("{seen:?}") };
            ensure!(*v4 > 100 && *invalid == 0, "{} has forwarded {seen:?}", node.name);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn verify_warns_of_a_strict_conntrack_while_packets_pass_the_stack_by() {
    for (flags, is_fast) in [(&[][..], true), (&["--node-fast-path", "off"], false)] {
        with_pods(flags, |fabric, _| {
            let [one, ..] = &fabric.nodes;
            let setting = "net.netfilter.nf_conntrack_tcp_loose";
            for (value, is_named) in [(0, is_fast), (1, false)] {
                one.run(&format!("sysctl -qw {setting}={value}"))?;
                // No deviation, and so no failure.
                let text = one.on(|node| node.ctl(&["verify"]))?;
                ensure!(text.contains(setting) == is_named, "with {value}: {text}");
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Waits until the links of `ferrulectl status` with this text are as many.
pub(crate) fn wait_for_links(node: &Member, text: &str, count: usize) -> anyhow::Result<()> {
    sys::wait_until(&format!("{count} links are {text}"), TIMEOUT, || {
        let status = node.status()?;
        let found = status.lines().skip_while(|it| !it.starts_with("LINK ")).filter(|it| it.contains(text));
        ensure!(found.count() == count, "{status}");
        Ok(true)
    })
}

#[test]
fn policies_of_ipsec_hold_for_packets_between_pods_as_long_as_there_are_any() {
    with_pods(&[], |fabric, pods| {
        let ([a, b, _], [one, two, _]) = (pods, &fabric.nodes);
        let off = "off: the host has xfrm policies";
        let of_pods = format!("src {} dst {} dir out", one.ranges[0], two.ranges[0]);
        one.run(&format!("ip xfrm policy add {of_pods} action block"))?;
        wait_for_links(one, off, 2)?;
        let blocked = a.ping(&b.addresses[0].to_string());
        ensure!(blocked.is_err(), "the packet has evaded the policy: {blocked:?}");
        fabric.nodes.iter().try_for_each(count_forwarded)?;
        a.ping(&b.addresses[1].to_string())?;
        ensure!(matches!(forwarded(one)?.as_slice(), [_, 2, 0]), "{:?}", forwarded(one)?);
        ensure!(forwarded(two)? == [0, 0, 0], "the other node has no policies: {:?}", forwarded(two)?);

        one.run(&format!("ip xfrm policy delete {of_pods}"))?;
        wait_for_links(one, "  on", 2)?;
        wait_until_connected(pods)?;
        // For packets to this node itself, which take the stack.
        one.run(&format!("ip xfrm policy add src {} dst {} dir in", two.ranges[0], one.ranges[0]))?;
        exchange(a, b)?;
        wait_for_links(one, "  on", 2)
    })
    .unwrap();
}

#[test]
fn a_connection_lives_while_its_way_becomes_fast_and_slow_again() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, ..] = &fabric.nodes;
        let policy = format!("src {} dst 203.0.113.0/24 dir out", one.ranges[0]);
        // The fast path of node 1 is off while the host has a policy of IPsec, whatever its addresses.
        let set_slow = |is_slow: bool| {
            let verb = if is_slow { "add" } else { "delete" };
            one.run(&format!("ip xfrm policy {verb} {policy}"))?;
            wait_for_links(one, if is_slow { "off: the host has xfrm policies" } else { "  on" }, 2)
        };
        set_slow(true)?;
        count_forwarded(one)?;
        let mut connections = Vec::new();
        for (client, server) in [(a, b), (a, c), (b, a), (c, a)] {
            for address in &server.addresses {
                let to = SocketAddr::new(*address, 8080);
                let listener = sys::bind_in(server.path(), to, TcpListener::bind)?;
                let ends =
                    [sys::in_netns(client.path(), || traffic::connect(to))?, traffic::accept(&listener)?];
                for end in &ends {
                    end.set_read_timeout(Some(TIMEOUT))?;
                    end.set_write_timeout(Some(TIMEOUT))?;
                }
                connections.push(ends);
            }
        }
        let all_send = |when: &'static str| connections.iter().try_for_each(traffic::both_send).context(when);
        all_send("while the way is slow")?;
        let slow = forwarded(one)?;
        set_slow(false)?;
        all_send("while the way is fast")?;
        let fast = forwarded(one)?;
        ensure!(fast[0] < slow[0] + 100, "the stack forwards in the fast time: {slow:?}, then {fast:?}");
        set_slow(true)?;
        all_send("while the way is slow again")?;
        let last = forwarded(one)?;
        ensure!(last[0] > fast[0] + 100 && last[1] > fast[1] + 100, "{slow:?}, {fast:?}, {last:?}");
        ensure!(last[2] == 0, "conntrack calls {} packets invalid", last[2]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn blocking_default_policies_of_ipsec_hold_for_packets_between_pods() {
    with_pods(&[], |fabric, pods| {
        let ([a, b, _], [one, ..]) = (pods, &fabric.nodes);
        for direction in ["out", "fwd"] {
            one.run(&format!("ip xfrm policy setdefault {direction} block"))?;
            wait_for_links(one, "off: xfrm blocks packets without a policy", 2)?;
            for to in &b.addresses {
                let blocked = a.ping(&to.to_string());
                ensure!(blocked.is_err(), "a packet has evaded the block ({direction}): {blocked:?}");
            }
            one.run(&format!("ip xfrm policy setdefault {direction} accept"))?;
            wait_for_links(one, "  on", 2)?;
            wait_until_connected(pods)?;
        }
        Ok(())
    })
    .unwrap();
}

/// For a connection to carry some data by one way.
const A_WHILE: Duration = Duration::from_millis(300);

/// Waits until a node's route to another one's range of a family leads through the tunnel, or does not.
fn wait_for_tunnel(node: &Member, range: &str, is_tunnelled: bool) -> anyhow::Result<()> {
    sys::wait_until(&format!("tunnelled to {range}: {is_tunnelled}"), TIMEOUT, || {
        let routes = node.node_routes()?;
        let route = routes.iter().find(|it| it.starts_with(range));
        ensure!(route.is_some_and(|it| it.contains("encap") == is_tunnelled), "{routes:#?}");
        Ok(true)
    })
}

#[test]
fn connections_live_while_two_nodes_take_different_ways_to_each_other() {
    with_pods(&[], |fabric, [a, b, _]| {
        let [one, two, _] = &fabric.nodes;
        [one, two].into_iter().try_for_each(count_forwarded)?;
        for (family, (flag, router)) in
            [("-4", "192.0.2.254"), ("-6", "2001:db8:1::254")].into_iter().enumerate()
        {
            let route = format!("{} via {router} dev uplink", two.addresses[family]);
            let change = || {
                for (verb, is_tunnelled) in [("add", true), ("del", false)] {
                    thread::sleep(A_WHILE);
                    one.run(&format!("ip {flag} route {verb} {route}"))?;
                    wait_for_tunnel(one, &two.ranges[family], is_tunnelled)?;
                    wait_for_tunnel(two, &one.ranges[family], false)?;
                }
                thread::sleep(A_WHILE);
                anyhow::Ok(())
            };
            let (stop, of_a, of_b) = (AtomicBool::new(false), a.addresses[family], b.addresses[family]);
            thread::scope(|scope| {
                let streams =
                    [(a.path(), b.path(), of_b), (b.path(), a.path(), of_a)].map(|(from, to, address)| {
                        scope.spawn({
                            let stop = &stop;
                            move || traffic::stream_until(stop, from, to, address)
                        })
                    });
                let changed = change();
                stop.store(true, Ordering::Relaxed);
                for stream in streams {
                    stream.join().map_err(|_| anyhow::anyhow!("a stream panicked"))??;
                }
                changed
            })?;
        }
        for node in [one, two] {
            let seen = forwarded(node)?;
            ensure!(seen.last() == Some(&0), "conntrack of {} calls packets invalid: {seen:?}", node.name);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn routes_and_rules_of_others_hold_for_packets_to_remote_pods() {
    with_pods(&[], |fabric, [a, b, _]| {
        let [one, ..] = &fabric.nodes;
        for (from, to) in a.addresses.iter().zip(&b.addresses) {
            let (flag, len) = if to.is_ipv4() { ("-4", 32) } else { ("-6", 128) };
            let route = format!("blackhole {to}/{len}");
            let rule = format!("from {from} to {to} priority 100 blackhole");
            for (object, what) in [("route", &route), ("rule", &rule)] {
                one.run(&format!("ip {flag} {object} add {what}"))?;
                sys::wait_until(&format!("the {object} {what} holds"), TIMEOUT, || {
                    Ok(a.ping(&to.to_string()).is_err())
                })?;
                one.run(&format!("ip {flag} {object} del {what}"))?;
                sys::wait_until(&format!("{to} is reached again"), TIMEOUT, || {
                    a.ping(&to.to_string()).map(|_| true)
                })?;
            }
        }
        sys::wait_until("the stack is passed by again", TIMEOUT, || {
            count_forwarded(one)?;
            exchange(a, b)?;
            let seen = forwarded(one)?;
            one.run("nft delete table inet count")?;
            ensure!(seen == [0, 0, 0], "{} has forwarded {seen:?}", one.name);
            Ok(true)
        })
    })
    .unwrap();
}

#[test]
fn rules_of_others_hold_for_addresses_that_pods_may_get_outside_of_the_nodes_ranges() {
    with_pods(&["--vif-cidr", "10.245.0.0/16"], |fabric, _| {
        let [one, ..] = &fabric.nodes;
        wait_for_links(one, "  on", 2)?;
        one.run("ip rule add from 10.246.0.7 priority 99 blackhole")?;
        one.run("ip rule add from 10.245.0.7 priority 100 blackhole")?;
        wait_for_links(one, "another program has the routing rule 100", 2)?;
        one.run("ip rule del priority 100")?;
        wait_for_links(one, "  on", 2)
    })
    .unwrap();
}
