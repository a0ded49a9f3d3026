//! `ferrulectl explain` and `check` of broken pods: each cause is named.

use agent_common::policy::PackedSubject;
use anyhow::ensure;
use ferrule_tests::{
    node::{Node, map_delete, set_subject, with_agent_without_healing},
    pod::Pod,
    sys,
};

use super::{ctl, verdict};

/// Breaks a pod, and expects what `explain` and `check` say of it.
fn expect(
    name: &str,
    breaks: impl FnOnce(&Node, &Pod) -> anyhow::Result<()> + Send,
    (kind, cause, check): (&str, &str, &str),
) -> anyhow::Result<()> {
    with_agent_without_healing(|node| {
        let pod = node.attach(name)?;
        ensure!(verdict(name)?.0 == Some(0), "healthy at first");
        let (code, text) = ctl(&["check", name])?;
        ensure!(code == Some(0) && !text.contains("failed"), "{text}");
        breaks(node, &pod)?;
        let (code, line) = verdict(name)?;
        let expected = format!("default/{name}: {kind}: {cause}");
        ensure!(code == Some(1) && line.starts_with(&expected), "{line}");
        let (code, text) = ctl(&["check", name])?;
        let failed =
            text.lines().any(|it| it.starts_with("eth0") && it.contains(check) && it.contains("failed"));
        ensure!(code == Some(1) && failed, "{check}: {text}");
        Ok(())
    })
}

#[test]
fn a_host_interface_that_is_down_is_named() {
    let breaks = |node: &Node, pod: &Pod| {
        sys::run(&format!("ip link set dev {} down", node.host_ifname(pod)?)).map(drop)
    };
    expect("down", breaks, ("not carried", "link-down: ", "host interface")).unwrap();
}

#[test]
fn a_lost_row_of_the_dataplane_is_named() {
    let breaks = |node: &Node, pod: &Pod| {
        sys::run(&map_delete("VIFS", &node.host_ifindex(pod)?.to_ne_bytes())).map(drop)
    };
    expect("row", breaks, ("not carried", "map-entry: the map entry VIFS ", "map rows")).unwrap();
}

#[test]
fn a_pod_without_a_judge_is_named() {
    let breaks = |node: &Node, pod: &Pod| set_subject(node.host_ifindex(pod)?, PackedSubject::default());
    expect("judge", breaks, ("not carried", "nothing judges eth0", "judge")).unwrap();
}

#[test]
fn a_lost_filter_impairs() {
    let breaks = |node: &Node, pod: &Pod| {
        let host = node.host_ifname(pod)?;
        sys::run(&format!("tc filter del dev {host} egress")).map(drop)
    };
    expect("filter", breaks, ("impaired", "filter: the filter to_pod is missing", "filters")).unwrap();
}

#[test]
fn an_address_that_the_pod_has_lost_is_named() {
    let breaks =
        |_: &Node, pod: &Pod| pod.run(&format!("ip addr flush dev eth0 to {}", pod.addresses[0])).map(drop);
    expect("address", breaks, ("not carried", "pod-address: ", "pod addresses")).unwrap();
}

#[test]
fn a_network_namespace_that_is_gone_is_named() {
    with_agent_without_healing(|node| {
        let pod = node.attach("gone")?;
        pod.clone().remove()?;
        let (code, line) = verdict("gone")?;
        ensure!(code == Some(1) && line.contains("not carried: the network namespace "), "{line}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_without_its_default_route_is_cut_off() {
    let breaks = |_: &Node, pod: &Pod| pod.run("ip route del default").map(drop);
    let cause = "the pod has lost the route default via 169.254.1.1";
    expect("route", breaks, ("not carried", cause, "pod routes")).unwrap();
}

#[test]
fn a_wrong_neighbour_entry_of_the_gateway_is_named() {
    let breaks = |_: &Node, pod: &Pod| {
        pod.run("ip neigh replace 169.254.1.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent").map(drop)
    };
    let cause = "the pod's entry 169.254.1.1 02:00:00:00:00:99 has another MAC than its gateway, ";
    expect("gateway", breaks, ("impaired", cause, "pod neighbours")).unwrap();
}

#[test]
fn a_firewall_that_drops_what_the_host_forwards_is_named() {
    with_agent_without_healing(|node| {
        node.attach("walled")?;
        sys::run("nft add table inet guard")?;
        sys::run("nft add chain inet guard policed { type filter hook forward priority 0 ; policy drop ; }")?;
        let (code, line) = verdict("walled")?;
        let cause = "default/walled: impaired: the nftables chain inet guard policed at the hook forward has the policy drop";
        ensure!(code == Some(1) && line.starts_with(cause), "{line}");
        let (code, text) = ctl(&["check", "walled"])?;
        let failed = text.lines().any(|it| it.starts_with("-     firewall ") && it.contains(" failed "));
        ensure!(code == Some(1) && failed, "{text}");
        ensure!(text.lines().any(|it| it.contains(" probe ") && it.contains(" passed ")), "{text}");

        sys::run("nft add rule inet guard policed ip saddr 10.244.0.0/24 accept")?;
        let (code, line) = verdict("walled")?;
        ensure!(code == Some(0), "the rules decide, which the agent does not judge: {line}");
        let (code, text) = ctl(&["check", "walled"])?;
        let unknown = text.lines().any(|it| it.starts_with("-     firewall ") && it.contains(" unknown "));
        ensure!(code == Some(0) && unknown, "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_was_dropped_of_a_pod_impairs() {
    with_agent_without_healing(|node| {
        let pod = node.attach("spoof")?;
        let peer = node.attach("peer")?;
        pod.run("ip addr add 10.244.0.77/32 dev eth0")?;
        let to = peer.addresses[0].to_string();
        let _ = pod.run(&format!("ping -n -c 1 -W 1 -I 10.244.0.77 {to}"));
        let mut line = String::new();
        sys::wait_until("the drop is recorded", std::time::Duration::from_secs(10), || {
            line = verdict("spoof")?.1;
            Ok(line.contains("impaired: "))
        })?;
        ensure!(line.contains("dropped in the last minute") && line.contains("spoofed_ipv4"), "{line}");
        Ok(())
    })
    .unwrap();
}
