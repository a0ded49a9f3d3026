//! Packet continuity: restarts and upgrades of the agent neither lose nor reorder pods' packets.

use std::{
    env, fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, PINS, with_agent},
    pod::Pod,
    probe::Probe,
    sys, traffic,
};
use nix::sys::signal::Signal;

/// Environment variable: seconds without an agent.
const DOWNTIME: &str = "FERRULE_DEAD_SECONDS";
/// Environment variable: number of restarts.
const RESTARTS: &str = "FERRULE_RESTARTS";

/// Continuous packet streams between two pods, in both directions and families.
struct Traffic {
    pods: [Pod; 2],
    probes: Vec<Probe>,
}

// === impl Traffic ===

impl Traffic {
    fn start(node: &Node) -> anyhow::Result<Self> {
        let pods = [node.attach("a")?, node.attach("b")?];
        let [a, b] = &pods;
        let mut probes = Vec::new();
        for (from, to) in [(a, b), (b, a)] {
            for address in &to.addresses {
                probes.push(Probe::start(from.path(), to.path(), *address)?);
            }
        }
        Ok(Self { pods, probes })
    }

    /// Streams bytes over TCP, in each family, while `run` executes.
    fn while_streaming<T: Send>(
        &self,
        happens: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let [a, b] = &self.pods;
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let stream = |to| scope.spawn(move || traffic::stream_until(stop, a.path(), b.path(), to));
            let streams: Vec<_> = b.addresses.iter().map(|to| stream(*to)).collect();
            let outcome = happens();
            stop.store(true, Ordering::Relaxed);
            for stream in streams {
                stream.join().map_err(|_| anyhow::anyhow!("a stream panicked"))??;
            }
            outcome
        })
    }

    /// Waits until packets of every stream arrive.
    fn expect_flow(&self, when: &str) -> anyhow::Result<()> {
        self.probes.iter().try_for_each(|probe| probe.expect_flow(when))
    }

    fn expect_all(self, node: &Node) -> anyhow::Result<()> {
        let outcomes = self.probes.into_iter().map(Probe::end).collect::<anyhow::Result<Vec<_>>>()?;
        let is_whole = outcomes.iter().try_for_each(|it| it.expect_all());
        is_whole.with_context(|| format!("{outcomes:#?}, counters: {:#?}", node.attachments()))
    }
}

fn number(name: &str, default: u64) -> anyhow::Result<u64> {
    env::var(name).map_or(Ok(default), |text| text.parse().with_context(|| format!("{name}={text}")))
}

#[test]
fn no_packet_is_lost_across_agent_downtime_and_restarts() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let dead = Duration::from_secs(number(DOWNTIME, 3)?);
        traffic.while_streaming(|| {
            traffic.expect_flow("before the crash")?;
            node.kill_agent()?;
            thread::sleep(dead);
            traffic.expect_flow("without an agent")?;
            node.start_again()?;
            node.signal_agent(Signal::SIGSTOP)?;
            traffic.expect_flow("while the agent hangs")?;
            node.signal_agent(Signal::SIGCONT)?;
            for _ in 0..number(RESTARTS, 3)? {
                node.stop_agent()?;
                traffic.expect_flow("after the agent was stopped")?;
                node.start_again()?;
                node.kill_agent()?;
                traffic.expect_flow("after the agent was killed")?;
                node.start_again()?;
            }
            traffic.expect_flow("at the end")
        })?;
        traffic.expect_all(node)
    })
    .unwrap();
}

/// A build whose ABI version of the maps can be overridden.
const OTHER_BUILD: &str = "test/ferrule-agent";
const SHIPPED: &str = "ferrule-agent";
const ABI: &str = "FERRULE_ABI_VERSION";

/// Ends the agent by crash or graceful shutdown, and starts a build in its place.
fn replace(node: &mut Node, build: &str, environment: &[(&str, &str)], by_crash: bool) -> anyhow::Result<()> {
    if by_crash {
        node.kill_agent()?
    } else {
        node.stop_agent()?
    }
    node.use_agent(build, environment);
    node.start_again()
}

/// Egress packets of all attachments.
fn egress_packets(node: &Node) -> anyhow::Result<u64> {
    let attachments = node.attachments()?;
    let packets = attachments.iter().filter_map(|it| it.get("counters")?.get("egress_packets")?.as_u64());
    Ok(packets.sum())
}

/// CHECKs every pod of the traffic.
fn check_all(node: &Node, traffic: &Traffic) -> anyhow::Result<()> {
    let runtime = node.runtime()?;
    traffic.pods.iter().try_for_each(|pod| runtime.check(pod))
}

#[test]
fn no_packet_is_lost_across_an_upgrade() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let ids = || sys::run(&format!("bpftool -j map show pinned {PINS}/VIFS"));
        let before = ids()?;
        traffic.while_streaming(|| {
            for by_crash in [false, true] {
                replace(node, OTHER_BUILD, &[], by_crash)?;
                traffic.expect_flow("with the other build")?;
                replace(node, SHIPPED, &[], by_crash)?;
                traffic.expect_flow("with this build")?;
            }
            Ok(())
        })?;
        ensure!(ids()? == before, "the maps were replaced");
        check_all(node, &traffic)?;
        traffic.expect_all(node)
    })
    .unwrap();
}

