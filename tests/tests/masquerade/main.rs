//! Masquerading: the world sees the node's address, and nothing else loses its source.

mod table;
mod unused;

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    churn,
    node::{NODE_V4, NODE_V6, Node, POD_V4, POD_V6, on_node},
    pod::Pod,
    sys,
    world::{FAR, NEAR, World, tcp_source},
};

/// Covers the second between two looks, and healing.
const TIMEOUT: Duration = Duration::from_secs(20);
const NODE: [&str; 2] = [NODE_V4, NODE_V6];

/// Runs `run` on a node with a world, and an agent with more flags.
fn with_world<T: Send>(
    flags: &[&str],
    run: impl FnOnce(&mut Node, World) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    on_node(|node| {
        let world = World::make()?;
        let ranges = ["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6];
        node.start_agent_with(&[&ranges[..], flags].concat())?;
        run(node, world)
    })
}

fn status(node: &Node) -> anyhow::Result<String> {
    let text = node.ctl(&["status"])?;
    Ok(text.lines().filter(|line| line.contains("masquerade")).collect())
}

#[expect(clippy::unwrap_used, reason = "constants are parsed")]
fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_world_sees_only_the_nodes_address() {
    with_world(&[], |node, world| {
        let pod = node.attach("a")?;
        for (node, to) in [NODE, NODE].concat().iter().zip([NEAR, FAR].concat()) {
            ensure!(world.tcp_source(&pod, to)?.ip() == address(node), "TCP to {to}");
            ensure!(world.udp_source(&pod, to)?.ip() == address(node), "UDP to {to}");
            pod.ping(to)?;
        }
        ensure!(status(node)?.contains(POD_V4) && status(node)?.contains("healthy"), "{}", status(node)?);
        Ok(())
    })
    .unwrap();
}

/// See the test of the same name of Services.
#[test]
fn short_connections_to_the_world_never_wait_for_a_server_that_remembers_their_port() {
    with_world(&[], |node, world| {
        let pod = node.attach("a")?;
        for to in FAR {
            let to = SocketAddr::new(address(to), 8080);
            let repeated = churn::repeated_syns(pod.path(), to, world.path(), to, 1500, 1)?;
            ensure!(repeated == 0, "{repeated} of 1500 connections to {to} waited");
        }
        Ok(())
    })
    .unwrap();
}

/// The source of a datagram of several fragments, which the dataplane leaves to the stack.
fn fragmented_source(from: &Pod, at: &Pod, to: IpAddr) -> anyhow::Result<IpAddr> {
    let to = SocketAddr::new(to, 8081);
    let server = sys::bind_in(at.path(), to, UdpSocket::bind)?;
    server.set_read_timeout(Some(TIMEOUT))?;
    sys::in_netns(from.path(), || {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        Ok(UdpSocket::bind(any)?.send_to(&[0; 8000], to)?)
    })?;
    Ok(server.recv_from(&mut [0; 8192])?.1.ip())
}

#[test]
fn pods_and_the_node_see_each_others_own_addresses() {
    with_world(&[], |node, _| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let home = Path::new("/proc/thread-self/ns/net");
        for (number, own) in NODE.iter().enumerate() {
            let (from, to) = (a.addresses[number], b.addresses[number]);
            ensure!(tcp_source(a.path(), b.path(), SocketAddr::new(to, 8080))?.ip() == from, "pod to pod");
            ensure!(fragmented_source(&a, &b, to)? == from, "pod to pod, by the stack");
            let of_node = SocketAddr::new(address(own), 8080);
            let home = fs::canonicalize(home).unwrap_or_else(|_| home.into());
            ensure!(tcp_source(a.path(), &home, of_node)?.ip() == from, "pod to node");
            ensure!(
                tcp_source(&home, b.path(), SocketAddr::new(to, 8080))?.ip() == address(own),
                "node to pod"
            );
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn masqueraded_flows_get_ports_that_nothing_on_the_node_listens_on() {
    with_world(&[], |node, world| {
        let pod = node.attach("a")?;
        for to in NEAR {
            let to = SocketAddr::new(address(to), 8080);
            let listener = sys::bind_in(world.path(), to, TcpListener::bind)?;
            let (connections, seen) = sys::in_netns(pod.path(), || {
                // Kept open: each flow needs its own port.
                let mut connections = Vec::new();
                let mut seen = BTreeSet::new();
                for _ in 0..200 {
                    connections.push(TcpStream::connect_timeout(&to, TIMEOUT)?);
                    seen.insert(listener.accept()?.1.port());
                }
                Ok((connections, seen))
            })?;
            ensure!(seen.len() == 200, "{} ports", seen.len());
            ensure!(seen.iter().all(|port| *port >= 32768), "{seen:?}");
            let own = connections.iter().filter_map(|it| it.local_addr().ok());
            let kept = own.filter(|it| seen.contains(&it.port())).count();
            ensure!(kept == 200, "only {kept} of 200 connections keep their ports, which no other has");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_ports_are_a_setting() {
    with_world(&["--masquerade-ports", "50000-54095"], |node, world| {
        let pod = node.attach("a")?;
        for to in NEAR {
            for _ in 0..20 {
                let ports = [world.tcp_source(&pod, to)?.port(), world.udp_source(&pod, to)?.port()];
                ensure!(ports.iter().all(|port| (50000..54096).contains(port)), "{ports:?}");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn configured_destinations_see_the_pods_address() {
    let kept = ["--non-masquerade-cidr", "198.51.100.0/24", "--non-masquerade-cidr", "2001:db8:f::/64"];
    with_world(&kept, |node, world| {
        let pod = node.attach("a")?;
        world.route_to(POD_V4, NODE_V4)?;
        world.route_to(POD_V6, NODE_V6)?;
        for (number, own) in NODE.iter().enumerate() {
            ensure!(world.tcp_source(&pod, FAR[number])?.ip() == pod.addresses[number], "{}", FAR[number]);
            ensure!(world.tcp_source(&pod, NEAR[number])?.ip() == address(own), "{}", NEAR[number]);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_file_of_ip_masq_agent_is_followed_and_a_bad_one_changes_nothing() {
    // Not below the state directory, which belongs to the agent.
    const FILE: &str = "/run/ip-masq-agent";
    with_world(&["--ip-masq-agent-config", FILE], |node, world| {
        let pod = node.attach("a")?;
        world.route_to(POD_V4, NODE_V4)?;
        let [far, _] = FAR;
        let own = pod.addresses[0];
        let becomes = |expected: IpAddr| {
            sys::wait_until("the world sees another source", TIMEOUT, || {
                Ok(world.tcp_source(&pod, far)?.ip() == expected)
            })
        };
        let write = |text: &str| -> anyhow::Result<()> {
            fs::write(format!("{FILE}.new"), text)?;
            Ok(fs::rename(format!("{FILE}.new"), FILE)?)
        };
        becomes(address(NODE_V4)).context("without the file")?;
        write("nonMasqueradeCIDRs:\n- 198.51.100.0/24\nresyncInterval: 60s\n")?;
        becomes(own).context("YAML")?;
        write("nonMasqueradeCIDRs: [198.51.100.0/33]\n")?;
        sys::wait_until("the bad file is reported", TIMEOUT, || {
            let status = status(node)?;
            Ok(status.contains("unhealthy") && status.contains("nonMasqueradeCIDRs[0]"))
        })?;
        ensure!(world.tcp_source(&pod, far)?.ip() == own, "the last valid content is not in use");
        write(r#"{"NonMasqueradeCIDRs":["203.0.113.0/24"],"MasqLinkLocal":false}"#)?;
        becomes(address(NODE_V4)).context("JSON")?;
        sys::wait_until("the good file is reported", TIMEOUT, || Ok(!status(node)?.contains("unhealthy")))
    })
    .unwrap();
}

#[test]
fn a_clouds_metadata_service_sees_the_node_unless_a_file_keeps_link_local_destinations() {
    const FILE: &str = "/run/ip-masq-agent";
    const METADATA: &str = "169.254.169.254";
    with_world(&["--ip-masq-agent-config", FILE], |node, world| {
        sys::run(&format!("ip -n outside addr add {METADATA} dev lo"))?;
        world.route_to(POD_V4, NODE_V4)?;
        let pod = node.attach("a")?;
        let own = pod.addresses[0];
        let becomes = |expected: IpAddr| {
            sys::wait_until("the service sees another source", TIMEOUT, || {
                Ok(world.tcp_source(&pod, METADATA)?.ip() == expected)
            })
        };
        ensure!(world.tcp_source(&pod, METADATA)?.ip() == address(NODE_V4), "TCP");
        ensure!(world.udp_source(&pod, METADATA)?.ip() == address(NODE_V4), "UDP, as to a resolver");
        // As NodeLocal DNSCache has it.
        sys::run("ip link add nodelocaldns type bridge")?;
        sys::run("ip addr add 169.254.20.10/32 dev nodelocaldns")?;
        let (home, of_node) = (Path::new("/proc/thread-self/ns/net"), address("169.254.20.10"));
        let home = fs::canonicalize(home).unwrap_or_else(|_| home.into());
        let source = tcp_source(pod.path(), &home, SocketAddr::new(of_node, 8080))?;
        ensure!(source.ip() == own, "the node's own address sees {source}");
        fs::write(FILE, "nonMasqueradeCIDRs: [203.0.113.0/24]")?;
        becomes(own).context("a file without the key")?;
        fs::write(FILE, "masqLinkLocal: true")?;
        becomes(address(NODE_V4)).context("a file with the key")
    })
    .unwrap();
}

#[test]
fn a_file_with_as_many_networks_as_are_allowed_is_one_transaction() {
    const FILE: &str = "/run/ip-masq-agent";
    with_world(&["--ip-masq-agent-config", FILE], |node, world| {
        let pod = node.attach("a")?;
        let nets: Vec<_> =
            (0..4096_u32).map(|number| format!("172.{}.{}.0/25", 16 + number / 256, number % 256)).collect();
        fs::write(FILE, format!("nonMasqueradeCIDRs: [{}]", nets.join(", ")))?;
        sys::wait_until("the table has all networks", TIMEOUT, || {
            let set = sys::run("nft list set inet ferrule kept4")?;
            Ok(set.matches("/25").count() == 4096)
        })?;
        ensure!(node.ctl(&["verify"]).is_ok(), "{:?}", node.ctl(&["verify"]));
        ensure!(!status(node)?.contains("unhealthy"), "{}", status(node)?);
        ensure!(world.tcp_source(&pod, FAR[0])?.ip() == address(NODE_V4));
        Ok(())
    })
    .unwrap();
}

#[test]
fn global_ipv6_keeps_its_source_unless_it_is_switched_on() {
    const GLOBAL: &str = "2001:db8:10::/64";
    on_node(|node| {
        let world = World::make()?;
        node.start_agent(&[GLOBAL])?;
        let pod = node.attach("a")?;
        world.route_to(GLOBAL, NODE_V6)?;
        let source = || Ok::<_, anyhow::Error>(world.tcp_source(&pod, FAR[1])?.ip());
        ensure!(source()? == pod.addresses[0], "auto");
        node.stop_agent()?;
        node.start_again_with(&["--masquerade", "on"])?;
        ensure!(world.tcp_source(&pod, FAR[1])?.ip() == address(NODE_V6), "on");
        Ok(())
    })
    .unwrap();
}

#[test]
fn packets_with_marks_of_kube_proxy_and_portmap_are_left_to_their_rules() {
    with_world(&[], |node, world| {
        let pod = node.attach("a")?;
        world.route_to(POD_V4, NODE_V4)?;
        sys::run("ip addr add 192.0.2.77/32 dev uplink")?;
        // As kube-proxy does, with another address, which shows whose rule has translated.
        for rule in [
            "add table ip foreign",
            "add chain ip foreign marks { type filter hook prerouting priority mangle ; }",
            "add chain ip foreign translate { type nat hook postrouting priority srcnat ; }",
            "add rule ip foreign translate meta mark & 0x4000 == 0x4000 snat to 192.0.2.77",
        ] {
            sys::run(&format!("nft {rule}"))?;
        }
        let [far, _] = FAR;
        for (mark, expected) in [
            ("0x4000", address("192.0.2.77")),
            ("0x8000", pod.addresses[0]),
            ("0x2000", pod.addresses[0]),
            ("0x1000", address(NODE_V4)),
        ] {
            sys::run("nft flush chain ip foreign marks")?;
            sys::run(&format!("nft add rule ip foreign marks ip daddr {far} meta mark set {mark}"))?;
            let source = world.tcp_source(&pod, far)?;
            ensure!(source.ip() == expected, "{source} with the mark {mark}");
        }
        // Others' translation also comes first without a mark.
        sys::run("nft flush chain ip foreign marks")?;
        sys::run(&format!("nft add rule ip foreign translate ip daddr {far} snat to 192.0.2.77"))?;
        ensure!(world.tcp_source(&pod, far)?.ip() == address("192.0.2.77"));
        Ok(())
    })
    .unwrap();
}

#[test]
fn switched_off_the_table_is_removed_and_only_that() {
    with_world(&[], |node, world| {
        let pod = node.attach("a")?;
        sys::run("nft add table inet ferrule2")?;
        ensure!(sys::run("nft list tables")?.contains("table inet ferrule\n"));
        node.stop_agent()?;
        ensure!(sys::run("nft list tables")?.contains("table inet ferrule\n"), "a stop removes the table");
        ensure!(world.tcp_source(&pod, FAR[0])?.ip() == address(NODE_V4), "without an agent");
        node.start_again_with(&["--masquerade", "off"])?;
        sys::wait_until("the table is removed", TIMEOUT, || {
            Ok(sys::run("nft list tables")? == "table inet ferrule2\n")
        })?;
        world.route_to(POD_V4, NODE_V4)?;
        ensure!(world.tcp_source(&pod, FAR[0])?.ip() == pod.addresses[0]);
        ensure!(status(node)?.contains("off"), "{}", status(node)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn established_flows_survive_changes_of_the_table_and_crashes_of_the_agent() {
    const FILE: &str = "/run/ip-masq-agent";
    with_world(&["--ip-masq-agent-config", FILE], |node, world| {
        let pod = node.attach("a")?;
        for to in NEAR {
            let stop = std::sync::atomic::AtomicBool::new(false);
            thread::scope(|scope| {
                let (stop, from, world) = (&stop, pod.path(), world.path());
                let stream =
                    scope.spawn(move || ferrule_tests::traffic::stream_until(stop, from, world, address(to)));
                let mut change = || -> anyhow::Result<()> {
                    for round in 0..3_u8 {
                        // Also a network that holds the flow's destination.
                        let nets =
                            format!("[203.0.113.0/24, {to}/{}]", if to.contains(':') { 128 } else { 32 });
                        let text = if round % 2 == 0 { nets.as_str() } else { "[]" };
                        let before = sys::run("nft -a list table inet ferrule")?;
                        fs::write(FILE, format!("nonMasqueradeCIDRs: {text}"))?;
                        sys::wait_until("the table is replaced", TIMEOUT, || {
                            Ok(sys::run("nft -a list table inet ferrule")? != before)
                        })?;
                    }
                    let before = sys::run("nft -a list table inet ferrule")?;
                    node.kill_agent()?;
                    node.start_again()?;
                    thread::sleep(Duration::from_secs(2));
                    let after = sys::run("nft -a list table inet ferrule")?;
                    ensure!(before == after, "a start replaces the table: {before}{after}");
                    Ok(())
                };
                let changed = change();
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                let streamed = stream.join().map_err(|_| anyhow::anyhow!("the stream panicked"))?;
                changed.and(streamed).with_context(|| format!("to {to}"))
            })?;
            fs::remove_file(FILE)?;
            sys::wait_until("the world sees the node", TIMEOUT, || {
                Ok(NODE.contains(&world.tcp_source(&pod, to)?.ip().to_string().as_str()))
            })?;
        }
        Ok(())
    })
    .unwrap();
}
