//! The CNI contract from a runtime's perspective: successes, refusals, and refusals without side effects.

use std::{fs, net::IpAddr, path::PathBuf, process::Command, thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, map_delete, on_node, with_agent, with_agent_without_healing},
    pod::Pod,
    runtime::Runtime,
    sys,
};
use serde_json::{Value, json};

/// CNI error codes; ours start at 100.
const INCOMPATIBLE_VERSION: u64 = 1;
const INVALID_ENVIRONMENT: u64 = 4;
const DECODING_FAILURE: u64 = 6;
const INVALID_CONFIG: u64 = 7;
const INVALID_NETNS: u64 = 8;
const TRY_AGAIN_LATER: u64 = 11;
const INTERFACE_EXISTS: u64 = 102;
const ROUTE_EXISTS: u64 = 103;

/// Requires a CNI error of this code, with kernel, maps and IPAM unchanged.
fn refused(node: &Node, code: u64, call: impl FnOnce() -> anyhow::Result<Value>) -> anyhow::Result<()> {
    let state = || anyhow::Ok((node.kernel_state()?, uncounted(node)?));
    let before = state()?;
    let error = match call() {
        Ok(result) => anyhow::bail!("the call succeeded: {result}"),
        Err(error) => error,
    };
    let cni = error.downcast_ref::<ferrule_tests::runtime::CniError>().context("not a CNI error")?;
    ensure!(cni.code == code, "expected code {code}, found {cni}");
    ensure!(!cni.msg.is_empty() && cni.msg.len() < 1000 && !cni.msg.contains('\n'), "{cni}");
    ensure!(state()? == before, "the refused call had side effects: {cni}");
    Ok(())
}

/// The attachments without counters, which change at any time.
fn uncounted(node: &Node) -> anyhow::Result<Vec<Value>> {
    let mut attachments = node.attachments()?;
    attachments.iter_mut().filter_map(Value::as_object_mut).for_each(|it| drop(it.remove("counters")));
    Ok(attachments)
}

/// Requires, on a node without attachments, that no address is allocated.
fn nothing_was_taken(node: &Node) -> anyhow::Result<()> {
    let first = node.attach("first")?;
    let expected = "10.244.0.2".parse()?;
    ensure!(first.addresses.first() == Some(&expected), "{:?}", first.addresses);
    Ok(())
}

fn with_env(runtime: &Runtime, pod: &Pod, key: &str, value: Option<&str>) -> anyhow::Result<Value> {
    let mut environment = runtime.environment("ADD", pod);
    environment.retain(|(name, _)| name != key);
    environment.extend(value.map(|value| (key.to_owned(), value.to_owned())));
    runtime.call_with(&environment, runtime.config().to_string().as_bytes())?.into_result()
}

fn with_stdin(runtime: &Runtime, pod: &Pod, stdin: &[u8]) -> anyhow::Result<Value> {
    runtime.call_with(&runtime.environment("ADD", pod), stdin)?.into_result()
}

#[test]
fn add_check_and_del_leak_nothing() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let empty = node.kernel_state()?;
        let pod = node.attach("a")?;
        runtime.check(&pod)?;
        ensure!(node.attachments()?.len() == 1 && node.kernel_state()? != empty);
        runtime.del(&pod)?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&empty)?;
        sys::wait_until("the pod's end is deleted", std::time::Duration::from_secs(5), || {
            Ok(!pod.run("ip -o link show")?.contains("eth0"))
        })?;
        runtime.del(&pod).context("second DEL")?;
        runtime.del(&node.pod("never-added")?).context("DEL of an unknown container")
    })
    .unwrap();
}

#[test]
fn result_has_the_requested_cni_version() {
    with_agent(|node| {
        for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let runtime = node.runtime()?.with("cniVersion", version.into());
            let pod = node.pod(&format!("v{version}"))?;
            let result = runtime.add(&pod)?;
            ensure!(result["cniVersion"] == version, "{result}");
            ensure!(result["interfaces"][1]["sandbox"] == pod.netns.to_string_lossy().as_ref(), "{result}");
            ensure!(result["ips"].as_array().is_some_and(|ips| ips.len() == 2), "{result}");
            let old = version.starts_with('0');
            ensure!(result["ips"][0].get("version").is_some() == old, "{result}");
            ensure!(result["interfaces"][1].get("mtu").is_some() == (version == "1.1.0"), "{result}");
            runtime.del(&pod)?;
        }
        Ok(())
    })
    .unwrap();
}

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
fn concurrent_adds_of_one_key_return_the_same_result() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        let answers: Vec<anyhow::Result<Value>> = thread::scope(|scope| {
            let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| runtime.add(&pod))).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let answers = answers.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
        ensure!(node.attachments()?.len() == 1);
        Ok(())
    })
    .unwrap();
}

