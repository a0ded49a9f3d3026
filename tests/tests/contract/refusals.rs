//! Invalid requests and unusable addresses: refused, without side effects.

use super::*;

#[test]
fn invalid_environment_is_refused() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        let long = "a".repeat(300);
        let id = ["", "../escape", "a/b", ".hidden", "a b", "a\nb", &long];
        for value in id {
            refused(node, INVALID_ENVIRONMENT, || with_env(&runtime, &pod, "CNI_CONTAINERID", Some(value)))?;
        }
        for value in ["", ".", "..", "a/b", "a:b", "a b", "lo", "eth%d", "all", "default", "sixteen-bytes-xx"]
        {
            refused(node, INVALID_ENVIRONMENT, || with_env(&runtime, &pod, "CNI_IFNAME", Some(value)))?;
        }
        for key in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"] {
            refused(node, INVALID_ENVIRONMENT, || with_env(&runtime, &pod, key, None))?;
        }
        refused(node, INVALID_ENVIRONMENT, || with_env(&runtime, &pod, "CNI_COMMAND", Some("MULTIPLY")))?;
        refused(node, INVALID_ENVIRONMENT, || {
            with_env(&runtime, &pod, "CNI_ARGS", Some("K8S_POD_NAME=a\nb"))
        })?;
        nothing_was_taken(node)
    })
    .unwrap();
}

#[test]
fn invalid_netns_is_refused() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        fs::write("/run/plain", "")?;
        std::os::unix::fs::symlink("/nowhere", "/run/dangling")?;
        nix::unistd::mkfifo("/run/fifo", nix::sys::stat::Mode::S_IRWXU)?;
        let bad = [
            "/run/plain",
            "/run",
            "/run/gone",
            "/run/dangling",
            "/run/fifo",
            "/proc/self/ns/mnt",
            "/dev/null",
        ];
        for path in bad {
            refused(node, INVALID_NETNS, || with_env(&runtime, &pod, "CNI_NETNS", Some(path)))
                .with_context(|| format!("CNI_NETNS={path}"))?;
        }
        // The test process is in the node's own network namespace.
        let own = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        refused(node, INVALID_NETNS, || with_env(&runtime, &pod, "CNI_NETNS", Some(&own)))?;
        nothing_was_taken(node)
    })
    .unwrap();
}

#[test]
fn invalid_configuration_is_refused() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        for stdin in ["", "{", "[]", "nonsense", "{\"cniVersion\": \"1.1.0\""] {
            refused(node, DECODING_FAILURE, || with_stdin(&runtime, &pod, stdin.as_bytes()))
                .with_context(|| format!("stdin {stdin:?}"))?;
        }
        let huge = format!("{{\"cniVersion\": \"1.1.0\", \"name\": \"{}\"}}", "a".repeat(4 << 20));
        refused(node, DECODING_FAILURE, || with_stdin(&runtime, &pod, huge.as_bytes()))?;
        let deep = format!("{{\"cniVersion\": \"1.1.0\", \"name\": {}", "[".repeat(100_000));
        refused(node, DECODING_FAILURE, || with_stdin(&runtime, &pod, deep.as_bytes()))?;
        for version in ["0.1.0", "0.2.0", "2.0.0", "banana"] {
            refused(node, INCOMPATIBLE_VERSION, || {
                runtime.clone().with("cniVersion", version.into()).add(&pod)
            })?;
        }
        refused(node, INVALID_CONFIG, || runtime.clone().with("name", "a/b".into()).add(&pod))?;
        refused(node, INVALID_CONFIG, || {
            with_stdin(&runtime, &pod, br#"{"cniVersion": "1.1.0", "name": 1e999}"#)
        })?;
        refused(node, INVALID_CONFIG, || runtime.clone().with("mtu", "big".into()).add(&pod))?;
        refused(node, INVALID_CONFIG, || runtime.clone().with("mtu", 9000.into()).add(&pod))
            .context("MTU above the uplink's")?;
        refused(node, INVALID_CONFIG, || runtime.clone().with("mtu", 1000.into()).add(&pod))
            .context("MTU below the IPv6 minimum")?;
        nothing_was_taken(node)
    })
    .unwrap();
}

#[test]
fn existing_interface_name_is_refused_and_left_unchanged() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        pod.run("ip link add eth0 type veth peer name other")?;
        let before = pod.run("ip -o link show")?;
        refused(node, INTERFACE_EXISTS, || runtime.add(&pod))?;
        ensure!(pod.run("ip -o link show")? == before);
        nothing_was_taken(node)
    })
    .unwrap();
}

