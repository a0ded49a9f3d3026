//! The nftables table: as nft shows it, and healed.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    dist,
    node::{NODE_V4, NODE_V6, Node, POD_V4, POD_V6, on_node, with_agent, with_agent_without_healing},
    sys,
    world::{NEAR, World},
};
use nix::sys::signal::Signal;

use super::{NODE, TIMEOUT, address};

/// Written by hand.
const EXPECTED: &str = "\
table inet ferrule {
	set pods4 {
		type ipv4_addr
		flags interval
		elements = { 10.244.0.0/24 }
	}

	set kept4 {
		type ipv4_addr
		flags interval
		elements = { 10.244.0.0/24, 224.0.0.0/3 }
	}

	set pods6 {
		type ipv6_addr
		flags interval
		elements = { fd00:10:244::/64 }
	}

	set kept6 {
		type ipv6_addr
		flags interval
		elements = { fd00:10:244::/64,
			     fe80::/10,
			     ff00::/8 }
	}

	set elsewhere4 {
		type ipv4_addr
		flags interval
	}

	set elsewhere6 {
		type ipv6_addr
		flags interval
	}

	chain to_world {
		meta l4proto 6 masquerade to :32768-65535
		meta l4proto 17 masquerade to :32768-65535 fully-random
		meta l4proto 132 masquerade to :32768-65535 fully-random
		masquerade fully-random
	}

	chain to_backend {
		tcp sport >= 1024 snat ip to ip saddr:1024-32767
		udp sport >= 1024 snat ip to ip saddr:4790-32767 fully-random
		sctp sport >= 1024 snat ip to ip saddr:4790-32767 fully-random
		tcp sport >= 1024 snat ip6 to ip6 saddr:1024-32767
		udp sport >= 1024 snat ip6 to ip6 saddr:4790-32767 fully-random
		sctp sport >= 1024 snat ip6 to ip6 saddr:4790-32767 fully-random
	}

	chain of_pod {
		ct status 0x20 goto to_backend
		tcp sport 1024-32767 goto to_backend
	}

	chain postrouting {
		type nat hook postrouting priority 110; policy accept;
		meta mark & 0x0000e000 != 0x00000000 return
		ip saddr @pods4 ip daddr != @kept4 goto to_world
		ip6 saddr @pods6 ip6 daddr != @kept6 goto to_world
		iifname \"fr*\" goto of_pod
		oifname \"fr*\" ip saddr @elsewhere4 goto of_pod
		oifname \"fr*\" ip6 saddr @elsewhere6 goto of_pod
	}
}
";

fn listed() -> anyhow::Result<String> {
    sys::run("nft -nn list table inet ferrule")
}

/// Objects as the kernel stores them, without handles.
fn stored() -> anyhow::Result<Vec<String>> {
    let text = sys::run("nft --debug=netlink list table inet ferrule")?;
    let mut lines: Vec<_> = text
        .lines()
        .map(|line| line.trim_end_matches(|it: char| it.is_ascii_digit() || it == ' ').to_owned())
        .collect();
    lines.sort();
    Ok(lines)
}

fn count(node: &Node, name: &str) -> anyhow::Result<f64> {
    node.count(&format!("ferrule_{name}"))
}

