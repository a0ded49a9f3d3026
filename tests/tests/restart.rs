//! Pods' packets, addresses and results survive crashes and restarts of the agent.

use std::{fs, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, Node, PINS, POD_V4, POD_V6, map_delete, with_agent, with_agent_without_healing},
    pod::Pod,
    probe::Probe,
    sys,
};
use serde_json::Value;

/// Continuous streams from one pod to another, in each family.
fn streams(from: &Pod, to: &Pod) -> anyhow::Result<Vec<Probe>> {
    to.addresses.iter().map(|address| Probe::start(from.path(), to.path(), *address)).collect()
}

fn expect_flow(probes: &[Probe], when: &str) -> anyhow::Result<()> {
    probes.iter().try_for_each(|probe| probe.expect_flow(when))
}

#[test]
fn packets_flow_while_the_agent_is_dead_and_replaced() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let probes = streams(&a, &b)?;
        expect_flow(&probes, "before the first crash")?;
        for _ in 0..3 {
            node.kill_agent()?;
            expect_flow(&probes, "while no agent runs")?;
            node.start_again()?;
            expect_flow(&probes, "through the new agent's programs")?;
        }
        probes.into_iter().try_for_each(|probe| probe.end()?.expect_all())
    })
    .unwrap();
}

/// The IDs of the node's programs in the kernel, by name.
fn programs() -> anyhow::Result<Vec<(String, u64)>> {
    let names = ["from_pod", "to_pod", "from_tunnel", "from_uplink", "to_tunnel", "to_link", "set_subject"];
    let pinned = |name: &str| -> anyhow::Result<(String, u64)> {
        let shown = sys::run(&format!("bpftool -j prog show pinned {PINS}/{name}"))?;
        let shown: Value = serde_json::from_str(&shown)?;
        Ok((name.to_owned(), shown.get("id").and_then(Value::as_u64).context("no ID")?))
    };
    names.into_iter().map(pinned).collect()
}

#[test]
fn restarted_agent_uses_the_verified_programs_of_its_predecessor() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let first = programs()?;
        let attached = || sys::run("bpftool net");
        let before = attached()?;
        for _ in 0..2 {
            node.kill_agent()?;
            node.start_again()?;
            ensure!(programs()? == first && attached()? == before, "the programs are others");
        }
        let c = node.attach("c")?;
        for to in [&b, &c] {
            a.ping(&to.addresses[0].to_string())?;
        }
        node.ctl(&["flows", "--sampling", "1"])?;
        node.kill_agent()?;
        node.start_again()?;
        let sampling = node.ctl(&["flows", "--sampling", "off"])?;
        ensure!(
            sampling.contains("before: no flow is recorded"),
            "the sampling outlives its agent: {sampling}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn programs_are_verified_again_for_another_setting_and_other_maps() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let probes = streams(&a, &b)?;
        let differ = |before: &[(String, u64)], why: &str| {
            let now = programs()?;
            ensure!(now.iter().zip(before).all(|(now, before)| now.1 != before.1), "{why}: {now:?}");
            expect_flow(&probes, why)?;
            anyhow::Ok(now)
        };
        let first = programs()?;
        node.kill_agent()?;
        let flags = ["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6, "--allow-dhcp-servers"];
        node.start_agent_with(&flags)?;
        let second = differ(&first, "another setting")?;
        node.kill_agent()?;
        fs::remove_file(format!("{PINS}/to_pod"))?;
        node.start_again()?;
        let third = differ(&second, "a program without a pin")?;
        node.kill_agent()?;
        fs::remove_file(format!("{PINS}/EVENTS"))?;
        node.start_again()?;
        differ(&third, "another map")?;
        node.runtime()?.check(&a)?;
        probes.into_iter().try_for_each(|probe| probe.end()?.expect_all())
    })
    .unwrap();
}