#[test]
fn failed_add_is_rolled_back_completely() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        // The conflicting default route is detected only after the veth pair exists.
        pod.run("ip link set lo up")?;
        pod.run("ip route add default dev lo")?;
        let before = pod.run("ip -o link show")?;
        refused(node, ROUTE_EXISTS, || runtime.add(&pod))?;
        ensure!(pod.run("ip -o link show")? == before, "the rollback left an interface in the pod");
        pod.run("ip route del default dev lo")?;
        let result = runtime.add(&pod)?;
        ensure!(
            result["ips"][0]["address"] == "10.244.0.2/32",
            "the rollback did not release the address: {result}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn exhausted_range_fails_with_code_11_until_a_del() {
    on_node(|node| {
        node.start_agent(&["10.244.0.0/30"])?;
        let runtime = node.runtime()?;
        let only = node.attach("only")?;
        let next = node.pod("next")?;
        refused(node, TRY_AGAIN_LATER, || runtime.add(&next))?;
        runtime.del(&only)?;
        // The released address is in cooldown.
        let error = runtime.add(&next).map_or_else(|error| error.to_string(), |result| result.to_string());
        ensure!(error.contains("CNI error 11") && error.contains("1 were released"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ipam_skips_the_nodes_own_addresses() {
    on_node(|node| {
        sys::run("ip addr add 10.244.0.2/32 dev lo")?;
        node.start_agent(&["10.244.0.0/24"])?;
        let pod = node.attach("a")?;
        ensure!(pod.addresses[0].to_string() == "10.244.0.3", "{:?}", pod.addresses);
        // Also addresses added later, and the local end of a point-to-point link.
        sys::run("ip addr add 10.244.0.4/32 dev lo")?;
        sys::run("ip addr add 10.244.0.5 peer 10.244.0.99/32 dev lo")?;
        // The last one is a pod's, which the agent reports once it knows all of them.
        sys::run("ip addr add 10.244.0.3/32 dev lo")?;
        sys::wait_until("the agent knows the addresses", Duration::from_secs(20), || {
            Ok(node.log().contains("the node has the address of a pod"))
        })?;
        let pod = node.attach("b")?;
        ensure!(pod.addresses[0].to_string() == "10.244.0.6", "{:?}", pod.addresses);
        Ok(())
    })
    .unwrap();
}

#[test]
fn ipam_has_an_address_again_that_another_interface_than_the_uplink_has_lost() {
    on_node(|node| {
        // The only one of the range.
        sys::run("ip addr add 10.244.0.2/32 dev lo")?;
        node.start_agent(&["10.244.0.0/30"])?;
        let (runtime, pod) = (node.runtime()?, node.pod("a")?);
        refused(node, TRY_AGAIN_LATER, || runtime.add(&pod))?;
        // By then, the agent has read the addresses for the last time because of its own changes.
        thread::sleep(Duration::from_secs(3));
        sys::run("ip addr del 10.244.0.2/32 dev lo")?;
        sys::wait_until("the address is allocated", Duration::from_secs(20), || Ok(runtime.add(&pod).is_ok()))
    })
    .unwrap();
}

#[test]
fn ipam_skips_addresses_with_a_foreign_host_route() {
    with_agent(|node| {
        let first = node.attach("first")?;
        let clean = node.kernel_state()?;
        // Leftovers of another CNI plugin.
        for address in ["10.244.0.3", "10.244.0.5", "fd00:10:244::7"] {
            sys::run(&format!("ip route add {address} dev lo"))?;
        }
        let pods = (0..3).map(|number| node.attach(&format!("p{number}"))).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = pods.iter().map(|pod| pod.addresses[0].to_string()).collect();
        ensure!(addresses == ["10.244.0.4", "10.244.0.6", "10.244.0.8"], "{addresses:?}");
        let runtime = node.runtime()?;
        pods.iter().try_for_each(|pod| runtime.check(pod).and_then(|()| runtime.del(pod)))?;
        for address in ["10.244.0.3", "10.244.0.5", "fd00:10:244::7"] {
            sys::run(&format!("ip route del {address} dev lo"))?;
        }
        sys::wait_until("all kernel state is removed", Duration::from_secs(5), || {
            Ok(node.kernel_state()? == clean)
        })?;
        runtime.check(&first)
    })
    .unwrap();
}
