//! A cluster of three nodes: pods on each, what is on the wire between them, network policies, nodes that
//! change, late VIF decisions, and an API server outage.

mod changes;
mod decision;
mod outage;
mod policy;
mod wire;

use std::time::Duration;

use anyhow::{anyhow, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::KUBECONFIG,
    fabric::{Fabric, Member},
    pod::Pod,
    sys::wait_until,
};
use serde_json::json;

use crate::report::Report;

/// The maximum backoff is 1 s instead of 30 s, to keep the demo short.
const FLAGS: [&str; 2] = ["--watch-max-backoff", "1"];
const TWO: &str = r#"{"interfaces": [
     {"addresses": ["10.244.1.200", "fd00:10:244:1::200"], "mtu": 1400, "routes": [{"dst": "198.18.0.0/15"}]},
     {"name": "eth1", "addresses": ["10.244.1.201"]}]}"#;
const TIMEOUT: Duration = Duration::from_secs(20);
const UNDERLAY: &str = "\
   node-1   node-2   API server   stranger
      └────────┴── switch ┴──────────┘
                     │ segment: 192.0.2.0/24, 2001:db8:1::/64
                  router ── world: 203.0.113.0/24, 2001:db8:f::/64
                     │ far: 198.51.100.0/24, 2001:db8:2::/64
                   node-3";

/// The pods that live through the demo.
struct Pods {
    web: Pod,
    vip: Pod,
    db: Pod,
    job: Pod,
}

pub(crate) fn run(fabric: &Fabric, report: &mut Report) -> anyhow::Result<()> {
    begin(fabric, report)?;
    let mut pods = attach(fabric, report)?;
    wire::connect(fabric, &pods, report)?;
    wire::to_world(fabric, &pods, report)?;
    wire::forge(fabric, &pods, report)?;
    policy::enforce(fabric, &pods, report)?;
    let new = changes::return_with_another_range(fabric, &pods, report)?;
    let late = decision::late(fabric, report)?;
    let more = outage::without_api_server(fabric, &pods, report)?;

    report.chapter("Operator tools");
    let [one, two, three] = &fabric.nodes;
    report.output("ferrulectl status", &one.status()?);
    one.on(|node| super::operator_tools(node, &[&pods.web, &pods.vip], report))?;
    one.on(|_| super::show_map("NODES", "by range and address: the node, and the way there", report))?;
    // Node 2 has lost the range of the first pod there.
    pods.db = new;
    one.on(|node| super::anti_spoofing(node, &pods.web, &pods.job, report))?;

    report.chapter("CHECK and DEL");
    let Pods { web, vip, db, job } = pods;
    for (node, pods) in [(one, [vec![web, vip, late], more].concat()), (two, vec![db]), (three, vec![job])] {
        node.on(|node| super::detach(&node.runtime()?, pods, report))?;
        let what = format!("no interface or map entry of the pods remains on {}", node.name);
        report.fact(&what, || wait_until_empty(node))?;
    }
    for node in &fabric.nodes {
        report.fact(&format!("the agent of {} shuts down gracefully on SIGTERM", node.name), || {
            node.on(|node| node.stop_agent())
        })?;
    }
    Ok(())
}