#[test]
fn no_packet_or_state_is_lost_across_an_abi_migration() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let other = PINS.replace("/v6", "/v7");
        traffic.while_streaming(|| {
            for by_crash in [false, true] {
                for (build, environment, pins, gone) in [
                    (OTHER_BUILD, &[(ABI, "7")][..], other.as_str(), PINS),
                    (SHIPPED, &[], PINS, other.as_str()),
                ] {
                    let before = egress_packets(node)?;
                    let theirs = format!("{gone}/ONLY_THEIRS");
                    sys::run(&format!(
                        "bpftool map create {theirs} type array key 4 value 4 entries 1 name ONLY_THEIRS"
                    ))?;
                    replace(node, build, environment, by_crash)?;
                    ensure!(egress_packets(node)? >= before, "the counters were reset");
                    ensure!(Path::new(pins).join("VIFS").exists() && !Path::new(gone).exists(), "{pins}");
                    traffic.expect_flow("through the new maps")?;
                }
            }
            Ok(())
        })?;
        check_all(node, &traffic)?;
        traffic.expect_all(node)
    })
    .unwrap();
}

/// Records a flow between the pods as the programs do, and returns its key as bytes for `bpftool`.
fn record_flow(node: &Node, traffic: &Traffic) -> anyhow::Result<String> {
    let [a, b] = &traffic.pods;
    let server = b.addresses.first().copied().context("no address")?;
    record(node, (a, 3), (server, node.host_ifindex(b)?))
}

/// The same with a pod of another node, by an interface of this one.
fn record_remote_flow(node: &Node, traffic: &Traffic) -> anyhow::Result<String> {
    let [a, _] = &traffic.pods;
    record(node, (a, 4), ("10.200.0.7".parse()?, 1))
}

fn record(
    node: &Node,
    (client, place): (&Pod, u32),
    (server, ifindex): (std::net::IpAddr, u32),
) -> anyhow::Result<String> {
    let mut ends = [client.addresses.first().map(mapped).context("no address")?, mapped(&server)];
    ends.sort_unstable();
    let rest = [0x40, 0x9c, 0x40, 0x9c, 6, 0, 0, 0];
    let key = bytes(&[ends.concat(), rest.to_vec()].concat());
    let value = bytes(&[ifindex.to_ne_bytes(), [1, 0, 0, 0]].concat());
    sys::run(&format!("bpftool map update pinned {PINS}/STACK_FLOWS key {key} value {value}"))?;
    let place = bytes(&[node.host_ifindex(client)?.to_ne_bytes(), place.to_ne_bytes()].concat());
    sys::run(&format!("bpftool map update pinned {PINS}/FLOW_RINGS key {place} value {key}"))?;
    Ok(key)
}

fn mapped(address: &std::net::IpAddr) -> [u8; 16] {
    match address {
        std::net::IpAddr::V4(it) => it.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(it) => it.octets(),
    }
}

fn bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte} ")).collect()
}

#[test]
fn no_packet_flow_or_count_is_lost_while_map_capacities_change() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let keys = [record_flow(node, &traffic)?, record_remote_flow(node, &traffic)?];
        let parent = Path::new(PINS).parent().context("no parent")?;
        traffic.while_streaming(|| {
            for (by_crash, settings) in [
                (false, &[("FERRULE_MAX_VIFS", "8192"), ("FERRULE_MAX_STACK_FLOWS", "131072")][..]),
                (true, &[("FERRULE_MAX_ENDPOINTS", "100000")]),
                (true, &[]),
            ] {
                let before = egress_packets(node)?;
                replace(node, SHIPPED, settings, by_crash)?;
                ensure!(egress_packets(node)? >= before, "counts are lost");
                for key in &keys {
                    sys::run(&format!("bpftool map lookup pinned {PINS}/STACK_FLOWS key {key}"))?;
                }
                let directories =
                    fs::read_dir(parent)?.flatten().filter(|it| it.path().join("VIFS").exists()).count();
                ensure!(directories == 1, "{directories} directories of pins are left");
                traffic.expect_flow("through the new maps")?;
            }
            Ok(())
        })?;
        check_all(node, &traffic)?;
        traffic.expect_all(node)
    })
    .unwrap();
}

#[test]
fn no_packet_is_lost_during_pod_churn() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let runtime = node.runtime()?;
        for round in 0..20 {
            traffic.expect_flow("during the churn")?;
            let pods = (0..5)
                .map(|number| node.attach(&format!("r{round}-{number}")))
                .collect::<Result<Vec<_>, _>>()?;
            pods.iter().try_for_each(|pod| runtime.del(pod))?;
            pods.into_iter().try_for_each(Pod::remove)?;
        }
        sys::wait_until("only the two pods are left", Duration::from_secs(10), || {
            Ok(node.attachments()?.len() == 2)
        })?;
        traffic.expect_all(node)
    })
    .unwrap();
}

