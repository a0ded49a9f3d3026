//! STATUS: whether ADD can be served, whether existing pods are reachable, and the reasons.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, POD_V4, on_node, with_agent},
    runtime::CniError,
    sys,
};
use nix::sys::signal::Signal;
use serde_json::Value;

const NOT_AVAILABLE: u64 = 50;
const LIMITED_CONNECTIVITY: u64 = 51;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The error of STATUS, if STATUS fails.
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

/// Waits for an error code and returns the components in its details.
fn components(node: &Node, code: u64) -> anyhow::Result<Vec<Value>> {
    let mut reported = None;
    sys::wait_until(&format!("STATUS fails with code {code}"), TIMEOUT, || {
        reported = status(node)?;
        Ok(reported.as_ref().is_some_and(|error| error.code == code))
    })?;
    let error = reported.context("STATUS succeeded")?;
    ensure!(!error.details.contains('\n'), "{error}");
    let details: Value = serde_json::from_str(&error.details).with_context(|| error.to_string())?;
    let components =
        details.get("components").and_then(Value::as_array).with_context(|| error.to_string())?;
    for component in components {
        let text = |key: &str| component.get(key).and_then(Value::as_str).unwrap_or_default();
        for key in ["name", "state", "since", "reason", "affects"] {
            ensure!(!text(key).is_empty(), "{key} is missing in {error}");
        }
        let reported = format!("{}: {}", text("name"), text("reason"));
        ensure!(error.msg.contains(&reported), "{error}");
    }
    Ok(components.clone())
}

/// Waits until the default-route component reports `expected`, while ADDs are served.
fn expect_default_route(node: &Node, expected: &str) -> anyhow::Result<()> {
    sys::wait_until(&format!("the default route {expected}"), TIMEOUT, || {
        let reported = node.ctl(&["status"]).unwrap_or_else(|error| format!("{error:#}"));
        let line =
            reported.lines().find(|line| line.trim_start().starts_with("default-route")).unwrap_or_default();
        ensure!(line.contains(expected), "{reported}");
        Ok(true)
    })
}

