//! Limits of pods' traffic (`kubernetes.io/ingress-bandwidth`, `egress-bandwidth`), in both directions and
//! also between pods of one node.

use std::{fs, net::IpAddr, path::Path};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    chain::Chain,
    node::{NODE_V4, NODE_V6, Node, POD_V4, POD_V6, on_node, with_agent},
    pod::Pod,
    runtime::CniError,
    sys, traffic,
};
use serde_json::{Value, json};
use std::time::Duration;

/// Bits per second.
const RATE: u64 = 20_000_000;
/// What containerd passes, because no pod can name a burst.
const NO_BURST: u64 = 4_294_967_295;
/// What CRI-O passes instead, now and earlier.
const NO_BURST_OF_CRIO: [u64; 2] = [34_359_738_359, 34_359_738_360];
/// Two and a half seconds at the limit, so that the burst does not matter.
const BYTES: u64 = RATE / 8 * 5 / 2;
const TIMEOUT: Duration = Duration::from_secs(20);

fn chain(limits: Value) -> Chain {
    let plugin = json!({ "type": "ferrule", "capabilities": { "bandwidth": true } });
    Chain::new("1.0.0", [plugin]).with("bandwidth", limits)
}

fn attach(node: &Node, name: &str, limits: Value) -> anyhow::Result<(Pod, Chain)> {
    let (mut pod, mut chain) = (node.pod(name)?, chain(limits));
    pod.attached(&chain.add(&pod)?)?;
    Ok((pod, chain))
}

fn received() -> Value {
    json!({ "IngressRate": RATE, "IngressBurst": NO_BURST, "EgressRate": 0, "EgressBurst": NO_BURST })
}

fn sent() -> Value {
    json!({ "IngressRate": 0, "IngressBurst": NO_BURST, "EgressRate": RATE, "EgressBurst": NO_BURST })
}

/// The rate of a stream in parts of the limit.
fn rate(from: &Path, to: &Path, address: IpAddr, bytes: u64) -> anyhow::Result<f64> {
    let streamed = traffic::stream(from, to, address, bytes)?;
    Ok(streamed.bytes as f64 * 8.0 / streamed.took.as_secs_f64() / RATE as f64)
}

fn ensure_limited(what: &str, rate: f64) -> anyhow::Result<()> {
    ensure!((0.6..1.2).contains(&rate), "{what}: {rate:.2} of the limit");
    Ok(())
}

/// The stream has bytes for seconds at the limit, and needs a fraction of one.
fn ensure_free(what: &str, rate: f64) -> anyhow::Result<()> {
    ensure!(rate > 2.5, "{what}: {rate:.2} of the limit");
    Ok(())
}

fn of_family(pod: &Pod, is_ipv4: bool) -> anyhow::Result<IpAddr> {
    pod.addresses.iter().copied().find(|it| it.is_ipv4() == is_ipv4).context("no address")
}

#[test]
fn what_a_pod_receives_is_limited_from_pods_of_its_node_and_from_the_node() {
    with_agent(|node| {
        let peer = node.attach("peer")?;
        let (pod, mut of_pod) = attach(node, "limited", received())?;
        let host = Path::new("/proc/thread-self/ns/net");
        for (is_ipv4, of_node) in [(true, NODE_V4), (false, NODE_V6)] {
            let own = of_family(&pod, is_ipv4)?;
            ensure_limited("from a pod", rate(peer.path(), pod.path(), own, BYTES)?)?;
            ensure_limited("from the node", rate(host, pod.path(), own, BYTES)?)?;
            let to_peer = of_family(&peer, is_ipv4)?;
            ensure_free("to a pod", rate(pod.path(), peer.path(), to_peer, BYTES)?)?;
            ensure_free("to the node", rate(pod.path(), host, of_node.parse()?, BYTES)?)?;
        }
        of_pod.check(&pod)?;
        of_pod.del(&pod)
    })
    .unwrap();
}

