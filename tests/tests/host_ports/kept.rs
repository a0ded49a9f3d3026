//! Ports of the node through damage, restarts, and a lost registry.

use std::{fs, net::TcpStream};

use anyhow::ensure;
use ferrule_tests::{
    node::{NODE_V4, Node, POD_V4, POD_V6, on_node, with_agent},
    sys,
};
use serde_json::json;

use super::{TIMEOUT, at, attach, chain, mapping, server, tcp_client, udp_client};

/// Written by hand; nft omits what an expression implies.
const EXPECTED: &str = "\
table inet ferrule-ports {
	map own4 {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 127.0.0.1 . 17 . 8080 : 10.244.0.2 . 80 }
	}

	map any4 {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 6 . 8080 : 10.244.0.2 . 80 }
	}

	set pods4 {
		type ipv4_addr . ipv4_addr
		elements = { 10.244.0.2 . 10.244.0.2 }
	}

	map own6 {
		type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service
	}

	map any6 {
		type inet_proto . inet_service : ipv6_addr . inet_service
		elements = { 6 . 8080 : fd00:10:244::2 . 80 }
	}

	set pods6 {
		type ipv6_addr . ipv6_addr
		elements = { fd00:10:244::2 . fd00:10:244::2 }
	}

	chain ports {
		dnat ip to ip daddr . meta l4proto . th dport map @own4
		meta nfproto 2 dnat ip to meta l4proto . th dport map @any4
		dnat ip6 to ip6 daddr . meta l4proto . th dport map @own6
		meta nfproto 10 dnat ip6 to meta l4proto . th dport map @any6
	}

	chain prerouting {
		type nat hook prerouting priority -90; policy accept;
		fib daddr type 2 goto ports
	}

	chain output {
		type nat hook output priority -90; policy accept;
		fib daddr type 2 goto ports
	}

	chain postrouting {
		type nat hook postrouting priority 105; policy accept;
		meta mark & 0x0000e000 != 0x00000000 return
		oifname \"fr*\" ct status 0x20 ip saddr 127.0.0.0/8 masquerade
		oifname \"fr*\" ct status 0x20 ip saddr . ip daddr @pods4 masquerade
		oifname \"fr*\" ct status 0x20 ip6 saddr . ip6 daddr @pods6 masquerade
	}
}
";

fn listed() -> anyhow::Result<String> {
    sys::run("nft -nn list table inet ferrule-ports")
}

fn mappings() -> serde_json::Value {
    json!([mapping("tcp", ""), mapping("udp", "127.0.0.1")])
}

fn repaired(node: &Node, kind: &str) -> anyhow::Result<f64> {
    node.count(&format!("ferrule_repairs_total{{kind=\"{kind}\",outcome=\"repaired\"}}"))
}

