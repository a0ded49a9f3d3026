//! Pods through containerd's CRI, as a kubelet creates them.

use std::{collections::BTreeSet, path::Path, thread};

use anyhow::{Context as _, anyhow, bail, ensure};
use ferrule_tests::{
    apiserver::{Options, Resource, objects},
    cluster::{Cluster, NODE},
    containerd::Containerd,
    node::{NODE_V4, NODE_V6, POD_V4, POD_V6, on_node},
    pid_namespace,
    pod::VIF,
    sys,
};

use crate::{
    INSTALL, NETWORK, PROGRAM, addresses, attachment, nothing_is_left, reaches, remove, start_agent,
    wait_for_network, with_containerd,
};

#[test]
fn network_is_ready_once_the_agent_has_installed_plugin_and_configuration() {
    on_node(|node| {
        let containerd = Containerd::start(node, Path::new(PROGRAM))?;
        let Err(why) = containerd.cri().network_ready()? else { bail!("ready without a network") };
        ensure!(why.contains("NetworkPluginNotReady"), "{why}");
        start_agent(node)?;
        wait_for_network(&containerd)?;
        containerd.cri().run("a", &[])?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn pod_has_its_recorded_addresses_and_leaks_nothing() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        let pod = containerd.cri().run("web-0", &[])?;
        let status = containerd.cri().status(&pod)?;
        let recorded = attachment(node, &pod.id)?;
        ensure!(status.is_ready && status.addresses == addresses(node, &pod.id)?, "{status:?} {recorded:#}");
        ensure!(status.addresses.len() == 2 && status.addresses[0].is_ipv4(), "{status:?}");
        for (key, expected) in [
            ("network", NETWORK),
            ("ifname", "eth0"),
            ("pod_namespace", "default"),
            ("pod_name", "web-0"),
            ("pod_uid", "uid-of-web-0"),
        ] {
            ensure!(recorded[key] == expected, "{key}: {recorded:#}");
        }
        containerd.cri().stop(&pod)?;
        ensure!(node.attachments()?.is_empty() && !containerd.cri().status(&pod)?.is_ready);
        containerd.cri().stop(&pod).context("second StopPodSandbox")?;
        remove(node, containerd, &[pod], &empty)
    })
    .unwrap();
}

#[test]
fn pods_and_node_reach_each_other() {
    with_containerd(|node, containerd| {
        let cri = containerd.cri();
        let (a, b) = (cri.run("a", &[])?, cri.run("b", &[])?);
        let (in_a, in_b) = (cri.start_container(&a)?, cri.start_container(&b)?);
        let (of_a, of_b) = (addresses(node, &a.id)?, addresses(node, &b.id)?);
        reaches(containerd, &in_a, &of_a, &of_b)?;
        reaches(containerd, &in_b, &of_b, &of_a)?;
        let recorded = attachment(node, &a.id)?;
        let netns = Path::new(recorded["netns"].as_str().context("no netns")?);
        for address in [NODE_V4, NODE_V6] {
            sys::output(sys::command_in(netns, "ping")?.args(["-n", "-c", "1", "-W", "5", address]))?;
        }
        for address in of_a {
            sys::run(&format!("ping -n -c 1 -W 5 {address}"))?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn concurrent_pods_have_unique_addresses_and_leak_nothing() {
    const PODS: usize = 20;
    with_containerd(|node, containerd| {
        let (empty, cri) = (node.kernel_state()?, containerd.cri());
        let at_once = |call: &(dyn Fn(usize) -> anyhow::Result<()> + Sync)| {
            thread::scope(|scope| {
                let calls: Vec<_> = (0..PODS).map(|number| scope.spawn(move || call(number))).collect();
                calls.into_iter().try_for_each(|it| it.join().map_err(|_| anyhow!("panicked"))?)
            })
        };
        let pods = std::sync::Mutex::new(Vec::new());
        at_once(&|number| {
            let pod = cri.run(&format!("pod-{number}"), &[])?;
            let addresses = cri.status(&pod)?.addresses;
            pods.lock().unwrap().push((pod, addresses));
            Ok(())
        })?;
        let pods = pods.into_inner()?;
        let mut unique: BTreeSet<std::net::IpAddr> = BTreeSet::new();
        for (pod, reported) in &pods {
            ensure!(addresses(node, &pod.id)? == *reported, "{reported:?}");
            unique.extend(reported);
        }
        ensure!(unique.len() == 2 * PODS && node.attachments()?.len() == PODS, "{unique:?}");
        at_once(&|number| {
            cri.stop(&pods[number].0)?;
            cri.remove(&pods[number].0)
        })?;
        nothing_is_left(node, &empty)
    })
    .unwrap();
}

#[test]
fn annotation_in_containerds_call_decides_the_vif() {
    on_node(|node| {
        node.pid_namespace()?;
        let cluster = Cluster::start(Options::default())?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4, POD_V6]))?;
        let flags =
            [&["--vif-cidr", "10.99.0.0/24,fd00:99::/64", "--vif-source", "annotation"], &INSTALL[..]];
        cluster.start_agent(node, &flags.concat())?;
        let containerd = Containerd::start(node, Path::new(PROGRAM))?;
        wait_for_network(&containerd)?;
        // The API server does not know the pod: only the call can carry the annotation.
        let vif = r#"{"interfaces":[{"addresses":["10.99.0.7","fd00:99::7"],"mtu":1400}]}"#;
        let pod = containerd.cri().run("annotated", &[(VIF, vif), ("other", "x")])?;
        let expected: Vec<std::net::IpAddr> = vec!["10.99.0.7".parse()?, "fd00:99::7".parse()?];
        ensure!(containerd.cri().status(&pod)?.addresses == expected);
        ensure!(addresses(node, &pod.id)? == expected && attachment(node, &pod.id)?["mtu"] == 1400);
        let outside = r#"{"interfaces":[{"addresses":["10.98.0.7"]}]}"#;
        let Err(refused) = containerd.cri().run("outside", &[(VIF, outside)]) else {
            bail!("ADD succeeded with an address outside --vif-cidr")
        };
        ensure!(format!("{refused:#}").contains("10.98.0.7"), "{refused:#}");
        ensure!(node.attachments()?.len() == 1);
        Ok(())
    })
    .unwrap();
}

#[test]
fn processes_of_a_runtime_end_with_the_node_after_a_test_failure() {
    let mut cgroup = String::new();
    let failed: anyhow::Result<()> = with_containerd(|_, containerd| {
        containerd.cri().run("left-behind", &[])?;
        cgroup = containerd.cgroup();
        ensure!(!pid_namespace::cgroup_directories(&cgroup)?.is_empty(), "the pod's cgroup is missing");
        bail!("on purpose")
    });
    assert!(failed.unwrap_err().root_cause().to_string().contains("on purpose"));
    assert_eq!(pid_namespace::cgroup_directories(&cgroup).unwrap(), [] as [&Path; 0]);
}
