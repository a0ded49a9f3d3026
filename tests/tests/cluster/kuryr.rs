//! Nodes whose pods' VIFs are decided by Kuryr's controller.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Options, Resource, Switch, objects},
    cluster::{Cluster, NODE, with_cluster},
    node::{POD_V4, on_node},
    pod::{NAMESPACE, Pod},
    sys::{self, wait_until},
};
use serde_json::{Value, json};

const FLAGS: [&str; 4] = ["--vif-source", "kuryr", "--vif-timeout", "10"];

/// A VIF as Kuryr's controller writes it into a KuryrPort. os_vif's class for a plain veth is `VIFGeneric`.
fn vif(class: &str, address: &str, active: bool) -> Value {
    let object = |name: &str, data: Value| {
        json!({
            "versioned_object.name": name, "versioned_object.namespace": "os_vif",
            "versioned_object.version": "1.0", "versioned_object.data": data
        })
    };
    let list = |name: &str, objects: Value| object(name, json!({ "objects": objects }));
    let subnet = json!({
        "cidr": "10.11.9.0/24", "dns": [], "gateway": "10.11.9.1",
        "ips": list("FixedIPList", json!([object("FixedIP", json!({ "address": address }))])),
        "routes": list("RouteList", json!([])),
    });
    let network = json!({
        "id": "144164d9-8c21-4274-acec-43245de0aed0", "mtu": 1400,
        "subnets": list("SubnetList", json!([object("Subnet", subnet)])),
    });
    object(
        class,
        json!({
            "id": "18f968a5-c420-4318-92d7-941eb5f9e60e", "active": active, "address": "fa:16:3e:bf:84:ff",
            "plugin": "noop", "vif_name": "tap18f968a5-c4", "network": object("Network", network),
        }),
    )
}

fn vifs(class: &str, active: bool) -> Value {
    json!({ "eth0": { "default": true, "vif": vif(class, "10.11.9.5", active) } })
}

fn port(cluster: &Cluster, pod: &Pod, vifs: Value) -> anyhow::Result<()> {
    let port = objects::kuryr_port(NAMESPACE, &pod.name, NODE, &pod.uid, vifs);
    cluster.api.create(Resource::KuryrPorts, port)?;
    Ok(())
}

/// Waits for the address of [`vifs`] on eth0.
fn wait_until_plugged(pod: &Pod) -> anyhow::Result<()> {
    wait_until("the interface is plugged", Duration::from_secs(5), || {
        Ok(pod.run("ip addr show eth0").is_ok_and(|shown| shown.contains("10.11.9.5/32")))
    })
}

#[test]
fn add_follows_a_kuryrport_from_empty_to_active() {
    with_cluster(&FLAGS, |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        let adding = node.runtime()?.in_background(&pod, |runtime, pod| runtime.add(pod));
        port(cluster, &pod, json!({}))?;
        cluster.wait_until_add_waits(&pod, "VIF in the pod's KuryrPort")?;
        ensure!(
            !adding.is_finished() && node.attachments()?.is_empty(),
            "ADD did not wait for an empty KuryrPort"
        );
        let patch =
            |vifs: Value| cluster.api.patch(Resource::KuryrPorts, NAMESPACE, "a", objects::vifs(vifs));
        patch(vifs("VIFGeneric", false))?;
        wait_until_plugged(&pod)?;
        cluster.wait_until_add_waits(&pod, "to become active")?;
        ensure!(!adding.is_finished(), "ADD did not wait for the VIF to become active");
        patch(vifs("VIFGeneric", true))?;
        let result = adding.join()?;
        ensure!(result["ips"][0]["address"] == "10.11.9.5/32" && result["ips"][0]["gateway"] == "10.11.9.1");
        ensure!(pod.run("ip link show eth0")?.contains("mtu 1400"));
        ensure!(node.attachments()?[0]["state"] == "attached", "{:#?}", node.attachments()?);
        node.runtime()?.check(&pod)?;
        node.runtime()?.del(&pod)
    })
    .unwrap();
}

