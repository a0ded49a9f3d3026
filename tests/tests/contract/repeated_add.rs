//! A repeated ADD: the same answer, a repair, or a replacement; never the loss of a working attachment.

use super::*;

#[test]
fn repeated_add_is_idempotent() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        let first = runtime.add(&pod)?;
        let state = node.kernel_state()?;
        ensure!(runtime.add(&pod)? == first);
        ensure!(node.kernel_state()? == state);
        Ok(())
    })
    .unwrap();
}

#[test]
fn repeated_add_leaves_drift_that_affects_no_packet_to_healing() {
    with_agent(|node| {
        let (runtime, pod) = (node.runtime()?, node.attach("a")?);
        let (ifname, ifindex) = (node.host_ifname(&pod)?, node.host_ifindex(&pod)?);
        sys::run(&format!("ip link set {ifname} group 7"))?;
        runtime.add(&pod)?;
        ensure!(node.host_ifindex(&pod)? == ifindex, "the repeated ADD replaced a working interface");
        sys::wait_until("healing repairs the link group", Duration::from_secs(5), || {
            Ok(!sys::run(&format!("ip link show {ifname}"))?.contains("group 7"))
        })
    })
    .unwrap();
}

#[test]
fn repeated_add_refuses_a_restamped_interface_and_leaves_the_pod_connected() {
    with_agent(|node| {
        let (runtime, pod) = (node.runtime()?, node.attach("a")?);
        sys::run(&format!("ip link set {} alias foreign", node.host_ifname(&pod)?))?;
        refused(node, INTERFACE_EXISTS, || runtime.add(&pod))
    })
    .unwrap();
}

#[test]
fn repeated_add_repairs_a_damaged_attachment() {
    with_agent_without_healing(|node| {
        let runtime = node.runtime()?;
        let mut pod = node.attach("a")?;
        sys::run(&format!("tc qdisc del dev {} clsact", node.host_ifname(&pod)?))?;
        pod.attached(&runtime.add(&pod)?)?;
        runtime.check(&pod)?;
        pod.ping(ferrule_tests::node::NODE_V4).map(drop)
    })
    .unwrap();
}

/// Another namespace for the same container.
fn elsewhere(node: &Node, pod: &Pod, name: &str) -> anyhow::Result<Pod> {
    let other = node.pod(name)?;
    Ok(Pod { netns: other.netns, ..pod.clone() })
}

#[test]
fn failed_add_in_another_namespace_leaves_the_attachment_untouched() {
    with_agent(|node| {
        let (runtime, first, peer) = (node.runtime()?, node.attach("first")?, node.attach("peer")?);
        let works = || {
            first.addresses.iter().try_for_each(|address| peer.ping(&address.to_string()).map(drop))?;
            runtime.check(&first)
        };
        let own = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        for (path, code) in [("/run/gone", INVALID_NETNS), (&own, INVALID_NETNS)] {
            let second = Pod { netns: path.into(), ..first.clone() };
            refused(node, code, || runtime.add(&second)).context(path.to_owned())?;
            works()?;
        }
        for (commands, code) in [
            (&["ip link add eth0 type veth peer name other"][..], INTERFACE_EXISTS),
            (&["ip link set lo up", "ip route add default dev lo"], ROUTE_EXISTS),
            (&["ip link set lo up", "ip -6 route add default dev lo"], ROUTE_EXISTS),
            (&["ip route add unreachable default"], ROUTE_EXISTS),
        ] {
            let second = elsewhere(node, &first, "occupied")?;
            commands.iter().try_for_each(|command| second.run(command).map(drop))?;
            refused(node, code, || runtime.add(&second)).with_context(|| format!("{commands:?}"))?;
            works().with_context(|| format!("{commands:?}"))?;
        }
        let second = elsewhere(node, &first, "clean")?;
        let mtu = runtime.clone().with("mtu", 9000.into());
        refused(node, INVALID_CONFIG, || mtu.add(&second))?;
        works()?;

        // The namespace has the retired interface of another container, until the reaper deletes it.
        let retired = Pod { container_id: "retired".to_owned(), ..second.clone() };
        runtime.add(&retired)?;
        runtime.del(&retired)?;
        let mut moved = second;
        moved.attached(&runtime.add(&moved)?)?;
        moved.addresses.iter().try_for_each(|address| peer.ping(&address.to_string()).map(drop))?;
        runtime.check(&moved)?;
        sys::wait_until("the replaced interface is deleted", Duration::from_secs(10), || {
            Ok(!first.run("ip -o link show")?.contains("eth0"))
        })?;
        ensure!(node.attachments()?.len() == 2);

        sys::run(&format!("ip link set {} alias foreign", node.host_ifname(&moved)?))?;
        let third = elsewhere(node, &moved, "third")?;
        refused(node, INTERFACE_EXISTS, || runtime.add(&third))?;
        moved.ping(ferrule_tests::node::NODE_V4).map(drop)
    })
    .unwrap();
}

/// The range has one address, and that of a detached pod is in cooldown: the failure shows only once the
/// earlier attachment is detached.
#[test]
fn attachment_is_put_back_after_a_failure_that_only_the_attempt_shows() {
    on_node(|node| {
        let only = ["--standalone", "--pod-cidr", "10.244.0.0/30", "--self-heal", "off"];
        node.start_agent_with(&only)?;
        let (runtime, pod) = (node.runtime()?, node.attach("only")?);
        let works = || {
            pod.ping(ferrule_tests::node::NODE_V4)?;
            runtime.check(&pod)
        };
        let before = node.kernel_state()?.len();
        let second = elsewhere(node, &pod, "second")?;
        let fails = |pod: &Pod| -> anyhow::Result<()> {
            let error = runtime.call("ADD", pod)?.into_error()?;
            ensure!(
                error.code == TRY_AGAIN_LATER && error.msg.contains("no IPv4 address is free"),
                "{error}"
            );
            Ok(())
        };
        for _ in 0..2 {
            fails(&second)?;
            works()?;
            ensure!(!second.run("ip -o link show")?.contains("eth0"), "the failed ADD left an interface");
        }
        // With drift, in the namespace of the attachment.
        sys::run(&format!("tc qdisc del dev {} clsact", node.host_ifname(&pod)?))?;
        ensure!(works().is_err(), "the pod has filters");
        fails(&pod)?;
        works()?;
        runtime.add(&pod).context("the runtime's retry")?;
        ensure!(node.attachments()?.len() == 1 && node.kernel_state()?.len() == before);
        // As durable as before.
        node.kill_agent()?;
        node.start_again()?;
        works()?;
        runtime.del(&pod)?;
        ensure!(node.attachments()?.is_empty());
        Ok(())
    })
    .unwrap();
}