#[test]
fn crash_loses_no_attachment_and_duplicates_no_address() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let a = node.attach("a")?;
        let gone = node.attach("gone")?;
        runtime.del(&gone)?;
        let before = node.attachments()?;
        node.kill_agent()?;
        node.start_again()?;
        ensure!(node.attachments()?.len() == 1);
        let same = |key: &str| node.attachments().map(|now| now[0][key] == before[0][key]);
        ensure!(same("addresses")? && same("host_ifindex")? && same("created_at_ms")?);
        runtime.check(&a)?;
        ensure!(
            runtime.add(&a)?["ips"][0]["address"] == "10.244.0.2/32",
            "a repeated ADD returned another result"
        );
        let b = node.attach("b")?;
        ensure!(!a.addresses.contains(&b.addresses[0]));
        ensure!(
            !gone.addresses.contains(&b.addresses[0]),
            "a released address was allocated during its cooldown"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn counters_continue_after_a_restart() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let egress = || node_egress(node.attachments()?.first());
        a.ping(&b.addresses[0].to_string())?;
        let before = egress()?;
        ensure!(before > 0);
        node.kill_agent()?;
        node.start_again()?;
        a.ping(&b.addresses[0].to_string())?;
        let after = node_egress(node.attachments()?.first())?;
        ensure!(after > before, "{before} then {after}");
        Ok(())
    })
    .unwrap();
}

fn node_egress(attachment: Option<&serde_json::Value>) -> anyhow::Result<u64> {
    let counters = attachment.and_then(|it| it.get("counters")).context("no counters")?;
    counters.get("egress_packets").and_then(serde_json::Value::as_u64).context("no egress")
}

#[test]
fn start_releases_vanished_attachments_and_ignores_foreign_interfaces() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        sys::run("ip link add stranger type veth peer name stranger1")?;
        sys::run("ip link set stranger alias other:owner")?;
        // Remains of an interrupted ADD: a stamped interface without an attachment.
        sys::run("ip link add frorphan type veth peer name frorphan1")?;
        sys::run("ip link set frorphan alias ferrule:cluster:deadbeef:eth0")?;
        // Remains of an ADD before the stamp, and of an interrupted DEL: interfaces in the groups UNSTAMPED
        // and RETIRED.
        for (name, group) in [("frunborn", 0x6665_7273), ("frdead", 0x6665_7272)] {
            sys::run(&format!("ip link add {name} group {group} type veth peer name {name}1"))?;
        }
        node.kill_agent()?;
        let name = sys::run("ip -o link show")?;
        let line = name.lines().find(|line| line.contains(&a.container_id)).context("no interface of a")?;
        let ifname = line.split([' ', '@']).nth(1).context("no name")?;
        sys::run(&format!("ip link del {ifname}"))?;
        // Its namespace ends too; a live pod would get its interface back.
        a.clone().remove()?;
        node.start_again()?;
        let links = sys::run("ip -o link show")?;
        ensure!(links.contains("stranger:") || links.contains("stranger@"), "{links}");
        for gone in ["frorphan", "frunborn", "frdead"] {
            ensure!(!links.contains(gone), "{gone} is left: {links}");
        }
        let left = node.attachments()?;
        ensure!(left.len() == 1 && left[0]["container_id"] == b.container_id.as_str(), "{left:#?}");
        runtime.check(&b)?;
        runtime.del(&a)
    })
    .unwrap();
}