#[test]
fn lost_default_route_is_reported_and_does_not_block_add() {
    with_agent(|node| {
        let before = node.attach("before")?;
        ensure!(is_well(node)?);
        expect_default_route(node, "leaves through uplink")?;
        let has_carrier = || Ok(sys::run("ip link show uplink")?.contains("LOWER_UP"));
        for (loses, gets_back) in [
            ("ip link set uplink down", "ip link set uplink up"),
            ("ip route del default", "true"),
            ("sysctl -qw net.ipv4.conf.uplink.forwarding=0", "sysctl -qw net.ipv4.conf.uplink.forwarding=1"),
            ("ip -n outside link set eth0 down", "ip -n outside link set eth0 up"),
        ] {
            sys::run(loses)?;
            expect_default_route(node, "unhealthy").context(loses)?;
            let reported = node.ctl(&["status"]).unwrap_or_else(|error| format!("{error:#}"));
            ensure!(
                reported.contains("pods on this node may lack connectivity: default-route"),
                "{reported}"
            );
            // CNI specification: STATUS succeeds if an ADD can be served.
            ensure!(is_well(node)?);
            let meanwhile = node.attach("meanwhile")?;
            meanwhile.ping(&before.addresses[0].to_string())?;
            ensure!(node.http("/readyz")?.0 == 200);
            node.runtime()?.del(&meanwhile)?;

            sys::run(gets_back)?;
            sys::wait_until("the uplink has carrier again", TIMEOUT, has_carrier)?;
            // A link that goes down loses its routes.
            sys::run("ip route replace default via 192.0.2.254 dev uplink")?;
            expect_default_route(node, "leaves through uplink").context(loses)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_dataplane_names_the_kernel() {
    with_agent(|node| {
        let text = node.ctl(&["status"])?;
        let line = text.lines().find(|line| line.starts_with("dataplane ")).context("no dataplane")?;
        ensure!(line.contains("; Linux "), "{line}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn node_that_never_had_a_default_route_is_healthy() {
    on_node(|node| {
        sys::run("ip route del default")?;
        sys::run("ip link set uplink down")?;
        node.start_agent(&[POD_V4])?;
        expect_default_route(node, " healthy")?;
        let pod = node.attach("a")?;
        pod.ping(&node.attach("b")?.addresses[0].to_string())?;
        // A default route that existed is required from then on, also if it vanishes with its address,
        // without a route event.
        sys::run("ip link set uplink up")?;
        sys::run("ip route add default via 192.0.2.254 dev uplink src 192.0.2.1")?;
        expect_default_route(node, "IPv4 leaves through uplink")?;
        sys::run("ip addr del 192.0.2.1/24 dev uplink")?;
        expect_default_route(node, "unhealthy")
    })
    .unwrap();
}

#[test]
fn missing_default_route_of_an_unused_family_is_ignored() {
    on_node(|node| {
        sys::run("ip route add default via 2001:db8::254 dev uplink")?;
        node.start_agent(&[POD_V4])?;
        expect_default_route(node, "IPv6 leaves through uplink")?;
        sys::run("ip -6 route del default")?;
        expect_default_route(node, " healthy")?;
        sys::run("ip route del default")?;
        expect_default_route(node, "unhealthy")
    })
    .unwrap();
}

/// The API server address has no listener, so the node's ranges and pods stay unknown.
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
fn status_50_names_the_component_that_blocks_add() {
    on_node(|node| {
        start_without_api_server(node, &[])?;
        let reported = components(node, NOT_AVAILABLE)?;
        let [nodes, policies, ranges] = reported.as_slice() else { anyhow::bail!("{reported:?}") };
        for (it, name) in [(nodes, "node-list"), (policies, "policy-feed"), (ranges, "ranges")] {
            ensure!(it["name"] == name && it["state"] == "starting", "{it}");
            ensure!(it["affects"] == "new-pods", "{it}");
        }
        ensure!(node.http("/readyz")?.0 == 503);
        Ok(())
    })
    .unwrap();
}

#[test]
fn status_is_51_if_add_is_blocked_and_the_default_route_is_lost() {
    on_node(|node| {
        start_without_api_server(
            node,
            &["--vif-source", "annotation", "--single-node", "--pod-cidr", POD_V4],
        )?;
        components(node, NOT_AVAILABLE)?;
        expect_default_route(node, "leaves through uplink")?;
        sys::run("ip link set uplink down")?;
        let reported = components(node, LIMITED_CONNECTIVITY)?;
        let affected: Vec<_> =
            reported.iter().map(|it| (it["name"].as_str(), it["affects"].as_str())).collect();
        ensure!(
            affected
                == [
                    (Some("default-route"), Some("all-pods")),
                    (Some("policy-feed"), Some("new-pods")),
                    (Some("vifs"), Some("new-pods")),
                ],
            "{reported:?}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn status_during_a_restart_waits_for_the_next_agent() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        node.signal_agent(Signal::SIGTERM)?;
        let call = thread::spawn(move || runtime.status());
        node.stop_agent()?;
        // Enough for the first attempt, which finds an agent that stops, or none.
        thread::sleep(Duration::from_secs(2));
        node.start_again()?;
        let answer = call.join().map_err(|_| anyhow::anyhow!("STATUS panicked"))??;
        ensure!(answer.status.success(), "{:?}", answer.into_error());
        Ok(())
    })
    .unwrap();
}

#[test]
fn status_without_an_agent_is_50_after_twenty_seconds() {
    with_agent(|node| {
        node.kill_agent()?;
        let began = Instant::now();
        let error = status(node)?.context("STATUS succeeded")?;
        ensure!(error.code == NOT_AVAILABLE && error.msg.contains("s for an agent"), "{error}");
        // The kubelet's limit is 30 s, of which five pass between two questions.
        let took = began.elapsed().as_secs();
        ensure!((15..25).contains(&took), "STATUS took {took} s");
        Ok(())
    })
    .unwrap();
}
