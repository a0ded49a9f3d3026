//! Pods go on to be judged while agents come and go.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    time::Duration,
};

use agent_common::{names::POLICY_MAPS, policy::Subject};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{History, Resource, Switch, objects},
    cluster::{Cluster, with_cluster},
    node::{Node, PINS, subject},
    pod::NAMESPACE,
    sys,
};
use serde_json::json;

use super::fixture::{
    LABEL, TIMEOUT, attach, expect_isolated, first, isolate, isolated_with_a_friend, reaches,
    wait_until_reaches,
};

const AGENT: &str = "ferrule-agent";
/// For an answer, with retransmissions.
const WAIT: Duration = Duration::from_secs(5);

/// Takes the API server away for longer than a test, and what a stopped agent has stored of peers, so that
/// the next agent cannot compile policies.
fn take_away(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.api.switch(Switch::Restart { pause_ms: 600_000, history: History::Kept });
    match fs::remove_file("/run/ferrule/watch/all-pods.log") {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => Ok(removed?),
    }
}

/// Starts an agent that may not be ready for a while.
fn start(node: &mut Node, settings: &[(&str, &str)]) -> anyhow::Result<()> {
    node.use_agent(AGENT, settings);
    node.start_again()
}

/// The epoch of what judges the pod behind an interface.
fn epoch(ifindex: u32) -> anyhow::Result<u32> {
    Ok(subject(ifindex)?.epoch)
}