#[test]
fn late_del_of_an_older_sandbox_does_not_affect_the_newer_one() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let old = node.attach("web-0")?;
        let mut new = old.new_sandbox(900)?;
        new.attached(&runtime.add(&new)?)?;
        runtime.del(&old)?;
        let peer = node.attach("peer")?;
        for address in &new.addresses {
            peer.ping(&address.to_string())?;
        }
        runtime.check(&new)
    })
    .unwrap();
}

#[test]
fn del_without_a_namespace_succeeds() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let empty = node.kernel_state()?;
        let mut pod = node.attach("gone")?;
        pod.clone().remove()?;
        runtime.del(&pod)?;
        pod.netns = PathBuf::new();
        runtime.del(&pod).context("second DEL, without a netns")?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&empty)
    })
    .unwrap();
}

#[test]
fn add_immediately_after_del_in_the_same_namespace_succeeds() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let mut pod = node.attach("a")?;
        for number in 0..5 {
            runtime.del(&pod)?;
            pod.container_id = format!("again{number}");
            pod.attached(&runtime.add(&pod)?)?;
            runtime.check(&pod)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn check_reports_each_deviation() {
    with_agent_without_healing(|node| {
        let runtime = node.runtime()?;
        sys::run("ip link add br0 type bridge")?;
        // Expected message, damaging command, and whether the command runs in the pod.
        let damages = [
            ("no default route through 169", "ip route del default", true),
            ("no default route through fe80", "ip -6 route del default", true),
            ("wrong MTU 1300, expected 1450", "ip link set eth0 mtu 1300", true),
            ("wrong MAC 02:00:00:00:00:66, expected", "ip link set eth0 address 02:00:00:00:00:66", true),
            ("neighbour entry for its gateway", "ip neigh del 169.254.1.1 dev eth0", true),
            ("lacks the address", "ip addr flush dev eth0 scope global", true),
            ("pod-link", "ip link set eth0 down", true),
            ("filter from_pod", "tc filter del dev HOST ingress", false),
            ("filter to_pod", "tc filter del dev HOST egress", false),
            ("no route to", "ip route flush dev HOST", false),
            ("wrong MTU 1300, expected 1450", "ip link set HOST mtu 1300", false),
            ("wrong MAC 02:00:00:00:00:66, expected", "ip link set HOST address 02:00:00:00:00:66", false),
            ("has the master interface", "ip link set HOST master br0", false),
            ("wrong link group 77, expected 0", "ip link set HOST group 77", false),
            ("wrong name renamed0, expected fr", "ip link set HOST name renamed0", false),
            ("forwarding is 0, expected 1", "sysctl -qw net.ipv4.conf.HOST.forwarding=0", false),
            ("VIF_COUNTERS", "DELETE_COUNTERS", false),
            ("ENDPOINTS", "DELETE_ENDPOINT", false),
            ("VIFS", "DELETE_VIF", false),
            ("is down", "ip link set HOST down", false),
            ("is gone", "ip link del HOST", false),
            // Last: DEL does not delete an interface without its stamp.
            ("link-stamp", "ip link set HOST alias foreign", false),
        ];
        for (expected, damage, in_pod) in damages {
            let pod = node.attach("damaged")?;
            runtime.check(&pod)?;
            let host = node.host_ifname(&pod)?;
            let index = node.host_ifindex(&pod)?.to_ne_bytes();
            let IpAddr::V4(v4) = pod.addresses[0] else { anyhow::bail!("the pod has no IPv4 address") };
            let damage = match damage {
                "DELETE_COUNTERS" => map_delete("VIF_COUNTERS", &index),
                "DELETE_ENDPOINT" => map_delete("ENDPOINTS", &v4.to_ipv6_mapped().octets()),
                "DELETE_VIF" => map_delete("VIFS", &index),
                command => command.replace("HOST", &host),
            };
            if in_pod {
                pod.run(&damage)?
            } else {
                sys::run(&damage)?
            };
            let error = runtime.check(&pod).map_or_else(|error| error.to_string(), |()| "nothing".to_owned());
            ensure!(error.contains(expected) && error.contains("error 101"), "after `{damage}`: {error}");
            runtime.del(&pod)?;
        }
        let never = node.pod("never-added")?;
        let with_result = runtime.with("prevResult", json!({}));
        let unknown = with_result.check(&never).map_or_else(|error| error.to_string(), |()| String::new());
        ensure!(unknown.contains("CNI error 3"), "{unknown}");
        Ok(())
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

#[test]
fn required_sysctls_are_set() {
    fn setting(name: &str) -> anyhow::Result<String> {
        let path = format!("/proc/sys/net/{name}");
        Ok(fs::read_to_string(&path).with_context(|| path)?.trim_end().to_owned())
    }
    with_agent(|node| {
        let pod = node.attach("dual")?;
        let host = node.host_ifname(&pod)?;
        ensure!(setting("ipv4/ip_forward")? == "1" && setting("ipv6/conf/all/forwarding")? == "1");
        ensure!(
            setting("ipv6/conf/uplink/accept_ra")? == "2",
            "forwarding disabled router advertisements on the uplink"
        );
        ensure!(setting(&format!("ipv4/conf/{host}/forwarding"))? == "1");
        ensure!(setting(&format!("ipv4/conf/{host}/rp_filter"))? == "2");
        ensure!(setting(&format!("ipv6/conf/{host}/accept_ra"))? == "0");
        // EUI-64 as generated by the kernel, without duplicate address detection.
        let link_local = pod.run("ip -6 -o addr show dev eth0 scope link")?;
        ensure!(link_local.lines().count() == 1 && link_local.contains("/64"), "{link_local}");
        ensure!(!link_local.contains("tentative"), "{link_local}");
        Ok(())
    })
    .unwrap();
    on_node(|node| {
        node.start_agent(&["10.244.0.0/24"])?;
        let pod = node.attach("v4-only")?;
        let host = node.host_ifname(&pod)?;
        ensure!(setting(&format!("ipv6/conf/{host}/disable_ipv6"))? == "1");
        let of_pod = pod.run("ip -6 addr show dev eth0")?;
        ensure!(of_pod.is_empty(), "an IPv4-only pod has IPv6 addresses: {of_pod}");
        ensure!(setting("ipv6/conf/all/forwarding")? == "0", "IPv6 forwarding was enabled without IPv6 pods");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ipv6_is_enabled_in_a_namespace_that_disables_it_by_default() {
    with_agent(|node| {
        let mut pod = node.pod("without")?;
        pod.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1")?;
        let result = node.runtime()?.add(&pod)?;
        pod.attached(&result)?;
        ensure!(pod.addresses.iter().any(|it| it.is_ipv6()), "{result}");
        pod.ping(ferrule_tests::node::NODE_V6).map(drop)
    })
    .unwrap();
}

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
        let huge = format!("{{\"cniVersion\": \"1.1.0\", \"name\": \"{}\"}}", "a".repeat(1 << 20));
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
fn agent_refuses_unusable_pod_cidrs() {
    on_node(|node| {
        for (cidrs, expected) in [
            (["10.244.0.0/31", "fd00::/64"], "is too small"),
            (["10.244.0.1/24", "fd00::/64"], "10.244.0.0/24"),
            (["10.244.0.0/16", "10.244.3.0/24"], "overlap"),
        ] {
            let error = node
                .start_agent(&cidrs)
                .map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
            ensure!(error.contains(expected), "{error}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn calls_without_an_agent_fail_immediately() {
    with_agent(|node| {
        let pod = node.pod("a")?;
        node.kill_agent()?;
        let start = std::time::Instant::now();
        for (verb, code) in [("ADD", 11), ("CHECK", 11), ("STATUS", 50)] {
            let mut runtime = node.runtime()?;
            if verb == "CHECK" {
                runtime = runtime.with("prevResult", json!({}));
            }
            let error = runtime.call(verb, &pod)?.into_error()?;
            ensure!(error.code == code && error.msg.contains("/run/ferrule/agent.sock"), "{verb}: {error}");
        }
        ensure!(
            start.elapsed() < std::time::Duration::from_secs(3),
            "the calls took longer than a second each"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn second_agent_is_refused_without_side_effects() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        let before = node.kernel_state()?;
        let start = |flags: &[&str]| -> anyhow::Result<String> {
            let mut second = Command::new(ferrule_tests::dist::binary("ferrule-agent")?);
            second.args(["--standalone", "--pod-cidr", "10.9.0.0/24"]).args(flags);
            let output = second.output()?;
            ensure!(output.status.code() == Some(1), "{output:?}");
            Ok(String::from_utf8_lossy(&output.stderr).into_owned())
        };
        // Separate paths do not help: both agents share the kernel.
        let own = [
            "--socket",
            "/run/other/agent.sock",
            "--state-dir",
            "/run/other",
            "--bpf-dir",
            "/sys/fs/bpf/other",
        ];
        for flags in [&own[..], &[]] {
            let reported = start(flags)?;
            ensure!(reported.contains("another ferrule-agent works in this network namespace"), "{reported}");
        }
        ensure!(!PathBuf::from("/sys/fs/bpf/other").exists(), "the second agent created pins");
        // An interface's operstate follows its carrier with a delay.
        node.wait_for_kernel_state(&before)?;
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn state_directory_of_another_agent_is_refused() {
    with_agent(|node| {
        let outside = PathBuf::from("/run/netns/outside");
        let mut second = sys::command_in(&outside, ferrule_tests::dist::binary("ferrule-agent")?)?;
        let output = second.args(["--standalone", "--pod-cidr", "10.9.0.0/24"]).output()?;
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(1) && reported.contains("another ferrule-agent (pid"),
            "{reported}"
        );
        node.attach("a").map(drop)
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
        thread::sleep(Duration::from_millis(500));
        let pod = node.attach("b")?;
        ensure!(pod.addresses[0].to_string() == "10.244.0.6", "{:?}", pod.addresses);
        Ok(())
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

#[test]
fn non_root_caller_is_refused() {
    with_agent(|node| {
        use std::os::unix::{fs::PermissionsExt as _, process::CommandExt as _};
        let socket = ferrule_tests::node::socket();
        let directory = socket.parent().context("no directory")?;
        ensure!(fs::metadata(directory)?.permissions().mode() & 0o777 == 0o700);
        ensure!(fs::metadata(&socket)?.permissions().mode() & 0o777 == 0o600);
        // Even with open file permissions, the agent serves root only.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
        // A path that other users can reach. Not a copy, which would be busy (ETXTBSY) while another test
        // forks.
        let reachable = PathBuf::from("/run/ferrulectl");
        fs::write(&reachable, "")?;
        let binary = ferrule_tests::dist::binary("ferrulectl")?;
        nix::mount::mount(
            Some(&binary),
            &reachable,
            None::<&str>,
            nix::mount::MsFlags::MS_BIND,
            None::<&str>,
        )?;
        let output = Command::new(&reachable).arg("attachments").uid(65534).gid(65534).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && text.contains("only root may call the agent"), "{text}");
        node.attach("a").map(drop)
    })
    .unwrap();
}

#[test]
fn gc_removes_exactly_the_attachments_that_are_not_valid() {
    with_agent(|node| {
        let (keep, lose) = (node.attach("keep")?, node.attach("lose")?);
        let other = node.runtime()?.with("name", "other".into());
        let foreign = node.pod("foreign")?;
        other.add(&foreign)?;
        let valid = json!([{ "containerID": keep.container_id, "ifname": "eth0" }]);
        let gc = node.runtime()?.with("cni.dev/valid-attachments", valid);
        gc.call("GC", &keep)?.into_result()?;
        let left = node.attachments()?;
        let ids: Vec<_> = left.iter().map(|it| it["container_id"].as_str().unwrap_or_default()).collect();
        ensure!(ids == [keep.container_id.as_str(), foreign.container_id.as_str()], "{ids:?}");
        node.runtime()?.check(&keep)?;
        ensure!(!ids.contains(&lose.container_id.as_str()));
        node.runtime()?.call("STATUS", &keep)?.into_result().map(drop)
    })
    .unwrap();
}