#[test]
fn stale_socket_is_replaced_and_pin_of_another_layout_is_refused() {
    with_agent(|node| {
        node.kill_agent()?;
        ensure!(ferrule_tests::node::socket().exists(), "the crash removed the socket");
        node.start_again()?;
        node.stop_agent()?;
        fs::remove_file(format!("{PINS}/VIFS"))?;
        sys::run(&format!("bpftool map create {PINS}/VIFS type hash key 4 value 64 entries 16 name VIFS"))?;
        let error =
            node.start_again().map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
        ensure!(error.contains("values of 64") && error.contains("values of 272"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn bpftool_shows_the_pod_of_an_interface() {
    with_agent(|node| {
        let a = node.attach("web-0")?;
        let dump = sys::run(&format!("bpftool map dump pinned {PINS}/VIFS"))?;
        for expected in
            ["\"ifindex\"", "\"pod\": \"default/web-0\"", "\"ifname\": \"eth0\"", "\"ipv4\": [10,244,0,2"]
        {
            ensure!(dump.contains(expected), "{expected} is missing in {dump}");
        }
        ensure!(dump.contains(&a.uid), "{dump}");
        let net = sys::run("bpftool net")?;
        ensure!(net.contains("from_pod") && net.contains("to_pod"), "{net}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn spoofed_packets_are_dropped_and_counted_for_the_sender_only() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let to = b.addresses[0].to_string();
        let drops = |pod: &Pod| {
            let mut drops = node.drops(pod)?;
            // The kernel of a starting pod sends a few MLD reports.
            drops.remove("multicast");
            anyhow::Ok(drops)
        };
        ensure!(drops(&a)?.is_empty(), "{:?}", drops(&a)?);
        a.run("ip link set eth0 address 02:00:00:00:00:66")?;
        ensure!(a.ping(&to).is_err(), "a packet with a foreign MAC passed");
        ensure!(drops(&a)?.keys().eq(["spoofed_mac"]), "{:?}", drops(&a)?);
        ensure!(drops(&b)?.is_empty(), "{:?}", drops(&b)?);
        b.ping(NODE_V4).map(drop)
    })
    .unwrap();
}

#[test]
fn interface_without_a_vifs_entry_passes_nothing() {
    with_agent_without_healing(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let ifindex = node.attachments()?[0]["host_ifindex"].as_u64().context("no ifindex")?;
        sys::run(&map_delete("VIFS", &u32::try_from(ifindex)?.to_ne_bytes()))?;
        // A failed ping alone could have another cause.
        let mut dropped = node.unknown_interface_drops()?;
        let mut is_dropped = |node: &Node, ping: anyhow::Result<String>| {
            let now = node.unknown_interface_drops()?;
            ensure!(ping.is_err() && now > dropped, "{dropped} drops, then {now}: {ping:?}");
            dropped = now;
            Ok(())
        };
        is_dropped(node, a.ping(&b.addresses[0].to_string()))?;
        is_dropped(node, a.ping(NODE_V4))?;
        // Delivery to the pod is blocked too, from the host and from other pods.
        let ingress = |node: &Node| {
            anyhow::Ok(node.attachments()?[0]["counters"]["ingress_packets"].as_u64().unwrap_or_default())
        };
        let before = ingress(node)?;
        is_dropped(node, b.ping(&a.addresses[0].to_string()))?;
        is_dropped(node, sys::run(&format!("ping -n -c 1 -W 1 {}", a.addresses[0])))?;
        ensure!(ingress(node)? == before, "a packet was delivered");
        let check = node.runtime()?.check(&a).map_or_else(|error| error.to_string(), |()| String::new());
        ensure!(check.contains("VIFS"), "{check}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ebpf_programs_log_to_the_agents_log_if_enabled() {
    with_agent(|node| {
        let a = node.attach("a")?;
        a.run("ip link set eth0 address 02:00:00:00:00:66")?;
        let try_to_pass = || a.ping(NODE_V4);
        ensure!(
            try_to_pass().is_err() && !node.log().contains("spoofed_mac"),
            "eBPF logging is on by default"
        );
        node.stop_agent()?;
        node.start_again_with(&["--ebpf-log", "debug"])?;
        sys::wait_until("the drop is in the log", std::time::Duration::from_secs(10), || {
            // The pod's kernel does not resolve its gateway again on every attempt.
            ensure!(try_to_pass().is_err(), "a packet with a foreign MAC passed");
            Ok(node.log().contains("egress dropped, spoofed_mac"))
        })
    })
    .unwrap();
}

#[test]
fn lost_maps_are_filled_before_the_programs_are_replaced() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let probes = streams(&a, &b)?;
        expect_flow(&probes, "before the maps are lost")?;
        node.stop_agent()?;
        // As after a layout change: the filters still hold the old maps, and the new maps are empty.
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        expect_flow(&probes, "through the old maps")?;
        node.start_again()?;
        expect_flow(&probes, "through the new maps")?;
        probes.into_iter().try_for_each(|probe| probe.end()?.expect_all())?;
        node.runtime()?.check(&b)
    })
    .unwrap();
}

/// "ferr", the link group of retired interfaces.
const RETIRED: u32 = 0x6665_7272;

#[test]
fn bad_entries_interfaces_and_files_do_not_prevent_the_start() {
    with_agent(|node| {
        let a = node.attach("a")?;
        let ifindex = node.host_ifindex(&a)?;
        node.stop_agent()?;
        node.use_agent("ferrule-agent", &[("FERRULE_MAX_VIFS", "1")]);
        node.start_again()?;
        ensure!(node.metric("ferrule_registry_start_failures_total")? == 0.0);
        node.kill_agent()?;
        // A stray entry takes the only place in the map.
        sys::run(&map_delete("VIFS", &ifindex.to_ne_bytes()))?;
        let value = vec!["0"; 272].join(" ");
        sys::run(&format!("bpftool map update pinned {PINS}/VIFS key 255 255 255 0 value {value}"))?;
        // The kernel cannot delete a group that contains the loopback interface.
        sys::run(&format!("ip link set lo group {RETIRED}"))?;
        fs::write("/run/ferrule/deferred", "")?;
        node.start_again()?;
        ensure!(node.metric("ferrule_registry_start_failures_total")? == 3.0, "{}", node.log());
        let log = node.log();
        for expected in [
            "cannot write the map entries of an attachment",
            "cannot delete the interfaces that an earlier agent left",
            "starting without the remaining deferred DELs",
        ] {
            ensure!(log.contains(expected), "{expected:?} is missing in {log}");
        }
        ensure!(node.attachments()?.len() == 1);
        sys::wait_until("healing has written the entry", Duration::from_secs(20), || {
            Ok(node.runtime()?.check(&a).is_ok())
        })?;
        a.ping(NODE_V4)?;
        sys::run("ip link set lo group 0")?;
        fs::remove_file("/run/ferrule/deferred")?;
        node.runtime()?.del(&a)
    })
    .unwrap();
}

#[test]
fn addresses_of_an_interface_that_cannot_be_rebuilt_are_not_allocated_while_it_exists() {
    with_agent(|node| {
        let a = node.attach("a")?;
        ensure!(a.addresses[0].to_string() == "10.244.0.2", "{:?}", a.addresses);
        // A running agent would take the interface for a stray.
        node.kill_agent()?;
        sys::run("ip link add frunknown up type veth peer name frunknown1")?;
        sys::run("ip link set frunknown alias ferrule:cluster:deadbeef:eth0")?;
        // Several addresses of a family: nothing says which one belongs to the pod. One more than an ADD
        // tries, which fails for an address to which the node has a route.
        for last in 3..=7 {
            sys::run(&format!("ip route add 10.244.0.{last} dev frunknown proto 70"))?;
        }
        fs::remove_dir_all("/run/ferrule/attachments")?;
        node.start_again_with(&["--reconcile-period", "1"])?;
        ensure!(node.metric("ferrule_registry_unknown_interfaces")? == 1.0);
        let b = node.attach("b")?;
        ensure!(b.addresses[0].to_string() == "10.244.0.8", "{:?}", b.addresses);
        ensure!(!node.log().contains("the node has a foreign route to an address from the IPAM"));
        sys::run("ip link del frunknown")?;
        sys::wait_until("the agent notices that the interface is gone", Duration::from_secs(20), || {
            Ok(node.metric("ferrule_registry_unknown_interfaces")? == 0.0)
        })
    })
    .unwrap();
}

#[test]
fn deferred_del_that_was_not_removed_spares_a_rebuilt_attachment_of_the_same_container() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let mut pod = node.attach("restarted")?;
        let file = format!("/run/ferrule/deferred/cluster:{}:eth0", pod.container_id);
        node.kill_agent()?;
        runtime.del(&pod)?;
        let text = fs::read(&file)?;
        node.start_again()?;
        pod.attached(&runtime.add(&pod)?)?;
        node.kill_agent()?;
        fs::write(&file, text)?;
        fs::remove_dir_all("/run/ferrule/attachments")?;
        node.start_again()?;
        ensure!(node.attachments()?.len() == 1, "the pod was detached");
        runtime.check(&pod)?;
        pod.ping(NODE_V4).map(drop)
    })
    .unwrap();
}
