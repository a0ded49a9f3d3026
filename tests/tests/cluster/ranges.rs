//! The node's ranges: renumbered, exhausted, shared, and in their order.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{History, Options, Resource, Switch, objects},
    cluster::{Cluster, KUBECONFIG, NODE, with_cluster, with_cluster_of},
    node::{Node, POD_V4, POD_V6, on_node},
    sys::{run, wait_until},
};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until `ferrulectl status` has all of these texts in the line of a component.
fn expect(node: &Node, component: &str, texts: &[&str]) -> anyhow::Result<()> {
    wait_until(&format!("{component} reports {texts:?}"), TIMEOUT, || {
        // Fails while the agent is not ready, with the same output.
        let reported = node.ctl(&["status"]).unwrap_or_else(|error| format!("{error:#}"));
        let mut lines = reported.lines().map(str::trim_start);
        let line = lines.find(|line| line.starts_with(&format!("{component} "))).unwrap_or_default();
        ensure!(texts.iter().all(|text| line.contains(text)), "{reported}");
        Ok(true)
    })
}

#[test]
fn a_renumbered_node_allocates_from_its_new_ranges_only_and_keeps_its_pods() {
    with_cluster_of(&[POD_V4], &[], |node, cluster| {
        let old = cluster.attach(node, "old")?;
        cluster.api.delete(Resource::Nodes, "", NODE)?;
        expect(node, "ranges", &["unhealthy", "was deleted"])?;
        expect(node, "addresses", &["unhealthy", "old (10.244.0.2)"])?;
        let status = node.runtime()?.status()?.into_error()?;
        ensure!(status.code == 50 && status.msg.contains("was deleted"), "{status}");
        let waiting = cluster.pod(node, "refused", &[])?;
        let error = node.runtime()?.call("ADD", &waiting)?.into_error()?;
        ensure!(error.code == 11 && error.msg.contains("was deleted"), "{error}");
        node.runtime()?.check(&old)?;

        cluster.api.create(Resource::Nodes, objects::node(NODE, &["10.245.0.0/24"]))?;
        expect(node, "ranges", &[" healthy", "10.245.0.0/24"])?;
        let new = cluster.attach(node, "new")?;
        ensure!(new.addresses[0].to_string() == "10.245.0.2", "{:?}", new.addresses);
        new.ping("10.244.0.2")?;
        old.ping("10.245.0.2")?;
        expect(node, "addresses", &["unhealthy", "old (10.244.0.2)"])?;
        ensure!(node.metric("ferrule_ipam_outside")? == 1.0);
        let explained = format!("{:#}", node.ctl(&["explain", "old"]).err().context("old is carried")?);
        let cause = "impaired: 10.244.0.2 of eth0 is outside of the node's ranges";
        ensure!(explained.contains(cause), "{explained}");
        node.ctl(&["explain", "new"])?;
        let told = node.log().matches("component is unhealthy component=\"addresses\"").count();
        ensure!(told == 1, "told {told} times:\n{}", node.log());
        node.runtime()?.del(&old)?;
        expect(node, "addresses", &[" healthy"])?;
        ensure!(node.metric("ferrule_ipam_outside")? == 0.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_withdrawn_range_loses_its_route_at_once_and_its_pods_stay_masqueraded() {
    with_cluster_of(&[POD_V4], &[], |node, cluster| {
        let become_so = |routes: &[&str], sources: &str| {
            wait_until("routes and sources follow", TIMEOUT, || {
                let found = run("ip route show type unreachable proto 70")?;
                let found: Vec<_> = found.lines().filter_map(|it| it.split_whitespace().nth(1)).collect();
                let set = run("nft list set inet ferrule pods4")?;
                ensure!(found == routes && set.contains(sources), "{found:?}\n{set}");
                Ok(true)
            })
        };
        let old = cluster.attach(node, "old")?;
        become_so(&["10.244.0.0/24"], "elements = { 10.244.0.0/24 }")?;
        cluster.api.delete(Resource::Nodes, "", NODE)?;
        // Another node may get the range.
        become_so(&[], "elements = { 10.244.0.2 }").context("withdrawn")?;
        node.kill_agent()?;
        node.start_again()?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &["10.245.0.0/24"]))?;
        become_so(&["10.245.0.0/24"], "elements = { 10.244.0.2, 10.245.0.0/24 }").context("renumbered")?;
        node.runtime()?.del(&old)?;
        become_so(&["10.245.0.0/24"], "elements = { 10.245.0.0/24 }").context("no pod left")
    })
    .unwrap();
}

#[test]
fn exhausted_ranges_fail_status_until_an_address_is_free_again() {
    with_cluster_of(&["10.244.0.0/30"], &[], |node, cluster| {
        let changed = r#"setting="net.ipv4.ip_forward" from="0" to="1""#;
        ensure!(node.log().matches(changed).count() == 1, "{}", node.log());
        let only = cluster.attach(node, "only")?;
        let late = cluster.pod(node, "late", &[])?;
        let error = node.runtime()?.call("ADD", &late)?.into_error()?;
        ensure!(error.code == 11 && error.msg.contains("no IPv4 address is free"), "{error}");
        expect(node, "ipam", &["unhealthy", "every IPv4 address is in use"])?;
        let status = node.runtime()?.status()?.into_error()?;
        ensure!(status.code == 50 && status.details.contains("\"name\":\"ipam\""), "{status}");
        ensure!(node.http("/readyz")?.0 == 200, "a full node holds up the roll-out of agents");
        ensure!(node.metric("ferrule_ready")? == 0.0);
        ensure!(node.metric(r#"ferrule_ipam_addresses{family="IPv4",state="free"}"#)? == 0.0);
        ensure!(node.metric(r#"ferrule_ipam_addresses{family="IPv4",state="used"}"#)? == 1.0);
        wait_until("the pod has an Event", TIMEOUT, || {
            let events = cluster.api.list(Resource::Events);
            Ok(events
                .iter()
                .any(|it| it["reason"] == "CNINoAddress" && it["involvedObject"]["name"] == "late"))
        })?;
        node.runtime()?.del(&only)?;
        expect(node, "ipam", &["unhealthy", "1 in cooldown"])?;
        wait_until(
            "the cooldown ends",
            Duration::from_secs(60),
            || Ok(node.metric("ferrule_ready")? == 1.0),
        )?;
        node.runtime()?.add(&late)?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn configured_ranges_are_withdrawn_when_the_cluster_has_a_second_node() {
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        for name in [NODE, "node-2"] {
            cluster.api.create(Resource::Nodes, objects::node(name, &[]))?;
        }
        let shared = ["--kubeconfig", KUBECONFIG, "--node-name", NODE, "--pod-cidr", POD_V4];
        let refused = node.start_agent_with(&shared).err().context("the agent started")?;
        ensure!(format!("{refused:#}").contains("set --single-node"), "{refused:#}");
        node.start_agent_with(&[&shared[..], &["--single-node"]].concat())?;
        expect(node, "ranges", &["unhealthy", "the nodes node-1 and node-2"])?;
        let error = node.runtime()?.call("ADD", &cluster.pod(node, "a", &[])?)?.into_error()?;
        ensure!(error.code == 11 && error.msg.contains("the nodes node-1 and node-2"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_primary_family_of_the_node_comes_first() {
    with_cluster_of(&[POD_V6, POD_V4], &[], |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let result = node.runtime()?.add(&pod)?;
        ensure!(result["ips"][0]["address"] == "fd00:10:244::2/128", "{result}");
        ensure!(result["ips"][1]["address"] == "10.244.0.2/32", "{result}");
        ensure!(node.runtime()?.add(&pod)?["ips"] == result["ips"], "a repeated ADD");
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn a_late_annotation_causes_an_event() {
    with_cluster(&[], |node, cluster| {
        let pod = cluster.attach(node, "a")?;
        cluster.annotate(&pod, "vif.ferrule.dev/v1", r#"{"interfaces":[{"addresses":["10.244.0.99"]}]}"#)?;
        wait_until("the pod has an Event", TIMEOUT, || {
            let events = cluster.api.list(Resource::Events);
            Ok(events.iter().any(|it| it["reason"] == "CNIVIFIgnored" && it["involvedObject"]["name"] == "a"))
        })?;
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn a_standalone_agent_takes_the_annotation_that_comes_with_the_call() {
    on_node(|node| {
        node.start_agent_with(&["--standalone", "--pod-cidr", POD_V4, "--vif-source", "annotation"])?;
        let vif = r#"{"interfaces":[{"addresses":["10.244.0.77"]}]}"#;
        let annotations = json!({ "io.kubernetes.cri.pod-annotations": { "vif.ferrule.dev/v1": vif } });
        let pod = node.pod("a")?;
        let result = node.runtime()?.with("runtimeConfig", annotations).add(&pod)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.77/32", "{result}");
        let error = node.runtime()?.call("ADD", &node.pod("b")?)?.into_error()?;
        ensure!(error.code == 104 && error.msg.contains("no annotation vif.ferrule.dev/v1"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_node_renumbered_while_the_agent_was_down_never_allocates_from_its_stored_ranges() {
    with_cluster_of(&[POD_V4], &[], |node, cluster| {
        let old = cluster.attach(node, "old")?;
        // The checkpoint has the Node.
        node.stop_agent()?;
        cluster.api.delete(Resource::Nodes, "", NODE)?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &["10.245.0.0/24"]))?;
        node.start_again()?;
        let new = cluster.attach(node, "new")?;
        ensure!(new.addresses[0].to_string() == "10.245.0.2", "{:?}", new.addresses);
        let used = "using the node's pod CIDRs ranges=";
        let log = node.log();
        let ranges: Vec<_> = log.split(used).skip(1).filter_map(|it| it.split_whitespace().next()).collect();
        ensure!(ranges == [r#""10.244.0.0/24""#, r#""10.245.0.0/24""#], "{log}");
        expect(node, "addresses", &["unhealthy", "old (10.244.0.2)"])?;
        node.runtime()?.del(&old)?;

        // Without an API server, the stored Node serves.
        node.stop_agent()?;
        cluster.api.switch(Switch::Restart { pause_ms: 3_600_000, history: History::Kept });
        node.start_again()?;
        expect(node, "ranges", &[" healthy", "10.245.0.0/24"])
    })
    .unwrap();
}