#[test]
fn pods_are_isolated_while_no_agent_runs_and_while_a_new_one_knows_no_policy() {
    with_cluster(&[], |node, cluster| {
        let [a, b, c] = isolated_with_a_friend(node, cluster)?;
        let ifindex = node.host_ifindex(&a)?;
        let before = epoch(ifindex)?;
        node.kill_agent()?;
        expect_isolated(&c, &a)?;
        ensure!(reaches(&b, &a)?, "while no agent runs");
        start(node, &[])?;
        sys::wait_until("the new agent's rows", TIMEOUT, || Ok(epoch(ifindex)? > before))?;
        expect_isolated(&c, &a)?;
        ensure!(reaches(&b, &a)?, "by the rows of the new agent");
        node.stop_agent()?;
        let before = epoch(ifindex)?;
        take_away(cluster)?;
        start(node, &[])?;
        expect_isolated(&c, &a)?;
        ensure!(reaches(&b, &a)?, "while policies cannot be listed");
        ensure!(epoch(ifindex)? == before, "the rows were replaced without lists");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_restored_interface_is_judged_as_the_lost_one_was_before_policies_are_listed() {
    with_cluster(&[], |node, cluster| {
        let [a, b, c] = isolated_with_a_friend(node, cluster)?;
        let lost = node.host_ifindex(&a)?;
        node.stop_agent()?;
        take_away(cluster)?;
        a.run("ip link del eth0")?;
        start(node, &[])?;
        ensure!(node.host_ifindex(&a)? != lost, "the interface is not a new one");
        expect_isolated(&c, &a)?;
        wait_until_reaches(&b, &a, true)
    })
    .unwrap();
}

#[test]
fn an_interface_restored_at_the_second_attempt_is_judged_as_the_lost_one_was() {
    with_cluster(&[], |node, cluster| {
        let [a, b, c] = isolated_with_a_friend(node, cluster)?;
        for is_early in [true, false] {
            let (host, lost, address) = (node.host_ifname(&a)?, node.host_ifindex(&a)?, first(&a)?);
            node.stop_agent()?;
            take_away(cluster)?;
            if is_early {
                // The pod's end stays, and has the name of a new one.
                sys::run(&format!("ip link set {host} netns {}", c.path().display()))?;
            } else {
                // The last step fails.
                sys::run(&format!("ip link del {host}"))?;
                sys::run(&format!("ip route add {address} dev uplink"))?;
            }
            start(node, &[])?;
            sys::wait_until("a repair has failed", TIMEOUT, || {
                Ok(node.count("ferrule_repairs_total{kind=\"link-gone\",outcome=\"failed\"}")? >= 1.0)
            })?;
            if is_early {
                c.run(&format!("ip link del {host}"))?;
            } else {
                sys::run(&format!("ip route del {address} dev uplink"))?;
            }
            wait_until_reaches(&b, &a, true)?;
            ensure!(node.host_ifindex(&a)? != lost, "the interface is not a new one");
            expect_isolated(&c, &a)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn another_capacity_neither_opens_a_pod_nor_cuts_one_off() {
    with_cluster(&[], |node, cluster| {
        let [a, b, c] = isolated_with_a_friend(node, cluster)?;
        node.stop_agent()?;
        take_away(cluster)?;
        let settings = [("FERRULE_MAX_POLICY_RULES", "8192"), ("FERRULE_MAX_POLICY_PEERS", "2048")];
        start(node, &settings)?;
        let shown = sys::run(&format!("bpftool -j map show pinned {PINS}/RULES"))?;
        ensure!(shown.contains("\"max_entries\":8192"), "{shown}");
        expect_isolated(&c, &a)?;
        ensure!(reaches(&b, &a)? && reaches(&a, &c)?, "by copied rows");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_upgrade_from_a_version_with_a_map_of_subjects_keeps_pods_isolated_without_the_api_server() {
    with_cluster(&[], |node, cluster| {
        let [a, b, c] = isolated_with_a_friend(node, cluster)?;
        let pods = [&a, &b, &c].map(|pod| node.host_ifindex(pod));
        let pods = pods.into_iter().collect::<Result<Vec<_>, _>>()?;
        node.stop_agent()?;
        let subjects = pods.iter().map(|it| subject(*it)).collect::<Result<Vec<_>, _>>()?;
        // What an agent of version 5 leaves.
        let earlier = Path::new(PINS).with_file_name("v5");
        fs::rename(PINS, &earlier)?;
        for (map, kind, size) in
            [("VIFS", "hash", 256), ("VIF_COUNTERS", "percpu_hash", 416), ("SUBJECTS", "hash", 20)]
        {
            let path = earlier.join(map);
            if path.exists() {
                fs::remove_file(&path)?;
            }
            let definition = format!("type {kind} key 4 value {size} entries 4096 name {map}");
            sys::run(&format!("bpftool map create {} {definition}", path.display()))?;
        }
        fs::remove_file(earlier.join("VIF_TRAFFIC"))?;
        for (ifindex, packed) in pods.iter().zip(subjects) {
            let Subject { ingress, egress, table, epoch, flags } = packed.unpack();
            let bytes = |numbers: &[u32]| -> String {
                let all = numbers.iter().flat_map(|it| it.to_ne_bytes());
                all.map(|byte| byte.to_string()).collect::<Vec<_>>().join(" ")
            };
            let (key, value) = (bytes(&[*ifindex]), bytes(&[ingress, egress, table, epoch, flags]));
            let map = earlier.join("SUBJECTS");
            sys::run(&format!("bpftool map update pinned {} key {key} value {value}", map.display()))?;
        }
        take_away(cluster)?;
        start(node, &[])?;
        ensure!(!earlier.exists(), "the old maps are still pinned");
        expect_isolated(&c, &a)?;
        ensure!(reaches(&b, &a)? && reaches(&a, &c)?, "by the subjects of the earlier version");
        Ok(())
    })
    .unwrap();
}

#[test]
fn another_capacity_keeps_a_judged_flow_in_which_the_server_speaks_first() {
    with_cluster(&[], |node, cluster| {
        let a = attach(node, cluster, "a", &[LABEL])?;
        let b = attach(node, cluster, "b", &[("role", "friend")])?;
        // The server may begin nothing: without the flow, what it sends is denied.
        let (key, value) = LABEL;
        let friend = json!([{"podSelector": {"matchLabels": {"role": "friend"}}}]);
        let spec = json!({"podSelector": {"matchLabels": {key: value}},
            "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": friend}]});
        let policy = objects::network_policy(NAMESPACE, "p", spec);
        cluster.api.create(Resource::NetworkPolicies, policy)?;
        wait_until_reaches(&a, &b, false)?;
        let to = SocketAddr::new(first(&a)?.parse()?, 80);
        let listener = sys::bind_in(a.path(), to, TcpListener::bind)?;
        let mut client = sys::in_netns(b.path(), || Ok(TcpStream::connect_timeout(&to, WAIT)?))?;
        let (mut server, _) = listener.accept()?;
        [&client, &server].into_iter().try_for_each(|it| it.set_read_timeout(Some(WAIT)))?;
        for _ in 0..3 {
            client.write_all(b"echo")?;
            server.read_exact(&mut [0; 4])?;
            server.write_all(b"echo")?;
            client.read_exact(&mut [0; 4])?;
        }
        node.stop_agent()?;
        take_away(cluster)?;
        start(node, &[("FERRULE_MAX_POLICY_FLOWS", "8192"), ("FERRULE_MAX_POLICY_RULES", "8192")])?;
        let shown = sys::run(&format!("bpftool -j map show pinned {PINS}/POLICY_FLOWS"))?;
        ensure!(shown.contains("\"max_entries\":8192"), "{shown}");
        server.write_all(b"news")?;
        client.read_exact(&mut [0; 4]).context("the flow was cut")?;
        client.write_all(b"echo")?;
        server.read_exact(&mut [0; 4])?;
        ensure!(!reaches(&a, &b)?, "the pod begins a flow");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_upgrade_from_a_version_without_policies_cuts_no_pod_off_and_then_enforces() {
    with_cluster(&[], |node, cluster| {
        let a = attach(node, cluster, "a", &[LABEL])?;
        let b = attach(node, cluster, "b", &[])?;
        wait_until_reaches(&b, &a, true)?;
        node.stop_agent()?;
        // What an agent of version 4 leaves: other maps than this version's.
        let earlier = Path::new(PINS).with_file_name("v4");
        fs::rename(PINS, &earlier)?;
        for map in sys::file_names(&earlier.to_string_lossy())?
            .iter()
            .filter(|it| POLICY_MAPS.contains(&it.as_str()))
        {
            fs::remove_file(earlier.join(map))?;
        }
        isolate(cluster, "p", &json!([]))?;
        cluster.api.switch(Switch::Deny { resource: Resource::NetworkPolicies, token: None });
        start(node, &[])?;
        ensure!(!earlier.exists(), "the old maps are still pinned");
        for _ in 0..3 {
            ensure!(reaches(&b, &a)? && reaches(&a, &b)?, "before policies are listed");
        }
        cluster.api.switch(Switch::DenyNothing {});
        wait_until_reaches(&b, &a, false)?;
        ensure!(reaches(&a, &b)?, "only what the pod receives is judged");
        cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, "p")?;
        wait_until_reaches(&b, &a, true)
    })
    .unwrap();
}

#[test]
fn policies_that_are_switched_off_let_everything_pass_and_are_not_watched() {
    with_cluster(&[], |node, cluster| {
        let a = attach(node, cluster, "a", &[LABEL])?;
        let b = attach(node, cluster, "b", &[])?;
        isolate(cluster, "p", &json!([]))?;
        wait_until_reaches(&b, &a, false)?;
        node.stop_agent()?;
        cluster.api.clear_requests();
        start(node, &[("FERRULE_POLICY", "off")])?;
        wait_until_reaches(&b, &a, true)?;
        let asked =
            cluster.api.requests().into_iter().filter(|it| it.path.contains("networkpolicies")).count();
        ensure!(asked == 0, "{asked} requests for policies");
        node.stop_agent()?;
        start(node, &[("FERRULE_POLICY", "enforce")])?;
        wait_until_reaches(&b, &a, false)
    })
    .unwrap();
}
