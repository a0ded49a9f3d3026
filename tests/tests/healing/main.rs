//! Self-healing: damage to pods' interfaces by others is repaired without a call from the runtime, or
//! reported.

mod conflict;
mod node;
mod pod_end;
mod qdisc;

use std::{fs, process::Command, thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    dist,
    node::{
        NODE_V4, Node, PINS, POD_V4, POD_V6, map_delete, on_node, with_agent, with_agent_without_healing,
    },
    pod::Pod,
    sys,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Covers notifications and the shortest reconcile period.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `run` on a node whose agent reconciles every second.
fn with_short_period<T: Send>(run: impl FnOnce(&mut Node) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    on_node(|node| {
        let ranges = ["--pod-cidr", POD_V4, "--pod-cidr", POD_V6];
        node.start_agent_with(&[&["--standalone", "--reconcile-period", "1"], &ranges[..]].concat())?;
        run(node)
    })
}

/// Exit code and output of `ferrulectl verify -o json`.
fn verify() -> anyhow::Result<(Option<i32>, Value)> {
    let output = Command::new(dist::binary("ferrulectl")?).args(["verify", "-o", "json"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = if text.trim().is_empty() { Value::Null } else { serde_json::from_str(&text)? };
    Ok((output.status.code(), json))
}

fn kinds(found: &Value) -> Vec<String> {
    let all = found["deviations"].as_array().into_iter().flatten();
    let mut kinds: Vec<_> = all.filter_map(|it| it["kind"].as_str().map(str::to_owned)).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Lines of the agent's log with a message about a kind of deviation.
fn log_lines(node: &Node, message: &str, kind: &str) -> usize {
    let kind = format!("kind=\"{kind}\"");
    node.log().lines().filter(|line| line.contains(message) && line.contains(&kind)).count()
}

/// Waits until a pod has no deviation, and pings in both directions.
fn wait_until_healed(node: &Node, pod: &Pod, peer: &Pod) -> anyhow::Result<()> {
    let runtime = node.runtime()?;
    sys::wait_until("the pod is repaired", TIMEOUT, || {
        runtime.check(pod)?;
        let (code, found) = verify()?;
        ensure!(code == Some(0), "{found:#}");
        Ok(true)
    })?;
    for address in &pod.addresses {
        peer.ping(&address.to_string())?;
    }
    pod.ping(NODE_V4)?;
    let first = pod.addresses.first().context("the pod has no address")?;
    sys::run(&format!("ping -n -c 1 -W 2 {first}")).map(drop)
}

#[test]
fn damage_to_a_pods_interface_is_repaired_without_a_call() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        sys::run("ip link add br0 type bridge")?;
        // One agent for all: a pod with five repairs gets further kinds repaired and logged as the first one.
        let [v4, v6] = [0, 1].map(|number| pod.addresses[number].to_string());
        for (kind, damage) in [
            ("filter", format!("tc filter del dev {host} ingress")),
            ("filter", format!("tc filter del dev {host} egress")),
            ("filter", format!("tc qdisc del dev {host} clsact")),
            ("route", format!("ip route del {v4} dev {host}")),
            ("route", format!("ip -6 route del {v6} dev {host}")),
            ("route", format!("ip route replace {v4} dev uplink")),
            ("neighbour", format!("ip neigh del {v4} dev {host}")),
            (
                "neighbour",
                format!("ip -6 neigh change {v6} dev {host} lladdr 02:00:00:00:00:66 nud permanent"),
            ),
            ("link-down", format!("ip link set {host} down")),
            ("link-name", format!("ip link set {host} name renamed0")),
            ("link-group", format!("ip link set {host} group 77")),
            ("link-mtu", format!("ip link set {host} mtu 1300")),
            ("link-mac", format!("ip link set {host} address 02:00:00:00:00:66")),
            ("link-master", format!("ip link set {host} master br0")),
            ("link-forwarding", format!("sysctl -qw net.ipv4.conf.{host}.forwarding=0")),
        ] {
            let noticed = format!("ferrule_deviations_total{{kind=\"{kind}\"}}");
            let repaired = format!("ferrule_repairs_total{{kind=\"{kind}\",outcome=\"repaired\"}}");
            let (before, logged) = (node.count(&noticed)?, log_lines(node, "deviation found", kind));
            let repairs = node.count(&repaired)?;
            sys::run(&damage)?;
            sys::wait_until("the deviation is detected", TIMEOUT, || Ok(node.count(&noticed)? > before))
                .with_context(|| damage.clone())?;
            wait_until_healed(node, &pod, &peer).with_context(|| damage.clone())?;
            sys::wait_until("the repair is counted", TIMEOUT, || Ok(node.count(&repaired)? > repairs))
                .with_context(|| damage.clone())?;
            ensure!(log_lines(node, "deviation found", kind) > logged, "{kind} is not logged");
            ensure!(node.host_ifname(&pod)? == host);
            if kind == "route" {
                sys::run(&format!("ip route flush {v4} dev uplink"))?;
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn deleted_interface_of_a_live_pod_is_recreated_identically() {
    with_agent(|node| {
        let empty = node.kernel_state()?;
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let seen =
            || pod.run("ip -j addr show eth0").and_then(|text| Ok(serde_json::from_str::<Value>(&text)?));
        let (before, index) = (seen()?, node.host_ifindex(&pod)?);
        let host = node.host_ifname(&pod)?;
        sys::run(&format!("ip link del {host}"))?;
        wait_until_healed(node, &pod, &peer)?;
        let now = seen()?;
        ensure!(now[0]["address"] == before[0]["address"] && now[0]["mtu"] == before[0]["mtu"], "{now:#}");
        ensure!(node.host_ifname(&pod)? == host && node.host_ifindex(&pod)? != index);
        ensure!(node.count("ferrule_repairs_total{kind=\"link-gone\",outcome=\"repaired\"}")? == 1.0);
        // The registry has the new interface: a new agent finds it.
        node.kill_agent()?;
        node.start_again()?;
        wait_until_healed(node, &pod, &peer)?;
        // Deleted from inside the pod.
        pod.run("ip link del eth0")?;
        wait_until_healed(node, &pod, &peer)?;
        let runtime = node.runtime()?;
        runtime.del(&pod)?;
        runtime.del(&peer)?;
        node.wait_for_kernel_state(&empty)
    })
    .unwrap();
}

#[test]
fn an_interface_that_was_moved_to_another_namespace_works_again_when_it_comes_back() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let (host, index) = (node.host_ifname(&pod)?, node.host_ifindex(&pod)?);
        for is_restarted in [false, true] {
            if is_restarted {
                node.kill_agent()?;
            }
            let away = peer.path().display();
            sys::run(&format!("ip link set {host} netns {away}"))?;
            if is_restarted {
                node.start_again()?;
            }
            sys::wait_until("the repair has failed", TIMEOUT, || {
                Ok(node.count("ferrule_repairs_total{kind=\"link-gone\",outcome=\"failed\"}")? >= 1.0)
            })?;
            let agent = node.agent_pid().context("no agent runs")?;
            peer.run(&format!("ip link set {host} netns {agent}"))?;
            wait_until_healed(node, &pod, &peer)
                .with_context(|| format!("by another agent: {is_restarted}"))?;
            ensure!(node.host_ifindex(&pod)? == index, "the interface is another one");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn interface_deleted_while_no_agent_ran_is_recreated_before_serving() {
    with_agent_without_healing(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        node.kill_agent()?;
        sys::run(&format!("ip link del {host}"))?;
        node.start_again()?;
        node.runtime()?.check(&pod)?;
        peer.ping(&pod.addresses[0].to_string())?;
        let next = node.attach("next")?;
        ensure!(!pod.addresses.contains(&next.addresses[0]), "the pod's address was allocated again");
        Ok(())
    })
    .unwrap();
}

#[test]
fn interface_deleted_with_its_namespace_is_not_recreated() {
    with_short_period(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        pod.clone().remove()?;
        sys::wait_until("the interface is deleted", TIMEOUT, || {
            Ok(!sys::run("ip -o link show")?.contains(&host))
        })?;
        let (code, found) = verify()?;
        ensure!(code == Some(0), "{found:#}");
        node.runtime()?.del(&pod)?;
        node.runtime()?.check(&peer)
    })
    .unwrap();
}

#[test]
fn map_entries_are_repaired_by_the_reconcile_period() {
    with_short_period(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let index = node.host_ifindex(&pod)?;
        let std::net::IpAddr::V4(v4) = pod.addresses[0] else { anyhow::bail!("no IPv4") };
        let address = v4.to_ipv6_mapped().octets();
        for damage in [
            map_delete("VIFS", &index.to_ne_bytes()),
            map_delete("ENDPOINTS", &address),
            map_delete("VIF_COUNTERS", &index.to_ne_bytes()),
            // The entry that counts packets of unknown interfaces.
            map_delete("VIF_COUNTERS", &[0; 4]),
        ] {
            let before = node.count("ferrule_deviations_total{kind=\"map-entry\"}")?;
            sys::run(&damage)?;
            sys::wait_until("the deviation is detected", TIMEOUT, || {
                Ok(node.count("ferrule_deviations_total{kind=\"map-entry\"}")? > before)
            })?;
            wait_until_healed(node, &pod, &peer).with_context(|| damage.clone())?;
        }
        // An orphaned entry is removed.
        let key = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 244, 0, 200].map(|it: u8| it.to_string());
        let value = "1 0 0 0 2 0 0 0 0 1 0 0";
        sys::run(&format!("bpftool map update pinned {PINS}/ENDPOINTS key {} value {value}", key.join(" ")))?;
        sys::wait_until("the orphaned entry is removed", TIMEOUT, || {
            Ok(node.count("ferrule_repairs_total{kind=\"stray-map-entry\",outcome=\"repaired\"}")? >= 1.0)
        })?;
        wait_until_healed(node, &pod, &peer)
    })
    .unwrap();
}

#[test]
fn orphaned_interface_is_deleted_and_unstamped_interface_is_untouched() {
    with_short_period(|node| {
        let pod = node.attach("a")?;
        sys::run("ip link add frorphan type veth peer name frorphan1")?;
        sys::run("ip link set frorphan alias ferrule:cluster:deadbeef:eth0")?;
        sys::wait_until("the orphaned interface is deleted", TIMEOUT, || {
            Ok(!sys::run("ip -o link show")?.contains("frorphan"))
        })?;
        let host = node.host_ifname(&pod)?;
        sys::run(&format!("ip link set {host} alias other:owner down"))?;
        sys::wait_until("the deviation is detected", TIMEOUT, || {
            Ok(node.count("ferrule_deviations_total{kind=\"link-stamp\"}")? >= 1.0)
        })?;
        thread::sleep(Duration::from_secs(3));
        ensure!(
            sys::run(&format!("ip link show {host}"))?.contains("state DOWN"),
            "the interface without its stamp was changed"
        );
        let (code, found) = verify()?;
        // An interface that is down takes the carrier of the pod's end, not its state.
        ensure!(code == Some(1) && kinds(&found) == ["link-stamp"], "{found:#}");
        let reported = log_lines(node, "deviation found", "link-stamp");
        ensure!(reported == 1, "expected one log line, found {reported}");
        let deviation = found.pointer("/deviations/0").context("no deviation")?;
        ensure!(
            deviation["repairable"] == false && deviation["means"].as_str().is_some_and(|it| !it.is_empty())
        );
        let command = deviation["command"].as_str().context("no command")?;
        ensure!(command == format!("ip link set dev {host} alias ferrule:cluster:{}:eth0", pod.container_id));
        sys::run(command)?;
        sys::wait_until("the pod is repaired", TIMEOUT, || Ok(node.runtime()?.check(&pod).is_ok()))
    })
    .unwrap();
}

#[test]
fn verify_reports_every_deviation_and_repairs_none() {
    with_agent_without_healing(|node| {
        let pods = [node.attach("a")?, node.attach("b")?, node.attach("c")?];
        let (code, found) = verify()?;
        ensure!(code == Some(0) && found["attachments"] == 3 && kinds(&found).is_empty(), "{found:#}");
        let [a, b, c] = [0, 1, 2].map(|number| node.host_ifname(&pods[number]));
        let (a, b, c) = (a?, b?, c?);
        sys::run(&format!("tc filter del dev {a} ingress"))?;
        sys::run(&format!("ip route del {} dev {a}", pods[0].addresses[0]))?;
        sys::run(&map_delete("VIFS", &node.host_ifindex(&pods[0])?.to_ne_bytes()))?;
        sys::run(&format!("ip link set {b} down"))?;
        sys::run(&format!("ip link del {c}"))?;
        let before = node.kernel_state()?;
        let (code, found) = verify()?;
        let expected = ["filter", "link-down", "link-gone", "map-entry", "neighbour", "route"];
        ensure!(code == Some(1) && kinds(&found) == expected, "{found:#}");
        ensure!(found["self_heal"] == false, "{found:#}");
        ensure!(node.kernel_state()? == before, "verify changed the kernel state");
        let table = Command::new(dist::binary("ferrulectl")?).arg("verify").output()?;
        let text = String::from_utf8_lossy(&table.stdout).into_owned();
        ensure!(
            table.status.code() == Some(1) && text.contains("default/a") && text.contains("link-gone"),
            "{text}"
        );
        // The agent detects and counts deviations even with healing off.
        sys::wait_until("the deviation is detected", TIMEOUT, || {
            Ok(node.count("ferrule_deviations_total{kind=\"link-gone\"}")? == 1.0)
        })?;
        // With healing on, all deviations are repaired.
        node.stop_agent()?;
        node.start_agent(&[POD_V4, POD_V6])?;
        wait_until_healed(node, &pods[0], &pods[1])?;
        wait_until_healed(node, &pods[2], &pods[1])?;
        node.kill_agent()?;
        let (code, _) = verify()?;
        ensure!(code == Some(2), "wrong exit code without an agent: {code:?}");
        node.start_again()
    })
    .unwrap();
}

#[test]
fn foreign_filters_are_kept_and_reported() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        // Any program works as a foreign filter; ours passes what it does not drop.
        let ours: Value = serde_json::from_str(&sys::run(&format!("tc -j filter show dev {host} egress"))?)?;
        let all = ours.as_array().into_iter().flatten();
        let id = all.filter_map(|it| it.pointer("/options/prog/id")?.as_u64()).next();
        let id = id.with_context(|| format!("no program in {ours:#}"))?;
        sys::run(&format!("bpftool prog pin id {id} /sys/fs/bpf/theirs"))?;
        sys::run(&format!(
            "tc filter add dev {host} egress prio 9 bpf direct-action object-pinned /sys/fs/bpf/theirs"
        ))?;
        sys::run(&format!("tc filter del dev {host} egress prio 1"))?;
        sys::wait_until("the missing filter is detected", TIMEOUT, || {
            Ok(node.count("ferrule_deviations_total{kind=\"filter\"}")? >= 1.0)
        })?;
        wait_until_healed(node, &pod, &peer)?;
        let filters = sys::run(&format!("tc filter show dev {host} egress"))?;
        ensure!(filters.contains("pref 9") && filters.contains("pref 1 "), "{filters}");
        let (code, found) = verify()?;
        let foreign = found["foreign"].as_array().context("no foreign filters in the output")?;
        let reported = foreign.first().and_then(|it| it["what"].as_str()).unwrap_or_default();
        ensure!(
            code == Some(0)
                && foreign.len() == 1
                && reported.contains("a bpf filter")
                && reported.contains("priority 9"),
            "{found:#}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn changes_by_calls_are_never_reported_as_deviations() {
    with_short_period(|node| {
        let runtime = node.runtime()?;
        let pods =
            (0..32).map(|number| node.pod(&format!("p{number}"))).collect::<anyhow::Result<Vec<_>>>()?;
        for round in 0..4 {
            thread::scope(|scope| {
                let calls: Vec<_> = pods
                    .iter()
                    .map(|pod| {
                        let pod = Pod { container_id: format!("{}{round}", pod.container_id), ..pod.clone() };
                        let runtime = &runtime;
                        scope.spawn(move || runtime.add(&pod).and_then(|_| runtime.del(&pod)))
                    })
                    .collect();
                calls.into_iter().try_for_each(|call| call.join().unwrap())
            })?;
        }
        // Several reconcile rounds over a pod that was attached just before.
        let pod = node.attach("last")?;
        thread::sleep(Duration::from_secs(4));
        runtime.check(&pod)?;
        let (_, metrics) = node.http("/metrics")?;
        let found: Vec<_> =
            metrics.lines().filter(|line| line.starts_with("ferrule_deviations_total{")).collect();
        ensure!(found.is_empty(), "{found:?}");
        Ok(())
    })
    .unwrap();
}

/// Notifications that the kernel dropped for the subscriber of pods' interfaces.
fn lost_notifications() -> anyhow::Result<u64> {
    /// The multicast groups LINK, NEIGH, TC, IPV4_ROUTE, IPV6_ROUTE, IPV4_NETCONF and IPV6_NETCONF.
    const GROUPS: &str = "0180044d";
    let sockets = fs::read_to_string("/proc/thread-self/net/netlink")?;
    // The columns are sk, Eth, Pid, Groups, Rmem, Wmem, Dump, Locks, Drops, Inode.
    let drops = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|line| {
        (*line.get(3)? == GROUPS).then(|| line.get(8).copied().unwrap_or_default().to_owned())
    });
    Ok(drops.with_context(|| format!("no subscriber in:\n{sockets}"))?.parse()?)
}

#[test]
fn damage_is_found_after_lost_notifications() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        ensure!(lost_notifications()? == 0);
        // The agent examines an attachment two seconds after its ADD, without a further notification.
        thread::sleep(Duration::from_secs(4));
        node.signal_agent(Signal::SIGSTOP)?;
        let noise: String = (0..2000).map(|number| format!("link set uplink alias n{number}\n")).collect();
        fs::write("/run/noise", noise)?;
        sys::wait_until("the socket's receive buffer is full", TIMEOUT, || {
            sys::run("ip -batch /run/noise")?;
            Ok(lost_notifications()? > 0)
        })?;
        let before = lost_notifications()?;
        // Affects no packet, hence causes no later notification about the interface.
        sys::run(&format!("ip link set {host} group 77"))?;
        ensure!(lost_notifications()? > before, "the agent gets the notification of the damage");
        node.signal_agent(Signal::SIGCONT)?;
        wait_until_healed(node, &pod, &peer)
    })
    .unwrap();
}