/// The host's stack forwards these packets, and the tunnel's: past the programs' fast path.
#[test]
fn what_a_pod_receives_is_limited_from_other_hosts() {
    with_agent(|node| {
        let outside = Path::new("/run/netns/outside");
        for line in [
            "ip -n outside addr add 192.0.2.254/24 dev eth0".to_owned(),
            "ip -n outside addr add 2001:db8::254/64 dev eth0 nodad".to_owned(),
            format!("ip -n outside route add {POD_V4} via {NODE_V4}"),
            format!("ip -n outside route add {POD_V6} via {NODE_V6}"),
        ] {
            sys::run(&line)?;
        }
        let free = node.attach("free")?;
        let (pod, _) = attach(node, "limited", received())?;
        for is_ipv4 in [true, false] {
            ensure_limited("from outside", rate(outside, pod.path(), of_family(&pod, is_ipv4)?, BYTES)?)?;
            ensure_free("without a limit", rate(outside, free.path(), of_family(&free, is_ipv4)?, BYTES)?)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_a_pod_sends_is_limited_to_pods_of_its_node_and_to_the_node() {
    with_agent(|node| {
        let peer = node.attach("peer")?;
        let (pod, _) = attach(node, "limited", sent())?;
        let host = Path::new("/proc/thread-self/ns/net");
        for (is_ipv4, of_node) in [(true, NODE_V4), (false, NODE_V6)] {
            let to_peer = of_family(&peer, is_ipv4)?;
            ensure_limited("to a pod", rate(pod.path(), peer.path(), to_peer, BYTES)?)?;
            ensure_limited("to the node", rate(pod.path(), host, of_node.parse()?, BYTES)?)?;
            let own = of_family(&pod, is_ipv4)?;
            ensure_free("from a pod", rate(peer.path(), pod.path(), own, BYTES)?)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn bursts_that_runtimes_pass_for_none_limit_as_none_does() {
    with_agent(|node| {
        let mut limits = Vec::new();
        for (number, burst) in [0, NO_BURST].into_iter().chain(NO_BURST_OF_CRIO).enumerate() {
            let both = json!({
                "ingressRate": RATE, "ingressBurst": burst, "egressRate": RATE, "egressBurst": burst
            });
            let (pod, _) = attach(node, &format!("p{number}"), both)?;
            let host = sys::run(&format!("tc qdisc show dev {} root", node.host_ifname(&pod)?))?;
            let own = pod.run("tc qdisc show dev eth0 root")?;
            let limit = |shown: &str| shown.split_once(" rate ").map(|(_, it)| it.trim().to_owned());
            limits.push((limit(&host).context(host)?, limit(&own).context(own)?));
            if limits.len() == 4 {
                ensure_limited("from the node", {
                    rate(Path::new("/proc/thread-self/ns/net"), pod.path(), of_family(&pod, true)?, BYTES)?
                })?;
            }
        }
        ensure!(limits.iter().all(|it| it.0 == limits[0].0 && it.1 == limits[0].0), "{limits:#?}");
        Ok(())
    })
    .unwrap();
}

/// As kube-proxy does: half of a flow by the stack would be invalid, and cut.
#[test]
fn conntrack_sees_both_directions_of_a_limited_pods_flows() {
    with_agent(|node| {
        sys::run("nft add table inet strict")?;
        sys::run("nft add chain inet strict forward { type filter hook forward priority 0 ; }")?;
        sys::run("nft add rule inet strict forward ct state invalid counter drop")?;
        let peer = node.attach("peer")?;
        let (pod, _) = attach(node, "limited", received())?;
        for (from, to) in [(&peer, &pod), (&pod, &peer)] {
            traffic::stream(from.path(), to.path(), of_family(to, true)?, BYTES / 10)?;
        }
        let rules = sys::run("nft list table inet strict")?;
        ensure!(rules.contains("packets 0 bytes 0"), "{rules}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_lost_or_changed_limit_is_found_and_restored() {
    on_node(|node| {
        let ranges = ["--pod-cidr", POD_V4, "--pod-cidr", POD_V6];
        node.start_agent_with(&[&["--standalone", "--reconcile-period", "1"], &ranges[..]].concat())?;
        let (pod, _) = attach(node, "limited", received())?;
        let host = node.host_ifname(&pod)?;
        let qdisc = || sys::run(&format!("tc qdisc show dev {host} root"));
        let before = qdisc()?;
        ensure!(before.contains("tbf") && before.contains("rate 20Mbit burst"), "{before}");
        let repairs = "ferrule_repairs_total{kind=\"link-rate\",outcome=\"repaired\"}";
        for (number, damage) in
            ["del dev HOST root", "replace dev HOST root tbf rate 1gbit burst 1mb latency 1ms"]
                .into_iter()
                .enumerate()
        {
            sys::run(&format!("tc qdisc {}", damage.replace("HOST", &host)))?;
            let expected = (number + 1) as f64;
            sys::wait_until("the limit is restored", TIMEOUT, || Ok(node.count(repairs)? == expected))?;
            ensure!(qdisc()?.contains("rate 20Mbit"), "{}", qdisc()?);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_limit_that_the_pod_has_removed_is_reported_by_verify_and_check() {
    with_agent(|node| {
        let (pod, mut of_pod) = attach(node, "limited", sent())?;
        of_pod.check(&pod)?;
        node.ctl(&["verify"])?;
        pod.run("tc qdisc del dev eth0 root")?;
        let found = node.ctl(&["verify"]).unwrap_or_else(|error| format!("{error:#}"));
        ensure!(found.contains("pod-rate") && found.contains("wrong rate none, expected 2500000"), "{found}");
        let error = of_pod.check(&pod).err().context("CHECK passed")?.downcast::<CniError>()?;
        ensure!(error.code == 101 && error.msg.contains("wrong rate none"), "{error}");
        of_pod.del(&pod)
    })
    .unwrap();
}

#[test]
fn limits_outlive_the_agent_and_a_lost_registry_and_an_interface_that_is_restored() {
    with_agent(|node| {
        let both = json!({ "ingressRate": RATE, "egressRate": RATE / 2 });
        let (pod, mut of_pod) = attach(node, "limited", both)?;
        let name = node.host_ifname(&pod)?;
        let limits = || {
            let host = sys::run(&format!("tc qdisc show dev {name} root"))?;
            ensure!(host.contains("rate 20Mbit"), "{host}");
            let own = pod.run("tc qdisc show dev eth0 root")?;
            ensure!(own.contains("rate 10Mbit"), "{own}");
            let vifs = sys::run("bpftool --json map dump name VIFS")?;
            ensure!(vifs.contains("\"flags\":7") || vifs.contains("\"flags\": 7"), "{vifs}");
            Ok(())
        };
        limits()?;
        node.kill_agent()?;
        limits()?;
        fs::remove_dir_all("/run/ferrule/attachments")?;
        node.start_again()?;
        limits()?;
        sys::run(&format!("ip link del dev {name}"))?;
        sys::wait_until("the interface is restored", TIMEOUT, || Ok(limits().is_ok()))?;
        of_pod.del(&pod)
    })
    .unwrap();
}

#[test]
fn a_malformed_limit_is_refused_and_changes_nothing() {
    with_agent(|node| {
        let before = node.kernel_state()?;
        let pod = node.pod("a")?;
        for bad in [json!({ "ingressRate": -1 }), json!({ "egressRate": "10M" }), json!([1])] {
            let mut chain = chain(bad);
            let error = chain.add(&pod).err().context("the ADD succeeded")?;
            let error = error.downcast::<CniError>().context("not a CNI error")?;
            ensure!(error.code == 7 && error.msg.contains("runtimeConfig.bandwidth"), "{error}");
            chain.del(&pod)?;
            ensure!(node.kernel_state()? == before);
        }
        Ok(())
    })
    .unwrap();
}
