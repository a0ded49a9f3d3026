//! Policies about pods of other nodes.

use std::net::IpAddr;

use ferrule_tests::{
    apiserver::{ApiServer, Resource, objects},
    fabric::{Member, with_fabric},
    pod::Pod,
    sys::wait_until,
};
use serde_json::{Value, json};

use crate::scene::{By, Servers, TIMEOUT, WEB, expect, make_namespaces, schedule, wait_until_reached};

/// Attaches a pod, with its object, and reports its addresses as a kubelet does.
fn attach(api: &ApiServer, node: &Member, namespace: &str, name: &str) -> anyhow::Result<(Pod, Servers)> {
    let member = node.name;
    let pod = node.on(|node| {
        let mut pod = Pod { namespace: namespace.to_owned(), ..node.pod(name)? };
        schedule(api, member, &pod, name)?;
        let result = node.runtime()?.add(&pod)?;
        pod.attached(&result)?;
        Ok(pod)
    })?;
    report(api, &pod, &pod.addresses)?;
    let servers = Servers::start(pod.path())?;
    Ok((pod, servers))
}

fn report(api: &ApiServer, pod: &Pod, addresses: &[IpAddr]) -> anyhow::Result<()> {
    let ips: Vec<_> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
    let status = json!({ "status": { "podIP": addresses.first(), "podIPs": ips } });
    api.patch(Resource::Pods, &pod.namespace, &pod.name, status)?;
    Ok(())
}

#[test]
fn pods_of_other_nodes_are_judged_by_their_labels_in_both_directions() {
    with_fabric(&[], |fabric| {
        let api = &*fabric.api;
        make_namespaces(api)?;
        let [one, two, three] = &fabric.nodes;
        let ((server, _s), (front, _f)) =
            (attach(api, one, "web", "server")?, attach(api, two, "web", "front")?);
        let ((other, _o), (far, _r)) = (attach(api, two, "web", "other")?, attach(api, three, "web", "far")?);
        for from in [&front, &other, &far] {
            wait_until_reached(from, &server, WEB, true)?;
        }
        let set = |name: &str, spec| -> anyhow::Result<()> {
            api.create(Resource::NetworkPolicies, objects::network_policy("web", name, spec))?;
            Ok(())
        };
        set(
            "front",
            json!({ "podSelector": { "matchLabels": { "app": "server" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "front" } } }] }] }),
        )?;
        for by in [WEB, By::Udp(80), By::Ping] {
            for from in [&other, &far] {
                wait_until_reached(from, &server, by, false)?;
            }
            expect(&front, &server, by, true)?;
            // What the server begins is answered.
            expect(&server, &other, by, true)?;
            expect(&server, &far, by, true)?;
        }
        wait_until("the receiver's node names the sender of a dropped packet", TIMEOUT, || {
            expect(&other, &server, WEB, false)?;
            let records = one.on(|node| node.ctl(&["drops", "--pod", "web/other", "-o", "json"]))?;
            let names_both = |record: Value| {
                let name = |end: &str| record.pointer(end).and_then(Value::as_str).unwrap_or_default();
                name("/flow/source/pod_name") == "other" && name("/flow/destination/pod_name") == "server"
            };
            Ok(records.lines().filter_map(|it| serde_json::from_str(it).ok()).any(names_both))
        })?;
        let label = json!({ "metadata": { "labels": { "app": "front" } } });
        api.patch(Resource::Pods, "web", "far", label)?;
        wait_until_reached(&far, &server, WEB, true)?;
        // The sender's own node judges what leaves.
        set(
            "egress",
            json!({ "podSelector": { "matchLabels": { "app": "other" } }, "policyTypes": ["Egress"],
            "egress": [{ "to": [{ "podSelector": { "matchLabels": { "app": "front" } } }] }] }),
        )?;
        let (stranger, _t) = attach(api, three, "db", "stranger")?;
        wait_until_reached(&other, &stranger, WEB, false)?;
        wait_until_reached(&other, &far, WEB, true)?;
        expect(&stranger, &other, WEB, true)
    })
    .unwrap();
}