/// How often the agent's threads have waited so far.
fn waits(node: &Node) -> anyhow::Result<u64> {
    let tasks = format!("/proc/{}/task", node.agent_pid().context("no agent is running")?);
    let count = |task: String| -> anyhow::Result<u64> {
        // A thread of the pool may end meanwhile.
        let Ok(status) = fs::read_to_string(format!("{tasks}/{task}/status")) else { return Ok(0) };
        let value = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Ok(value.with_context(|| format!("no count in:\n{status}"))?.trim().parse()?)
    };
    sys::file_names(&tasks)?.into_iter().map(count).sum()
}

#[test]
fn a_burst_of_notifications_does_not_wake_the_agent_for_each() {
    const CHANGES: u64 = 400;
    with_agent(|node| {
        sys::run("ip link add noise type veth peer name other")?;
        // The kernel reports changes of an interface only while it is up.
        sys::run("ip link set noise up")?;
        // Until start-up work has ended.
        thread::sleep(Duration::from_secs(3));
        let before = waits(node)?;
        let batch: String = (0..CHANGES).map(|number| format!("link set noise alias n{number}\n")).collect();
        let file = std::env::temp_dir().join(format!("ferrule-noise-{}", std::process::id()));
        fs::write(&file, batch)?;
        let changed = sys::run(&format!("ip -batch {}", file.display()));
        fs::remove_file(&file)?;
        changed?;
        thread::sleep(Duration::from_secs(1));
        let waits = waits(node)?.saturating_sub(before);
        ensure!(waits < CHANGES / 2, "{waits} waits for {CHANGES} changes of a foreign interface");
        Ok(())
    })
    .unwrap();
}
