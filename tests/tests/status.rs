//! STATUS: whether pods can be plugged, whether those that are there can be reached, and why not.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, POD_V4, on_node, with_agent},
    runtime::CniError,
    sys,
};
use serde_json::Value;

const NOT_AVAILABLE: u64 = 50;
const LIMITED_CONNECTIVITY: u64 = 51;
const SOON: Duration = Duration::from_secs(10);

/// The error of STATUS, if it fails.
fn status(node: &Node) -> anyhow::Result<Option<CniError>> {
    let answer = node.runtime()?.status()?;
    if answer.status.success() { Ok(None) } else { answer.into_error().map(Some) }
}

fn is_well(node: &Node) -> anyhow::Result<bool> {
    match status(node)? {
        None => Ok(true),
        Some(error) => Err(error.into()),
    }
}

/// Waits for a code, and gives the components in its details.
fn components(node: &Node, code: u64) -> anyhow::Result<Vec<Value>> {
    let mut told = None;
    sys::wait_until(&format!("STATUS says {code}"), SOON, || {
        told = status(node)?;
        Ok(told.as_ref().is_some_and(|error| error.code == code))
    })?;
    let error = told.context("no error")?;
    ensure!(!error.details.contains('\n'), "{error}");
    let details: Value = serde_json::from_str(&error.details).with_context(|| error.to_string())?;
    let components =
        details.get("components").and_then(Value::as_array).with_context(|| error.to_string())?;
    for component in components {
        let text = |key: &str| component.get(key).and_then(Value::as_str).unwrap_or_default();
        for key in ["name", "state", "since", "reason", "affects"] {
            ensure!(!text(key).is_empty(), "{key} in {error}");
        }
        let told = format!("{}: {}", text("name"), text("reason"));
        ensure!(error.msg.contains(&told), "{error}");
    }
    Ok(components.clone())
}

/// Waits until the agent says of the way out what is expected, while it goes on serving ADDs.
fn egress_says(node: &Node, expected: &str) -> anyhow::Result<()> {
    sys::wait_until(&format!("it is seen that the way out {expected}"), SOON, || {
        let told = node.ctl(&["status"]).unwrap_or_else(|error| format!("{error:#}"));
        let line = told.lines().find(|line| line.trim_start().starts_with("egress")).unwrap_or_default();
        ensure!(line.contains(expected), "{told}");
        Ok(true)
    })
}

#[test]
fn a_node_that_loses_its_way_out_goes_on_plugging_and_tells_the_operator() {
    with_agent(|node| {
        let before = node.attach("before")?;
        ensure!(is_well(node)?);
        egress_says(node, "leaves through uplink")?;
        let has_carrier = || Ok(sys::run("ip link show uplink")?.contains("LOWER_UP"));
        for (loses, gets_back) in [
            ("ip link set uplink down", "ip link set uplink up"),
            ("ip route del default", "true"),
            ("sysctl -qw net.ipv4.conf.uplink.forwarding=0", "sysctl -qw net.ipv4.conf.uplink.forwarding=1"),
            ("ip -n outside link set eth0 down", "ip -n outside link set eth0 up"),
        ] {
            sys::run(loses)?;
            egress_says(node, "unhealthy").context(loses)?;
            let told = node.ctl(&["status"]).unwrap_or_else(|error| format!("{error:#}"));
            ensure!(told.contains("pods on this node may lack connectivity: egress"), "{told}");
            // The specification: STATUS succeeds if an ADD can be served.
            ensure!(is_well(node)?);
            let meanwhile = node.attach("meanwhile")?;
            meanwhile.ping(&before.addresses[0].to_string())?;
            ensure!(node.http("/readyz")?.0 == 200);
            node.runtime()?.del(&meanwhile)?;

            sys::run(gets_back)?;
            sys::wait_until("the carrier is back", SOON, has_carrier)?;
            // What goes down loses its routes.
            sys::run("ip route replace default via 192.0.2.254 dev uplink")?;
            egress_says(node, "leaves through uplink").context(loses)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_node_that_never_had_a_way_out_misses_none() {
    on_node(|node| {
        sys::run("ip route del default")?;
        sys::run("ip link set uplink down")?;
        node.start_agent(&[POD_V4])?;
        egress_says(node, " healthy")?;
        let pod = node.attach("a")?;
        pod.ping(&node.attach("b")?.addresses[0].to_string())?;
        // Once it has one, it is missed; also if it goes with its address, and nobody tells of the route.
        sys::run("ip link set uplink up")?;
        sys::run("ip route add default via 192.0.2.254 dev uplink src 192.0.2.1")?;
        egress_says(node, "IPv4 leaves through uplink")?;
        sys::run("ip addr del 192.0.2.1/24 dev uplink")?;
        egress_says(node, "unhealthy")
    })
    .unwrap();
}

#[test]
fn a_way_out_of_a_family_that_no_pod_has_is_not_missed() {
    on_node(|node| {
        sys::run("ip route add default via 2001:db8::254 dev uplink")?;
        node.start_agent(&[POD_V4])?;
        egress_says(node, "IPv6 leaves through uplink")?;
        sys::run("ip -6 route del default")?;
        egress_says(node, " healthy")?;
        sys::run("ip route del default")?;
        egress_says(node, "unhealthy")
    })
    .unwrap();
}

/// With an API server that nobody listens for: the node's ranges and pods stay unknown.
fn start_without_api_server(node: &mut Node, flags: &[&str]) -> anyhow::Result<()> {
    std::fs::write(
        "/run/kubeconfig",
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
         clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: a, user: {}}]\n",
    )?;
    let follow = ["--kubeconfig", "/run/kubeconfig", "--node-name", "node-1"];
    node.start_agent_with(&[&follow[..], flags].concat())
}

#[test]
fn what_keeps_pods_from_being_plugged_is_told_as_50_with_the_component() {
    on_node(|node| {
        start_without_api_server(node, &[])?;
        let told = components(node, NOT_AVAILABLE)?;
        let [ranges] = told.as_slice() else { anyhow::bail!("{told:?}") };
        ensure!(ranges["name"] == "ranges" && ranges["state"] == "starting", "{ranges}");
        ensure!(ranges["affects"] == "new-pods", "{ranges}");
        ensure!(node.http("/readyz")?.0 == 503);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_node_that_cannot_plug_and_has_lost_its_way_out_says_51() {
    on_node(|node| {
        start_without_api_server(node, &["--vif-source", "annotation", "--pod-cidr", POD_V4])?;
        components(node, NOT_AVAILABLE)?;
        egress_says(node, "leaves through uplink")?;
        sys::run("ip link set uplink down")?;
        let told = components(node, LIMITED_CONNECTIVITY)?;
        let affected: Vec<_> = told.iter().map(|it| (it["name"].as_str(), it["affects"].as_str())).collect();
        ensure!(
            affected == [(Some("egress"), Some("all-pods")), (Some("vifs"), Some("new-pods"))],
            "{told:?}"
        );
        Ok(())
    })
    .unwrap();
}
