//! Pods reach each other and the node, over both families.

use anyhow::Context as _;
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, POD_V4, POD_V6, UPLINK_MTU, on_node, with_agent},
    traffic,
};

const MEGABYTE: u64 = 1 << 20;

#[test]
fn pods_ping_each_other_and_the_node() {
    with_agent(|node| {
        let pods = [node.attach("a")?, node.attach("b")?, node.attach("c")?];
        for from in &pods {
            for to in pods.iter().filter(|to| to.name != from.name) {
                for address in &to.addresses {
                    from.ping(&address.to_string())?;
                }
            }
            from.ping(NODE_V4)?;
            from.ping(NODE_V6)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pods_stream_to_each_other_and_to_the_node() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let home = std::path::PathBuf::from("/proc/thread-self/ns/net");
        for address in &b.addresses {
            traffic::stream(a.path(), b.path(), *address, 64 * MEGABYTE)?;
        }
        for address in [NODE_V4, NODE_V6] {
            traffic::stream(a.path(), &home, address.parse()?, 16 * MEGABYTE)?;
        }
        for address in &a.addresses {
            traffic::stream(&home, a.path(), *address, 16 * MEGABYTE).context("from the node")?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_sees_a_router_and_not_a_neighbour() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        for (address, ttl) in b.addresses.iter().zip(["ttl=63", "ttl=63"]) {
            let ping = a.ping(&address.to_string())?;
            anyhow::ensure!(ping.contains(ttl), "a hop is taken off on the way: {ping}");
            // At its last hop, a packet goes to the stack, which says so to the pod.
            let last = a
                .command("ping")?
                .args(["-n", "-c", "1", "-W", "2", "-t", "1", &address.to_string()])
                .output()?;
            let text = String::from_utf8_lossy(&last.stdout).into_owned();
            anyhow::ensure!(text.contains("Time to live exceeded") || text.contains("Hop limit"), "{text}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pain_20_a_pod_gets_the_uplinks_mtu() {
    with_agent(|node| {
        let a = node.attach("a")?;
        let link = a.run("ip -o link show eth0")?;
        anyhow::ensure!(link.contains(&format!("mtu {UPLINK_MTU}")), "{link}");
        // The uplink's changes, and so do new pods'.
        ferrule_tests::sys::run("ip link set uplink mtu 1400")?;
        ferrule_tests::sys::wait_until("the agent has seen it", std::time::Duration::from_secs(5), || {
            Ok(node.log().contains("the uplink's MTU has changed"))
        })?;
        let b = node.attach("b")?;
        let link = b.run("ip -o link show eth0")?;
        anyhow::ensure!(link.contains("mtu 1400"), "{link}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn pain_23_addresses_are_usable_at_once() {
    with_agent(|node| {
        let a = node.attach("a")?;
        let addresses = a.run("ip -o addr show dev eth0")?;
        anyhow::ensure!(!addresses.contains("tentative"), "{addresses}");
        let neighbours = a.run("ip neigh show dev eth0")?;
        anyhow::ensure!(neighbours.matches("PERMANENT").count() == 2, "{neighbours}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_that_has_lost_the_entry_for_its_gateway_asks_for_it_and_is_answered() {
    with_agent(|node| {
        let pod = node.attach("forgetful")?;
        for (gateway, node) in [("169.254.1.1", NODE_V4), ("fe80::1", NODE_V6)] {
            pod.run(&format!("ip neigh del {gateway} dev eth0"))?;
            pod.ping(node)?;
            let entry = pod.run(&format!("ip neigh show {gateway} dev eth0"))?;
            anyhow::ensure!(entry.contains("66:65:72:72:75:6c") && !entry.contains("PERMANENT"), "{entry}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pods_of_a_single_family_reach_each_other_and_the_node() {
    for (cidr, gateway) in [(POD_V4, NODE_V4), (POD_V6, NODE_V6)] {
        on_node(|node| {
            node.start_agent(&[cidr])?;
            let (a, b) = (node.attach("a")?, node.attach("b")?);
            anyhow::ensure!(b.addresses.len() == 1, "{:?}", b.addresses);
            let to = b.addresses.first().context("no address")?;
            a.ping(&to.to_string())?;
            a.ping(gateway)?;
            traffic::stream(a.path(), b.path(), *to, MEGABYTE)?;
            node.runtime()?.check(&a)
        })
        .unwrap();
    }
}
