//! Connectivity of pods with each other and with the node, in both address families.

use anyhow::Context as _;
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, POD_V4, POD_V6, UPLINK_MTU, on_node, with_agent},
    sys, traffic,
};

const MEGABYTE: u64 = 1 << 20;
/// Covers healing.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

#[test]
fn pods_reach_each_other_and_the_node_by_ping() {
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
fn tcp_streams_between_pods_and_node_arrive_intact() {
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
fn forwarding_decrements_ttl_and_sends_time_exceeded() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        for (address, ttl) in b.addresses.iter().zip(["ttl=63", "ttl=63"]) {
            let ping = a.ping(&address.to_string())?;
            anyhow::ensure!(ping.contains(ttl), "wrong TTL: {ping}");
            // A packet whose TTL expires goes to the stack, which sends the ICMP error.
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
fn packets_larger_than_the_receivers_mtu_are_answered_or_fragmented() {
    const SMALL: u32 = 1400;
    with_agent(|node| {
        let a = node.attach("a")?;
        ferrule_tests::sys::run(&format!("ip link set uplink mtu {SMALL}"))?;
        ferrule_tests::sys::wait_until(
            "the agent has detected the MTU change",
            std::time::Duration::from_secs(5),
            || Ok(node.log().contains("the uplink's MTU has changed")),
        )?;
        let mtu = format!("mtu {SMALL}");
        ferrule_tests::sys::wait_until(
            "the running pod's routes follow",
            std::time::Duration::from_secs(5),
            || {
                let routes = [a.run("ip -4 route show default")?, a.run("ip -6 route show default")?];
                Ok(routes.iter().all(|routes| routes.contains(&mtu)))
            },
        )?;
        // A pod that believes otherwise.
        a.run("ip -4 route replace default via 169.254.1.1 dev eth0 onlink")?;
        a.run("ip -6 route replace default via fe80::1 dev eth0 onlink")?;
        let b = node.attach("b")?;
        anyhow::ensure!(b.run("ip -o link show eth0")?.contains(&format!("mtu {SMALL}")));
        for address in &b.addresses {
            let (headers, family) = if address.is_ipv4() { (28, "-4") } else { (48, "-6") };
            let ping = |size: u32, discovery: &str| -> anyhow::Result<String> {
                let (size, address) = ((size - headers).to_string(), address.to_string());
                let args = [family, "-n", "-c", "2", "-W", "2", "-M", discovery, "-s", &size, &address];
                let output = a.command("ping")?.args(args).output()?;
                Ok(format!(
                    "{}{}",
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&output.stderr)
                ))
            };
            let fits = ping(SMALL, "do")?;
            anyhow::ensure!(fits.contains(" 2 received"), "{fits}");
            let refused = ping(UPLINK_MTU, "do")?;
            let sender = if address.is_ipv4() { NODE_V4 } else { NODE_V6 };
            let named = ["mtu = 1400", "mtu=1400", "mtu: 1400"].iter().any(|mtu| refused.contains(mtu));
            anyhow::ensure!(named && refused.contains(&format!("From {sender}")), "{refused}");
            if address.is_ipv4() {
                // The kernel has learnt the smaller MTU.
                a.run("ip route flush cache")?;
                let fragmented = ping(UPLINK_MTU, "dont")?;
                anyhow::ensure!(fragmented.contains(" 2 received"), "{fragmented}");
            }
            // Segmented by the kernel, with the sizes that the connection has agreed on.
            traffic::stream(a.path(), b.path(), *address, 16 * MEGABYTE)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pod_gets_the_uplinks_mtu() {
    with_agent(|node| {
        let a = node.attach("a")?;
        let link = a.run("ip -o link show eth0")?;
        anyhow::ensure!(link.contains(&format!("mtu {UPLINK_MTU}")), "{link}");
        // New pods follow a change of the uplink's MTU.
        ferrule_tests::sys::run("ip link set uplink mtu 1400")?;
        ferrule_tests::sys::wait_until(
            "the agent has detected the MTU change",
            std::time::Duration::from_secs(5),
            || Ok(node.log().contains("the uplink's MTU has changed")),
        )?;
        let b = node.attach("b")?;
        let link = b.run("ip -o link show eth0")?;
        anyhow::ensure!(link.contains("mtu 1400"), "{link}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn addresses_are_usable_immediately_after_add() {
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
fn gateway_neighbour_entry_is_resolved_again_after_deletion() {
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
fn single_family_pods_reach_each_other_and_the_node() {
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

/// The kernel has no IPv6 on a link below 1280 bytes, and no settings of it.
#[test]
fn a_pod_without_ipv6_may_have_a_smaller_mtu_than_ipv6_permits() {
    on_node(|node| {
        node.start_agent(&[POD_V4])?;
        for mtu in [68_u32, 1200, 1279, 1280] {
            let small = node.runtime()?.with("mtu", mtu.into());
            let mut pod = node.pod("small")?;
            pod.attached(&small.add(&pod)?)?;
            let host = node.host_ifname(&pod)?;
            let ends = [pod.run("ip -o link show eth0")?, sys::run(&format!("ip -o link show {host}"))?];
            anyhow::ensure!(ends.iter().all(|it| it.contains(&format!("mtu {mtu} "))), "{ends:?}");
            // The payload of a ping is larger than the least MTU.
            let ping = |to: &str| pod.run(&format!("ping -n -c 1 -W 2 -s 16 {to}"));
            ping(NODE_V4)?;
            small.check(&pod)?;
            node.ctl(&["verify"])?;
            // An interface of the same MTU takes its place.
            sys::run(&format!("ip link del {host}"))?;
            sys::wait_until("the interface is restored", TIMEOUT, || ping(NODE_V4).map(|_| true))?;
            node.ctl(&["verify"])?;
            small.del(&pod)?;
        }
        Ok(())
    })
    .unwrap();
}
