//! What others do to pods' interfaces is put right without a call from the runtime, or told.

mod node;
mod qdisc;

use std::{fs, process::Command, thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    dist,
    node::{NODE_V4, Node, PINS, POD_V4, POD_V6, on_node, with_agent, with_agent_that_leaves_damage},
    pod::Pod,
    sys,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// For what notifications tell, and for what the shortest period finds.
const SOON: Duration = Duration::from_secs(30);

/// A node whose agent finds in a second what nobody tells it.
fn with_short_period<T: Send>(run: impl FnOnce(&mut Node) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    on_node(|node| {
        let ranges = ["--pod-cidr", POD_V4, "--pod-cidr", POD_V6];
        node.start_agent_with(&[&["--standalone", "--reconcile-period", "1"], &ranges[..]].concat())?;
        run(node)
    })
}

/// Exit code and answer of `ferrulectl verify -o json`.
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

/// Waits until a pod is whole again, and packets flow both ways.
fn wait_until_healed(node: &Node, pod: &Pod, peer: &Pod) -> anyhow::Result<()> {
    let runtime = node.runtime()?;
    sys::wait_until("it is put right", SOON, || {
        runtime.check(pod)?;
        let (code, found) = verify()?;
        ensure!(code == Some(0), "{found:#}");
        Ok(true)
    })?;
    for address in &pod.addresses {
        peer.ping(&address.to_string())?;
    }
    pod.ping(NODE_V4)?;
    let first = pod.addresses.first().context("it has no address")?;
    sys::run(&format!("ping -n -c 1 -W 2 {first}")).map(drop)
}

fn map_delete(map: &str, key: &[u8]) -> String {
    let key: Vec<_> = key.iter().map(u8::to_string).collect();
    format!("bpftool map delete pinned {PINS}/{map} key {}", key.join(" "))
}

fn ifindex(node: &Node, pod: &Pod) -> anyhow::Result<u32> {
    let attachments = node.attachments()?;
    let of_pod = |it: &&Value| it["container_id"] == pod.container_id.as_str();
    let index = attachments.iter().find(of_pod).and_then(|it| it["host_ifindex"].as_u64());
    Ok(u32::try_from(index.context("it is not attached")?)?)
}

#[test]
fn what_others_change_on_a_pods_interface_is_put_right_without_a_call() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        sys::run("ip link add br0 type bridge")?;
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
            // Each is told of by itself: the waits between repairs of one interface are not what is tried here.
            node.stop_agent()?;
            node.start_again()?;
            wait_until_healed(node, &pod, &peer)?;
            sys::run(&damage)?;
            let noticed = format!("ferrule_deviations_total{{kind=\"{kind}\"}}");
            sys::wait_until("it is noticed", SOON, || Ok(node.metric(&noticed)? >= 1.0))
                .with_context(|| damage.clone())?;
            wait_until_healed(node, &pod, &peer).with_context(|| damage.clone())?;
            let repaired = format!("ferrule_repairs_total{{kind=\"{kind}\",outcome=\"repaired\"}}");
            sys::wait_until("it is counted", SOON, || Ok(node.metric(&repaired)? >= 1.0))
                .with_context(|| damage.clone())?;
            ensure!(node.host_ifname(&pod)? == host);
            if kind == "route" {
                sys::run(&format!("ip route flush {v4} dev uplink"))?;
            }
        }
        ensure!(node.log().contains("not as it should be"), "it is said");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_interface_that_is_deleted_under_a_pod_that_lives_is_made_anew_as_it_was() {
    with_agent(|node| {
        let empty = node.kernel_state()?;
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let seen =
            || pod.run("ip -j addr show eth0").and_then(|text| Ok(serde_json::from_str::<Value>(&text)?));
        let (before, index) = (seen()?, ifindex(node, &pod)?);
        let host = node.host_ifname(&pod)?;
        sys::run(&format!("ip link del {host}"))?;
        wait_until_healed(node, &pod, &peer)?;
        let now = seen()?;
        ensure!(now[0]["address"] == before[0]["address"] && now[0]["mtu"] == before[0]["mtu"], "{now:#}");
        ensure!(node.host_ifname(&pod)? == host && ifindex(node, &pod)? != index);
        ensure!(node.metric("ferrule_repairs_total{kind=\"link-gone\",outcome=\"repaired\"}")? == 1.0);
        // The registry has it: also the next agent.
        node.kill_agent()?;
        node.start_again()?;
        wait_until_healed(node, &pod, &peer)?;
        // By the pod itself, this time.
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
fn an_interface_that_was_deleted_while_no_agent_ran_is_there_before_the_next_one_serves() {
    with_agent_that_leaves_damage(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        node.kill_agent()?;
        sys::run(&format!("ip link del {host}"))?;
        node.start_again()?;
        node.runtime()?.check(&pod)?;
        peer.ping(&pod.addresses[0].to_string())?;
        let next = node.attach("next")?;
        ensure!(!pod.addresses.contains(&next.addresses[0]), "its addresses are its own still");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_interface_that_went_with_its_namespace_is_left_to_del() {
    with_short_period(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        pod.clone().remove()?;
        sys::wait_until("the interface goes", SOON, || Ok(!sys::run("ip -o link show")?.contains(&host)))?;
        let (code, found) = verify()?;
        ensure!(code == Some(0), "{found:#}");
        node.runtime()?.del(&pod)?;
        node.runtime()?.check(&peer)
    })
    .unwrap();
}

#[test]
fn entries_of_the_maps_are_put_right_by_the_period() {
    with_short_period(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let index = ifindex(node, &pod)?;
        let std::net::IpAddr::V4(v4) = pod.addresses[0] else { anyhow::bail!("no IPv4") };
        let address = v4.to_ipv6_mapped().octets();
        for damage in [
            map_delete("VIFS", &index.to_ne_bytes()),
            map_delete("ENDPOINTS", &address),
            map_delete("VIF_COUNTERS", &index.to_ne_bytes()),
            // Where packets of nobody are counted.
            map_delete("VIF_COUNTERS", &[0; 4]),
        ] {
            let before = node.metric("ferrule_deviations_total{kind=\"map-entry\"}")?;
            sys::run(&damage)?;
            sys::wait_until("it is noticed", SOON, || {
                Ok(node.metric("ferrule_deviations_total{kind=\"map-entry\"}")? > before)
            })?;
            wait_until_healed(node, &pod, &peer).with_context(|| damage.clone())?;
        }
        // And one of nobody goes.
        let key = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 244, 0, 200].map(|it: u8| it.to_string());
        let value = "1 0 0 0 2 0 0 0 0 1 0 0";
        sys::run(&format!("bpftool map update pinned {PINS}/ENDPOINTS key {} value {value}", key.join(" ")))?;
        sys::wait_until("it is removed", SOON, || {
            Ok(node.metric("ferrule_repairs_total{kind=\"stray-map-entry\",outcome=\"repaired\"}")? >= 1.0)
        })?;
        wait_until_healed(node, &pod, &peer)
    })
    .unwrap();
}

#[test]
fn an_interface_with_the_stamp_of_nobody_goes_and_one_without_its_stamp_is_not_touched() {
    with_short_period(|node| {
        let pod = node.attach("a")?;
        sys::run("ip link add frorphan type veth peer name frorphan1")?;
        sys::run("ip link set frorphan alias ferrule:cluster:deadbeef:eth0")?;
        sys::wait_until("it is deleted", SOON, || Ok(!sys::run("ip -o link show")?.contains("frorphan")))?;
        let host = node.host_ifname(&pod)?;
        sys::run(&format!("ip link set {host} alias somebody:else down"))?;
        sys::wait_until("it is noticed", SOON, || {
            Ok(node.metric("ferrule_deviations_total{kind=\"link-stamp\"}")? >= 1.0)
        })?;
        thread::sleep(Duration::from_secs(3));
        ensure!(sys::run(&format!("ip link show {host}"))?.contains("state DOWN"), "it was touched");
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["link-stamp"], "{found:#}");
        let told = node.log().matches("kind=\"link-stamp\"").count();
        ensure!(told == 1, "it is said once, not {told} times");
        sys::run(&format!("ip link set {host} alias ferrule:cluster:{}:eth0", pod.container_id))?;
        sys::wait_until("it is put right", SOON, || Ok(node.runtime()?.check(&pod).is_ok()))
    })
    .unwrap();
}

#[test]
fn verify_tells_every_deviation_and_changes_nothing() {
    with_agent_that_leaves_damage(|node| {
        let pods = [node.attach("a")?, node.attach("b")?, node.attach("c")?];
        let (code, found) = verify()?;
        ensure!(code == Some(0) && found["attachments"] == 3 && kinds(&found).is_empty(), "{found:#}");
        let [a, b, c] = [0, 1, 2].map(|number| node.host_ifname(&pods[number]));
        let (a, b, c) = (a?, b?, c?);
        sys::run(&format!("tc filter del dev {a} ingress"))?;
        sys::run(&format!("ip route del {} dev {a}", pods[0].addresses[0]))?;
        sys::run(&map_delete("VIFS", &ifindex(node, &pods[0])?.to_ne_bytes()))?;
        sys::run(&format!("ip link set {b} down"))?;
        sys::run(&format!("ip link del {c}"))?;
        let before = node.kernel_state()?;
        let (code, found) = verify()?;
        let expected = ["filter", "link-down", "link-gone", "map-entry", "neighbour", "route"];
        ensure!(code == Some(1) && kinds(&found) == expected, "{found:#}");
        ensure!(found["self_heal"] == false, "{found:#}");
        ensure!(node.kernel_state()? == before, "it only looks");
        let table = Command::new(dist::binary("ferrulectl")?).arg("verify").output()?;
        let text = String::from_utf8_lossy(&table.stdout).into_owned();
        ensure!(
            table.status.code() == Some(1) && text.contains("default/a") && text.contains("link-gone"),
            "{text}"
        );
        // It is noticed and counted all the same.
        sys::wait_until("it is noticed", SOON, || {
            Ok(node.metric("ferrule_deviations_total{kind=\"link-gone\"}")? == 1.0)
        })?;
        // With healing on, all of it is put right.
        node.stop_agent()?;
        node.start_agent(&[POD_V4, POD_V6])?;
        wait_until_healed(node, &pods[0], &pods[1])?;
        wait_until_healed(node, &pods[2], &pods[1])?;
        node.kill_agent()?;
        let (code, _) = verify()?;
        ensure!(code == Some(2), "who cannot be asked knows nothing: {code:?}");
        node.start_again()
    })
    .unwrap();
}

#[test]
fn filters_of_others_stay_and_are_shown() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        // Any program will do; ours lets pass what it does not stop.
        let ours: Value = serde_json::from_str(&sys::run(&format!("tc -j filter show dev {host} egress"))?)?;
        let all = ours.as_array().into_iter().flatten();
        let id = all.filter_map(|it| it.pointer("/options/prog/id")?.as_u64()).next();
        let id = id.with_context(|| format!("no program in {ours:#}"))?;
        sys::run(&format!("bpftool prog pin id {id} /sys/fs/bpf/theirs"))?;
        sys::run(&format!(
            "tc filter add dev {host} egress prio 9 bpf direct-action object-pinned /sys/fs/bpf/theirs"
        ))?;
        sys::run(&format!("tc filter del dev {host} egress prio 1"))?;
        sys::wait_until("ours is missed", SOON, || {
            Ok(node.metric("ferrule_deviations_total{kind=\"filter\"}")? >= 1.0)
        })?;
        wait_until_healed(node, &pod, &peer)?;
        let filters = sys::run(&format!("tc filter show dev {host} egress"))?;
        ensure!(filters.contains("pref 9") && filters.contains("pref 1 "), "{filters}");
        let (code, found) = verify()?;
        let foreign = found["foreign"].as_array().context("no foreign")?;
        let told = foreign.first().and_then(|it| it["what"].as_str()).unwrap_or_default();
        ensure!(
            code == Some(0)
                && foreign.len() == 1
                && told.contains("a bpf filter")
                && told.contains("priority 9"),
            "{found:#}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_fight_with_another_program_is_bounded_and_told_once() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        let host = node.host_ifname(&pod)?;
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_secs(12) {
            // It may be missing already.
            let _ = sys::run(&format!("tc qdisc del dev {host} clsact"));
            thread::sleep(Duration::from_millis(20));
        }
        let repairs = node.metric("ferrule_repairs_total{kind=\"filter\",outcome=\"repaired\"}")?
            + node.metric("ferrule_repairs_total{kind=\"filter\",outcome=\"failed\"}")?;
        // Two filters each time; waits of 0.5, 1, 2, 4 and 8 s.
        ensure!((2.0..=14.0).contains(&repairs), "{repairs} repairs in 12 s");
        let log = node.log();
        let told = log.matches("is there another program").count();
        ensure!(told <= 1 && log.matches("not as it should be").count() <= 14, "{log}");
        sys::wait_until("it is put right in the end", Duration::from_secs(90), || {
            Ok(node.runtime()?.check(&pod).is_ok())
        })
    })
    .unwrap();
}

#[test]
fn what_calls_do_is_never_taken_for_damage() {
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
        // Rounds and looks of their own at what was attached just before.
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

#[test]
fn damage_of_which_the_notification_was_lost_is_found_all_the_same() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        node.signal_agent(Signal::SIGSTOP)?;
        // More than the kernel keeps for a socket.
        let noise: String = (0..2000).map(|number| format!("link set uplink alias n{number}\n")).collect();
        fs::write("/run/noise", noise)?;
        sys::run("ip -batch /run/noise")?;
        sys::run(&format!("tc qdisc del dev {host} clsact"))?;
        node.signal_agent(Signal::SIGCONT)?;
        wait_until_healed(node, &pod, &peer)
    })
    .unwrap();
}
