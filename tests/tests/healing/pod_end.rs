//! What `ferrulectl verify` finds beyond what the agent repairs: pods' own ends, and other software's chains.

use std::process::Command;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    dist,
    node::{Node, with_agent},
    pod::Pod,
    sys,
};
use serde_json::Value;

use super::{kinds, verify, wait_until_healed};

fn ingress_packets(node: &Node, pod: &Pod) -> anyhow::Result<u64> {
    let attachments = node.attachments()?;
    let of_pod = |it: &&Value| it["container_id"] == pod.container_id.as_str();
    let counters = attachments.iter().find(of_pod).and_then(|it| it.pointer("/counters/ingress_packets"));
    counters.and_then(Value::as_u64).context("no counters")
}

#[test]
fn a_pods_end_that_is_down_is_a_deviation_although_packets_are_counted() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        pod.run("ip link set eth0 down")?;
        let before = ingress_packets(node, &pod)?;
        ensure!(peer.ping(&pod.addresses[0].to_string()).is_err(), "the pod answers");
        ensure!(ingress_packets(node, &pod)? > before, "packets to the pod's end are counted before it");
        let (code, found) = verify()?;
        // The kernel removes IPv6 addresses of an interface that is set down.
        ensure!(code == Some(1) && kinds(&found) == ["pod-address", "pod-link"], "{found:#}");
        let output = Command::new(dist::binary("ferrulectl")?).arg("verify").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let means = "pod-link: the pod has no network, and the kernel discards what IN PKTS counts; the agent does \
                     not repair this";
        ensure!(text.contains(means), "{text}");
        let command = found.pointer("/deviations/0/command").and_then(Value::as_str).context("no command")?;
        ensure!(text.contains(command) && sys::run(command)?.contains("state DOWN"), "{text}");
        ensure!(!node.log().contains("pod-link"), "healing reports the pod's end");
        // As `docs/healing.md` says.
        sys::run(&format!("ip link del dev {}", node.host_ifname(&pod)?))?;
        wait_until_healed(node, &pod, &peer)
    })
    .unwrap();
}

#[test]
fn a_changed_mac_or_a_lost_address_of_the_pods_end_is_a_deviation() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        pod.run(&format!("ip addr flush dev eth0 to {}", pod.addresses[0]))?;
        pod.run("ip link set eth0 address 02:00:00:00:00:66")?;
        // A later plugin of the chain may have lowered the MTU.
        pod.run("ip link set eth0 mtu 1300")?;
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["pod-address", "pod-mac"], "{found:#}");
        pod.clone().remove()?;
        let (_, found) = verify()?;
        ensure!(kinds(&found).is_empty(), "a pod without a namespace waits for its DEL: {found:#}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_with_very_many_routes_does_not_use_up_memory() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        let before = node.agent_status("VmRSS")?;
        let routes = |action: &str| {
            let all = (0..40_000).map(|number| {
                format!(
                    "route {action} 10.{}.{}.{}/32 dev eth0\n",
                    100 + number / 65536,
                    number / 256 % 256,
                    number % 256
                )
            });
            std::fs::write("/run/routes", all.collect::<String>())?;
            pod.run("ip -batch /run/routes")
        };
        routes("add")?;
        let error = node.runtime()?.check(&pod).map_err(|error| format!("{error:#}"));
        ensure!(error.as_ref().is_err_and(|it| it.contains("there are more than 16384")), "{error:?}");
        let (code, found) = verify()?;
        ensure!(code == Some(0), "{found:#}");
        let used = node.agent_status("VmRSS")?.saturating_sub(before);
        ensure!(used < 64 * 1024, "{used} KiB more");
        routes("del")?;
        // Other interfaces of the pod do not count.
        pod.run("ip link add other type bridge")?;
        pod.run("ip link set other up")?;
        let other = std::fs::read_to_string("/run/routes")?.replace("eth0", "other").replace("del", "add");
        std::fs::write("/run/routes", other)?;
        pod.run("ip -batch /run/routes")?;
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

fn foreign(found: &Value) -> Vec<String> {
    let all = found["foreign"].as_array().into_iter().flatten();
    all.filter_map(|it| it["what"].as_str().map(str::to_owned)).collect()
}

#[test]
fn chains_that_can_drop_forwarded_packets_are_listed() {
    with_agent(|node| {
        node.attach("a")?;
        ensure!(foreign(&verify()?.1).is_empty());
        sys::run("nft add table inet guard")?;
        for (chain, hook) in [
            ("policed", "{ type filter hook forward priority 0 ; policy drop ; }"),
            ("ruled", "{ type filter hook forward priority 1 ; policy accept ; }"),
            ("harmless", "{ type filter hook forward priority 2 ; policy accept ; }"),
            ("elsewhere", "{ type filter hook input priority 0 ; policy drop ; }"),
        ] {
            sys::run(&format!("nft add chain inet guard {chain} {hook}"))?;
        }
        sys::run("nft add rule inet guard ruled ip saddr 10.244.0.0/24 counter drop")?;
        sys::run("nft add rule inet guard harmless ip saddr 10.244.0.0/24 counter accept")?;
        sys::run("iptables-nft -P FORWARD DROP")?;
        let (code, found) = verify()?;
        let listed = foreign(&found);
        ensure!(code == Some(0) && listed.len() == 3, "{found:#}");
        for part in [
            "chain inet guard policed at the hook forward has the policy drop",
            "chain inet guard ruled at the hook forward has rules that drop",
            "chain ip filter FORWARD at the hook forward has the policy drop",
        ] {
            ensure!(listed.iter().any(|it| it.contains(part)), "{part} is missing: {listed:#?}");
        }
        let output = Command::new(dist::binary("ferrulectl")?).arg("verify").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.starts_with("no deviations in 1 attachment; 3 objects of other software\n"), "{text}");
        Ok(())
    })
    .unwrap();
}