#[test]
fn the_table_is_as_documented_and_healed() {
    with_agent(|node| {
        let (pod, _) = attach(node, "a", mappings())?;
        let before = listed()?;
        ensure!(before == EXPECTED, "{before}");
        let address = server(&pod, at(NODE_V4)?)?.ip();
        for (number, damage) in [
            "delete table inet ferrule-ports".to_owned(),
            "flush map inet ferrule-ports any4".to_owned(),
            "flush chain inet ferrule-ports ports".to_owned(),
            format!("add element inet ferrule-ports any4 {{ tcp . 22 : {address} . 22 }}"),
        ]
        .into_iter()
        .enumerate()
        {
            sys::run(&format!("nft {damage}"))?;
            sys::wait_until("the table is restored", TIMEOUT * 2, || Ok(listed()? == before))?;
            let expected = (number + 1) as f64;
            sys::wait_until("the repair is counted", TIMEOUT, || {
                Ok(repaired(node, "host-ports-table")? == expected)
            })?;
            tcp_client(&pod, None, at(NODE_V4)?)?;
        }
        let host = node.host_ifname(&pod)?;
        sys::run(&format!("sysctl -qw net.ipv4.conf.{host}.route_localnet=0"))?;
        let found = node.ctl(&["verify"]).unwrap_or_else(|error| format!("{error:#}"));
        ensure!(found.contains("route_localnet is 0, expected 1"), "{found}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn without_a_pod_that_has_ports_there_is_no_table_and_none_stays() {
    with_agent(|node| {
        let is_there =
            || -> anyhow::Result<bool> { Ok(sys::run("nft list tables")?.contains("ferrule-ports")) };
        ensure!(!is_there()?, "a table without a pod");
        let (pod, mut of_pod) = attach(node, "a", mappings())?;
        ensure!(is_there()?);
        of_pod.del(&pod)?;
        ensure!(!is_there()?, "{}", listed()?);
        // What a failed removal would leave.
        sys::run("nft add table inet ferrule-ports")?;
        sys::wait_until("the table is removed", TIMEOUT * 2, || Ok(!is_there()?))
    })
    .unwrap();
}

#[test]
fn ports_are_open_while_the_agent_is_dead_and_after_its_restart() {
    with_agent(|node| {
        let (pod, mut of_pod) = attach(node, "a", mappings())?;
        let before = listed()?;
        node.kill_agent()?;
        tcp_client(&pod, None, at(NODE_V4)?)?;
        udp_client(&pod, None, at("127.0.0.1")?)?;
        sys::run("nft flush map inet ferrule-ports any4")?;
        node.start_again()?;
        ensure!(listed()? == before, "{}", listed()?);
        tcp_client(&pod, None, at(NODE_V4)?)?;
        ensure!(chain(mappings()).add(&node.pod("b")?).is_err(), "the port is taken");
        of_pod.del(&pod)?;
        ensure!(listed().is_err(), "a port is open: {}", listed()?);
        node.stop_agent()?;
        node.start_again()?;
        ensure!(listed().is_err(), "a table without ports");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_del_without_an_agent_closes_the_ports_at_the_next_start() {
    with_agent(|node| {
        let (pod, mut of_pod) = attach(node, "a", mappings())?;
        let (other, _) = attach(node, "b", json!([{ "hostPort": 9090, "containerPort": 80 }]))?;
        node.kill_agent()?;
        of_pod.del(&pod)?;
        ensure!(TcpStream::connect_timeout(&at(NODE_V4)?, TIMEOUT).is_err(), "the port leads nowhere");
        node.start_again()?;
        let table = listed()?;
        ensure!(!table.contains("8080") && table.contains("9090"), "{table}");
        let (pod, _) = attach(node, "c", mappings())?;
        tcp_client(&pod, Some(other.path()), at(NODE_V4)?).map(drop)
    })
    .unwrap();
}

/// Nothing calls DEL for such a pod.
#[test]
fn ports_of_a_pod_that_went_while_no_agent_ran_are_closed_after_the_start() {
    on_node(|node| {
        let ranges = ["--pod-cidr", POD_V4, "--pod-cidr", POD_V6];
        node.start_agent_with(&[&["--standalone", "--reconcile-period", "1"], &ranges[..]].concat())?;
        let (pod, _) = attach(node, "a", mappings())?;
        let (other, _) = attach(node, "b", json!([{ "hostPort": 9090, "containerPort": 80 }]))?;
        node.kill_agent()?;
        pod.remove()?;
        let table = listed()?;
        ensure!(table.contains("8080") && table.contains("9090"), "{table}");
        node.start_again()?;
        sys::wait_until("the port is closed", TIMEOUT * 2, || Ok(!listed()?.contains("8080")))?;
        ensure!(listed()?.contains("9090"), "the port of another pod is closed: {}", listed()?);
        let (pod, _) = attach(node, "c", mappings())?;
        tcp_client(&pod, Some(other.path()), at(NODE_V4)?).map(drop)
    })
    .unwrap();
}

#[test]
fn ports_of_a_lost_registry_are_rebuilt() {
    with_agent(|node| {
        let (pod, mut of_pod) = attach(node, "a", mappings())?;
        let before = listed()?;
        node.kill_agent()?;
        fs::remove_dir_all("/run/ferrule/attachments")?;
        node.start_again()?;
        ensure!(listed()? == before, "{}", listed()?);
        tcp_client(&pod, None, at(NODE_V4)?)?;
        udp_client(&pod, None, at("127.0.0.1")?)?;
        of_pod.del(&pod)?;
        ensure!(listed().is_err(), "a port is open: {}", listed()?);
        Ok(())
    })
    .unwrap();
}
