//! What each verb does.

use super::*;

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
fn a_pod_whose_annotations_fill_the_configuration_is_attached_and_deleted() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        let empty = node.kernel_state()?;
        // Go's JSON has six bytes for each character. Kubernetes allows 256 KiB, and the shim 4 MiB of JSON.
        let config = |annotation: usize| {
            let annotations = json!({"note": "<".repeat(annotation)});
            let capability = json!({"io.kubernetes.cri.pod-annotations": annotations});
            runtime.clone().with("runtimeConfig", capability)
        };
        let stdin = |runtime: &Runtime| runtime.config().to_string().replace('<', r"\u003c");
        for annotation in [174_600, 256 << 10, 690_000] {
            let mut runtime = config(annotation);
            let text = stdin(&runtime);
            ensure!(text.len() <= 4 << 20, "{} bytes", text.len());
            let result = with_stdin(&runtime, &pod, text.as_bytes())?;
            runtime = runtime.with("prevResult", result);
            let del = runtime.environment("DEL", &pod);
            runtime.call_with(&del, stdin(&runtime).as_bytes())?.into_result()?;
            ensure!(node.attachments()?.is_empty(), "after an annotation of {annotation} bytes");
        }
        node.wait_for_kernel_state(&empty)?;
        let runtime = config(700_000);
        refused(node, DECODING_FAILURE, || with_stdin(&runtime, &pod, stdin(&runtime).as_bytes()))?;
        let del = runtime.environment("DEL", &pod);
        runtime.call_with(&del, stdin(&runtime).as_bytes())?.into_result().map(drop)
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

/// The retired interface has its default routes until it is deleted.
#[test]
fn add_under_another_name_immediately_after_del_in_the_same_namespace_succeeds() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let mut pod = node.attach("a")?;
        let mut before = runtime.clone();
        for number in 0..6 {
            before.del(&pod)?;
            pod.container_id = format!("again{number}");
            let mut now = runtime.clone();
            now.ifname = format!("eth{}", (number + 1) % 2);
            pod.attached(&now.add(&pod)?)?;
            now.check(&pod)?;
            before = now;
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