/// `nft` neither shows nor writes the flag by which the port of a TCP connection follows from the client's
/// (`NF_NAT_RANGE_PROTO_OFFSET`, 0x20): both rules have it, and nothing else differs.
#[test]
fn the_table_is_what_nft_makes_of_the_documented_text_and_a_flag_that_nft_does_not_know() {
    with_agent(|_| {
        ensure!(listed()? == EXPECTED, "{}", listed()?);
        let mut ours = stored()?;
        let flagged: Vec<_> = ours.iter_mut().filter(|line| line.contains("flags 0x23")).collect();
        ensure!(flagged.len() == 2, "{flagged:?}");
        flagged.into_iter().for_each(|line| *line = line.replace("flags 0x23", "flags 0x3"));
        fs::write("/run/both.nft", format!("add table inet ferrule\ndelete table inet ferrule\n{EXPECTED}"))?;
        sys::run("nft -f /run/both.nft")?;
        ensure!(ours == stored()?, "{ours:#?}\n{:#?}", stored()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_deleted_or_changed_table_is_restored_on_notification() {
    with_agent(|node| {
        let before = listed()?;
        let deviations = "deviations_total{kind=\"masquerade-table\"}";
        let repairs = "repairs_total{kind=\"masquerade-table\",outcome=\"repaired\"}";
        let restored = format!("add table inet ferrule\ndelete table inet ferrule\n{before}");
        fs::write("/run/restored.nft", restored)?;
        for (number, damage) in [
            "delete table inet ferrule",
            "flush chain inet ferrule to_world",
            "flush set inet ferrule kept4",
            "insert rule inet ferrule postrouting accept",
            // Without the flag that nft does not know.
            "-f /run/restored.nft",
        ]
        .into_iter()
        .enumerate()
        {
            let expected = (number + 1) as f64;
            sys::run(&format!("nft {damage}"))?;
            sys::wait_until("the table is restored", TIMEOUT, || Ok(listed()? == before))?;
            sys::wait_until("the repair is counted", TIMEOUT, || Ok(count(node, repairs)? == expected))?;
            ensure!(count(node, deviations)? == expected, "{damage}");
        }
        ensure!(node.log().contains("table inet ferrule"), "not logged");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_refused_table_is_reported_and_retried_and_prevents_nothing_else() {
    on_node(|node| {
        let world = World::make()?;
        // A table that belongs to a process: the kernel refuses changes by others.
        let mut owner = Command::new("nft");
        let mut owner = sys::die_with_parent(owner.arg("-i").stdin(Stdio::piped())).spawn()?;
        let mut commands = owner.stdin.take().context("no input")?;
        writeln!(commands, "add table inet ferrule {{ flags owner ; }}")?;
        sys::wait_until("the table exists", TIMEOUT, || Ok(listed().is_ok()))?;
        node.start_agent(&[POD_V4, POD_V6])?;
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        peer.ping(&pod.addresses[0].to_string())?;
        let status = super::status(node)?;
        ensure!(status.contains("unhealthy") && status.contains("not masqueraded"), "{status}");
        ensure!(status.contains("inet ferrule"), "{status}");
        // The table ends with its owner.
        drop(commands);
        owner.wait()?;
        sys::wait_until("the table is written", TIMEOUT, || Ok(listed()? == EXPECTED))?;
        ensure!(world.tcp_source(&pod, NEAR[0])?.ip().to_string() == NODE_V4);
        sys::wait_until("the component is healthy", TIMEOUT, || {
            Ok(!super::status(node)?.contains("unhealthy"))
        })
    })
    .unwrap();
}

#[test]
fn with_healing_off_verify_names_every_kind_of_change() {
    with_agent_without_healing(|node| {
        let verify = || -> anyhow::Result<(Option<i32>, String)> {
            let found = Command::new(dist::binary("ferrulectl")?).arg("verify").output()?;
            Ok((found.status.code(), String::from_utf8_lossy(&found.stdout).into_owned()))
        };
        ensure!(verify()?.0 == Some(0), "{}", verify()?.1);
        for (damage, said) in [
            ("delete table inet ferrule", "is missing"),
            ("add table inet ferrule { flags dormant ; }", "dormant"),
            ("flush set inet ferrule pods6", "the set pods6"),
            ("flush chain inet ferrule postrouting", "the chain postrouting"),
            ("add rule inet ferrule to_world accept", "the chain to_world"),
            ("flush chain inet ferrule to_backend", "the chain to_backend"),
            ("flush chain inet ferrule of_pod", "the chain of_pod"),
            ("add chain inet ferrule more", "foreign chain"),
            ("add chain inet ferrule postrouting { policy drop ; }", "chain postrouting"),
        ] {
            sys::run(&format!("nft {damage}"))?;
            let (code, text) = verify()?;
            ensure!(
                code == Some(1) && text.contains("masquerade") && text.contains(said),
                "{damage}: {text}"
            );
            node.stop_agent()?;
            node.start_again()?;
            ensure!(verify()?.0 == Some(0), "after {damage}: {}", verify()?.1);
        }
        Ok(())
    })
    .unwrap();
}

/// Datagrams of one client to one server.
struct Exchange {
    client: UdpSocket,
    server: UdpSocket,
    to: SocketAddr,
}

impl Exchange {
    fn between(pod: &Path, from: IpAddr, world: &Path, to: SocketAddr) -> anyhow::Result<Self> {
        let server = sys::bind_in(world, to, UdpSocket::bind)?;
        let client = sys::bind_in(pod, SocketAddr::new(from, 0), UdpSocket::bind)?;
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        }
        Ok(Self { client, server, to })
    }

    /// The source of a further datagram, as the server sees it.
    fn source(&self) -> anyhow::Result<SocketAddr> {
        self.client.send_to(b"?", self.to)?;
        Ok(self.server.recv_from(&mut [0; 8]).context("the server received nothing")?.1)
    }

    fn source_and_reply(&self) -> anyhow::Result<SocketAddr> {
        let source = self.source()?;
        self.server.send_to(b"!", source)?;
        self.client.recv_from(&mut [0; 8]).context("no reply")?;
        Ok(source)
    }
}

/// Otherwise, conntrack would leave them untranslated for as long as they last. Flows with replies work, and
/// are left as they are.
#[test]
fn flows_that_began_without_the_table_are_masqueraded_once_it_is_there_again() {
    on_node(|node| {
        let world = World::make()?;
        // The world has routes to pods, so that their own addresses get replies.
        world.route_to(POD_V4, NODE_V4)?;
        world.route_to(POD_V6, NODE_V6)?;
        // As kube-proxy's rules do, these have conntrack at work without the agent's table.
        for rule in [
            "add table inet foreign",
            "add chain inet foreign forward { type filter hook forward priority 0 ; }",
            "add rule inet foreign forward ct state established accept",
        ] {
            sys::run(&format!("nft {rule}"))?;
        }
        node.start_agent(&[POD_V4, POD_V6])?;
        let pod = node.attach("a")?;
        // Until then, the node asks for no neighbour's address, and what it forwards waits.
        sys::wait_until("the uplink's addresses are usable", TIMEOUT, || {
            Ok(!sys::run("ip -6 addr show dev uplink tentative")?.contains("inet6"))
        })?;
        let exchange = |family: usize, port| {
            let to = SocketAddr::new(address(NEAR[family]), port);
            Exchange::between(pod.path(), pod.addresses[family], world.path(), to)
        };
        for is_repaired in [true, false] {
            if is_repaired {
                node.signal_agent(Signal::SIGSTOP)?;
            } else {
                node.kill_agent()?;
            }
            sys::run("nft delete table inet ferrule")?;
            let mut flows = Vec::new();
            for family in 0..2 {
                let (silent, answered) = (exchange(family, 8081)?, exchange(family, 8082)?);
                ensure!(silent.source()?.ip() == pod.addresses[family], "masqueraded without a table");
                ensure!(answered.source_and_reply()?.ip() == pod.addresses[family]);
                flows.push((silent, answered));
            }
            if is_repaired {
                node.signal_agent(Signal::SIGCONT)?;
            } else {
                node.start_again()?;
            }
            for (family, (silent, answered)) in flows.iter().enumerate() {
                sys::wait_until("the world sees the node", TIMEOUT, || {
                    let source = silent.source()?;
                    ensure!(source.ip() == address(NODE[family]), "it sees {source}");
                    Ok(true)
                })?;
                ensure!(answered.source_and_reply()?.ip() == pod.addresses[family], "a flow was cut");
            }
        }
        ensure!(node.log().contains("began without masquerading"), "not logged");
        Ok(())
    })
    .unwrap();
}