/// The maps of an earlier version.
struct Earlier {
    pins: &'static str,
    /// Bytes of a value of `VIFS`.
    vif: usize,
    /// A value of `STACK_FLOWS`, behind the server's host interface.
    flow: &'static [u8],
    /// Counters of drops in a value of `VIF_COUNTERS`; the first versions had them for both directions
    /// together.
    drops: usize,
}

#[test]
fn flows_and_counts_of_the_first_version_are_taken_over() {
    let first = Earlier { pins: "/sys/fs/bpf/ferrule/v1", vif: 216, flow: &[], drops: 13 };
    check_taken_over(&first, |_, _| Ok(())).unwrap();
}

#[test]
fn flows_and_counts_of_the_second_version_are_taken_over() {
    let second = Earlier { pins: "/sys/fs/bpf/ferrule/v2", vif: 252, flow: &[9, 0, 0, 0], drops: 16 };
    check_taken_over(&second, |client, flow| add_ring(&second, client, flow)).unwrap();
}

#[test]
fn flows_and_counts_of_the_third_version_are_taken_over() {
    let third = Earlier { pins: "/sys/fs/bpf/ferrule/v3", vif: 256, flow: &[9, 0, 0, 0], drops: 2 * 16 };
    check_taken_over(&third, |client, flow| add_ring(&third, client, flow)).unwrap();
}

#[test]
fn flows_and_counts_of_the_fifth_version_are_taken_over() {
    let fifth = Earlier { pins: "/sys/fs/bpf/ferrule/v5", vif: 256, flow: &[9, 0, 0, 0], drops: 2 * 24 };
    check_taken_over(&fifth, |client, flow| add_ring(&fifth, client, flow)).unwrap();
}

fn add_ring(earlier: &Earlier, client: u32, flow: &str) -> anyhow::Result<()> {
    let rings = format!("{}/FLOW_RINGS", earlier.pins);
    let place = bytes(&[client.to_ne_bytes(), [3, 0, 0, 0]].concat());
    sys::run(&format!(
        "bpftool map create {rings} type lru_hash key 8 value 40 entries 4096 name FLOW_RINGS"
    ))?;
    sys::run(&format!("bpftool map update pinned {rings} key {place} value {flow}")).map(drop)
}

fn check_taken_over(
    earlier: &Earlier,
    add_maps: impl Fn(u32, &str) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let Earlier { pins, vif, flow, drops } = earlier;
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let key = record_flow(node, &traffic)?;
        let [a, b] = &traffic.pods;
        let (client, server) = (node.host_ifindex(a)?, node.host_ifindex(b)?);
        node.stop_agent()?;
        fs::remove_dir_all(PINS).or_else(|_| {
            fs::read_dir(PINS)?.flatten().try_for_each(|pin| fs::remove_file(pin.path()))?;
            fs::remove_dir(PINS)
        })?;
        fs::create_dir(pins)?;
        let count = |number: u64| number.to_ne_bytes();
        let counters = [vec![count(1_000_000), count(2)], vec![count(3); 2 + drops]].concat().concat();
        let flow = [&server.to_ne_bytes(), *flow].concat();
        let client_key = bytes(&client.to_ne_bytes());
        for (map, kind, key, value) in [
            ("VIFS", "hash", &client_key, vec![0; *vif]),
            ("STACK_FLOWS", "lru_hash", &key, flow),
            ("VIF_COUNTERS", "percpu_hash", &client_key, counters),
        ] {
            let (key_size, size) = (key.split_whitespace().count(), value.len());
            let definition = format!("type {kind} key {key_size} value {size} entries 4096 name {map}");
            sys::run(&format!("bpftool map create {pins}/{map} {definition}"))?;
            sys::run(&format!("bpftool map update pinned {pins}/{map} key {key} value {}", bytes(&value)))?;
        }
        add_maps(client, &key)?;
        node.start_again()?;
        ensure!(node.attachments()?.len() == 2);
        sys::run(&format!("bpftool map lookup pinned {PINS}/STACK_FLOWS key {key}"))?;
        ensure!(egress_packets(node)? >= 1_000_000, "the counts are lost");
        ensure!(node.drops(a)?.get("not_for_pod").is_some_and(|drops| *drops >= 3), "{:?}", node.drops(a)?);
        ensure!(!Path::new(pins).exists(), "the pins of the earlier version are left");
        // Marked, or the programs would not look for the flow.
        let row = sys::run(&format!(
            "bpftool -j map lookup pinned {PINS}/VIFS key {}",
            bytes(&client.to_ne_bytes())
        ))?;
        let row: serde_json::Value = serde_json::from_str(&row)?;
        let marks =
            row.pointer("/formatted/value/stack_peers").and_then(|it| it.as_array()).context("no marks")?;
        ensure!(marks.get(server as usize % 32).and_then(|it| it.as_u64()) == Some(1), "{marks:?}");
        traffic.expect_flow("after the upgrade")?;
        traffic.expect_all(node)
    })
}