#[test]
fn waiting_add_does_not_return_an_outdated_address() {
    with_cluster(&FLAGS, |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        port(cluster, &pod, vifs("VIFGeneric", false))?;
        let adding = node.runtime()?.in_background(&pod, |runtime, pod| runtime.call("ADD", pod));
        wait_until_plugged(&pod)?;
        let other = json!({ "eth0": { "default": true, "vif": vif("VIFGeneric", "10.11.9.6", true) } });
        cluster.api.patch(Resource::KuryrPorts, NAMESPACE, "a", objects::vifs(other))?;
        let refused = adding.join()?.into_error()?;
        ensure!(refused.code == 11 && refused.msg.contains("changed"), "{refused}");
        let result = node.runtime()?.add(&pod)?;
        ensure!(result["ips"][0]["address"] == "10.11.9.6/32", "{result}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn waiting_add_fails_if_its_interface_was_damaged() {
    with_cluster(&FLAGS, |node, cluster| {
        let pod = cluster.pod(node, "a", &[])?;
        port(cluster, &pod, vifs("VIFGeneric", false))?;
        let adding = node.runtime()?.in_background(&pod, |runtime, pod| runtime.call("ADD", pod));
        wait_until("the interface is plugged", Duration::from_secs(5), || {
            Ok(node.attachments()?.first().is_some_and(|it| it["state"] == "plugged"))
        })?;
        let attachments = node.attachments()?;
        let host = attachments[0]["host"]["ifname"].as_str().or(attachments[0]["host_ifname"].as_str());
        let host = host.with_context(|| format!("{attachments:#?}"))?;
        sys::run(&format!("tc qdisc del dev {host} clsact"))?;
        cluster.api.patch(Resource::KuryrPorts, NAMESPACE, "a", objects::vifs(vifs("VIFGeneric", true)))?;
        let refused = adding.join()?.into_error()?;
        ensure!(
            refused.code == 11 && refused.msg.contains("was modified before its VIF became active"),
            "{refused}"
        );
        node.runtime()?.add(&pod)?;
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn vif_that_never_becomes_active_is_rolled_back_with_an_event() {
    with_cluster(&["--vif-source", "kuryr", "--vif-timeout", "2"], |node, cluster| {
        let before = node.kernel_state()?;
        let pod = cluster.pod(node, "a", &[])?;
        port(cluster, &pod, vifs("VIFGeneric", false))?;
        let refused = node.runtime()?.call("ADD", &pod)?.into_error()?;
        ensure!(refused.code == 11 && refused.msg.contains("active"), "{refused}");
        node.wait_for_kernel_state(&before)?;
        ensure!(node.attachments()?.is_empty());
        wait_until("the pod has an event", Duration::from_secs(5), || {
            let events = cluster.api.list(Resource::Events);
            Ok(events.iter().any(|it| it["reason"] == "CNITimedOutWaitingForActiveVIFs"))
        })
    })
    .unwrap();
}

#[test]
fn unsupported_vif_class_is_refused_by_name() {
    with_cluster(&FLAGS, |node, cluster| {
        for class in ["VIFVlanNested", "VIFOpenVSwitch", "VIFMacvlanNested", "VIFSriov"] {
            let pod = cluster.pod(node, &class.to_lowercase(), &[])?;
            port(cluster, &pod, vifs(class, true))?;
            let refused = node.runtime()?.call("ADD", &pod)?.into_error()?;
            let is_named = refused.msg.contains(class) && refused.msg.contains("not supported yet");
            ensure!(refused.code == 104 && is_named, "{refused}");
        }
        ensure!(node.attachments()?.is_empty());
        Ok(())
    })
    .unwrap();
}

#[test]
fn kuryr_annotation_is_supported_within_the_pod_ranges() {
    with_cluster(&FLAGS, |node, cluster| {
        let text = vif("VIFGeneric", "10.244.0.60", true).to_string();
        let pod = cluster.pod(node, "a", &[("openstack.org/kuryr-vif", &text)])?;
        let result = node.runtime()?.add(&pod)?;
        ensure!(result["ips"][0]["address"] == "10.244.0.60/32", "{result}");
        let text = vif("VIFGeneric", "10.11.9.5", true).to_string();
        let pod = cluster.pod(node, "b", &[("openstack.org/kuryr-vif", &text)])?;
        let refused = node.runtime()?.call("ADD", &pod)?.into_error()?;
        ensure!(refused.code == 104 && refused.msg.contains("outside the ranges for pods"), "{refused}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn kuryrport_of_a_previous_pod_uid_is_ignored() {
    with_cluster(&FLAGS, |node, cluster| {
        let old = cluster.pod(node, "web-0", &[])?;
        port(cluster, &old, vifs("VIFGeneric", true))?;
        cluster.delete(&old)?;
        let new = cluster.pod(node, "web-0", &[])?;
        let adding = node.runtime()?.in_background(&new, |runtime, pod| runtime.add(pod));
        cluster.wait_until_add_waits(&new, "KuryrPort of the pod, nor")?;
        ensure!(node.metric(r#"ferrule_watch_objects{source="kuryrports"}"#)? == 1.0, "the old one is known");
        ensure!(!adding.is_finished(), "ADD used the previous pod's KuryrPort");
        let spec = json!({ "spec": { "podUid": new.uid } });
        cluster.api.patch(Resource::KuryrPorts, NAMESPACE, "web-0", spec)?;
        adding.join()?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn missing_kuryrport_resource_is_reported_in_status() {
    on_node(|node| {
        let cluster = Cluster::start(Options { kuryr: false, ..Options::default() })?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4]))?;
        cluster.start_agent(node, &FLAGS)?;
        wait_until("status reports the missing resource", Duration::from_secs(5), || {
            let status = node.ctl(&["status"]).unwrap_or_else(|error| error.to_string());
            ensure!(status.contains("no such resource"), "{status}");
            Ok(true)
        })?;
        cluster.api.switch(Switch::InstallKuryr { installed: true });
        Ok(())
    })
    .unwrap();
}