fn begin(fabric: &Fabric, report: &mut Report) -> anyhow::Result<()> {
    report.chapter("Three nodes and their agents");
    println!("{UNDERLAY}\n");
    println!("   A node consists of a network and a mount namespace, with its own /run and BPF file system.");
    println!("   Switch and router know the nodes' addresses, and no pod's.");
    println!("   # ferrule-agent --kubeconfig {KUBECONFIG} --node-name node-1 {}", FLAGS.join(" "));
    let [one, others @ ..] = &fabric.nodes;
    one.register_with(&[])?;
    others.iter().try_for_each(Member::register)?;
    fabric.nodes.iter().try_for_each(|node| node.begin_agent(&FLAGS))?;
    for node in others {
        report.fact(&format!("the agent of {} loads its eBPF programs and is ready", node.name), || {
            node.wait_until_ready()
        })?;
    }
    let error = report.fact("STATUS fails on node-1, whose Node has no spec.podCIDRs yet", || {
        let mut error = None;
        one.on(|node| node.wait_until_it_serves())?;
        wait_until("STATUS reports missing pod CIDRs", TIMEOUT, || {
            let found = one.on(|node| node.runtime()?.status()?.into_error())?;
            let is_expected = found.to_string().contains("set spec.podCIDRs of the Node");
            error = Some(found);
            Ok(is_expected)
        })?;
        error.ok_or_else(|| anyhow!("STATUS returned no error"))
    })?;
    println!("   {error}");
    report.fact("its agent is ready after a controller sets spec.podCIDRs", || {
        let spec = json!({ "spec": { "podCIDR": one.ranges.first(), "podCIDRs": one.ranges } });
        fabric.api.patch(Resource::Nodes, "", one.name, spec)?;
        one.wait_until_ready()
    })
}

fn attach(fabric: &Fabric, report: &mut Report) -> anyhow::Result<Pods> {
    report.chapter("Attach pods, as a container runtime does");
    let [one, two, three] = &fabric.nodes;
    let web = add(one, "web-0", " succeeds: addresses from the node's pod CIDRs", true, report)?;
    let db = add(two, "db-0", " succeeds on node-2", false, report)?;
    let job = add(three, "job-0", " succeeds on node-3", false, report)?;
    report.output("a controller sets the annotation vif.ferrule.dev/v1 on vip-0", TWO);
    let mut vip = one.pod("vip-0", &[(ferrule_tests::pod::VIF, TWO)])?;
    let what = " succeeds: two interfaces, as the annotation requests";
    one.on(|node| super::add(&node.runtime()?, report, &mut vip, what, false))?;
    report.fact("vip-0 has the annotation's addresses, MTU and route", || {
        let all = vip.run("ip -o addr")? + &vip.run("ip link show eth0")? + &vip.run("ip route")?;
        for one in
            ["10.244.1.200/32", "fd00:10:244:1::200/128", "10.244.1.201/32", "mtu 1400", "198.18.0.0/15"]
        {
            ensure!(all.contains(one), "{one} is missing in {all}");
        }
        Ok(())
    })?;
    Ok(Pods { web, vip, db, job })
}

/// Creates a pod in the API and attaches it.
fn add(node: &Member, name: &str, what: &str, verbose: bool, report: &mut Report) -> anyhow::Result<Pod> {
    let mut pod = node.pod(name, &[])?;
    node.on(|node| super::add(&node.runtime()?, report, &mut pod, what, verbose))?;
    Ok(pod)
}

/// Waits until nothing of a pod is left; the reaper deletes interfaces asynchronously.
fn wait_until_empty(node: &Member) -> anyhow::Result<()> {
    let is_of_pod = |line: &String| {
        line.contains("ferrule:cluster:")
            || ["VIFS", "ENDPOINTS", "VIF_COUNTERS"].iter().any(|map| line.starts_with(map))
    };
    wait_until("nothing of the pods is left", TIMEOUT, || {
        let left: Vec<_> = node.on(|node| node.kernel_state())?.into_iter().filter(is_of_pod).collect();
        ensure!(left.is_empty(), "{left:#?}");
        Ok(true)
    })
}

/// Deletes a pod from the API, as if a user had.
fn delete(fabric: &Fabric, pod: &Pod) -> anyhow::Result<()> {
    fabric.api.delete(Resource::Pods, ferrule_tests::pod::NAMESPACE, &pod.name)?;
    Ok(())
}

/// Annotates a pod with a VIF.
fn annotate(fabric: &Fabric, pod: &Pod, vif: &str) -> anyhow::Result<()> {
    let annotation = objects::annotation(ferrule_tests::pod::VIF, vif);
    fabric.api.patch(Resource::Pods, ferrule_tests::pod::NAMESPACE, &pod.name, annotation)?;
    Ok(())
}
