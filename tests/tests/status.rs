//! STATUS: whether pods can be plugged, whether those that are there can be reached, and why not.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, Node, POD_V4, on_node, with_agent},
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

/// Waits for a code, and gives the only component in its details.
fn component(node: &Node, code: u64) -> anyhow::Result<Value> {
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
    let [component] = components.as_slice() else { anyhow::bail!("{error}") };
    for key in ["name", "state", "since", "reason", "affects"] {
        ensure!(component[key].as_str().is_some_and(|it| !it.is_empty()), "{key} in {error}");
    }
    let (name, reason) = (component["name"].as_str(), component["reason"].as_str());
    let told = format!("{}: {}", name.unwrap_or_default(), reason.unwrap_or_default());
    ensure!(error.msg.contains(&told), "{error}");
    Ok(component.clone())
}

#[test]
fn a_node_that_loses_its_way_out_says_51_and_goes_on_plugging() {
    with_agent(|node| {
        let before = node.attach("before")?;
        ensure!(is_well(node)?);
        let has_carrier = || Ok(sys::run("ip link show uplink")?.contains("LOWER_UP"));
        for (loses, gets_back, expected) in [
            ("ip link set uplink down", "ip link set uplink up", "down"),
            ("ip route del default", "true", "is gone"),
            ("ip -n outside link set eth0 down", "ip -n outside link set eth0 up", "no carrier"),
        ] {
            sys::run(loses)?;
            let egress = component(node, LIMITED_CONNECTIVITY).context(loses)?;
            ensure!(egress["name"] == "egress" && egress["affects"] == "all-pods", "{egress}");
            ensure!(egress["state"] == "unhealthy", "{egress}");
            let reason = egress["reason"].as_str().unwrap_or_default();
            ensure!(reason.contains(expected) || reason.contains("is gone"), "after `{loses}`: {egress}");
            ensure!(reason.contains("uplink"), "{egress}");

            // An ADD is served all the same, and the agent says that it is ready for it.
            let meanwhile = node.attach("meanwhile")?;
            meanwhile.ping(&before.addresses[0].to_string())?;
            ensure!(node.http("/readyz")?.0 == 200);
            let told = node.ctl(&["status"]).unwrap_or_else(|error| format!("{error:#}"));
            ensure!(told.contains("pods on this node may be cut off: egress"), "{told}");
            node.runtime()?.del(&meanwhile)?;

            sys::run(gets_back)?;
            sys::wait_until("the carrier is back", SOON, has_carrier)?;
            // What goes down loses its routes.
            sys::run("ip route replace default via 192.0.2.254 dev uplink")?;
            sys::wait_until("STATUS is well again", SOON, || is_well(node)).context(loses)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_node_that_never_had_a_way_out_is_well() {
    on_node(|node| {
        sys::run("ip route del default")?;
        sys::run("ip link set uplink down")?;
        node.start_agent(&[POD_V4])?;
        ensure!(is_well(node)?);
        let pod = node.attach("a")?;
        pod.ping(&node.attach("b")?.addresses[0].to_string())?;
        // Once it has one, it is missed.
        sys::run("ip link set uplink up")?;
        sys::run("ip route add default via 192.0.2.254 dev uplink")?;
        sys::wait_until("the way out is seen", SOON, || {
            Ok(node.http("/readyz?verbose")?.1.contains("IPv4 leaves through uplink"))
        })?;
        sys::run("ip route del default")?;
        component(node, LIMITED_CONNECTIVITY)?;
        pod.ping(NODE_V4).map(drop)
    })
    .unwrap();
}

#[test]
fn a_way_out_of_a_family_that_no_pod_has_is_not_missed() {
    on_node(|node| {
        sys::run("ip route add default via 2001:db8::254 dev uplink")?;
        node.start_agent(&[POD_V4])?;
        sys::wait_until("both ways are seen", SOON, || {
            Ok(node.http("/readyz?verbose")?.1.contains("IPv6 leaves through uplink"))
        })?;
        sys::run("ip -6 route del default")?;
        sys::wait_until("it is seen that one is gone", SOON, || {
            Ok(!node.http("/readyz?verbose")?.1.contains("IPv6 leaves"))
        })?;
        ensure!(is_well(node)?);
        sys::run("ip route del default")?;
        component(node, LIMITED_CONNECTIVITY).map(drop)
    })
    .unwrap();
}

#[test]
fn what_keeps_pods_from_being_plugged_is_told_as_50_with_the_component() {
    on_node(|node| {
        // An API server that nobody listens for: the node's ranges stay unknown.
        std::fs::write(
            "/run/kubeconfig",
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
             clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: a, user: {}}]\n",
        )?;
        node.start_agent_with(&["--kubeconfig", "/run/kubeconfig", "--node-name", "node-1"])?;
        let ranges = component(node, NOT_AVAILABLE)?;
        ensure!(ranges["name"] == "ranges" && ranges["state"] == "starting", "{ranges}");
        ensure!(ranges["affects"] == "new-pods", "{ranges}");
        ensure!(node.http("/readyz")?.0 == 503);
        Ok(())
    })
    .unwrap();
}
