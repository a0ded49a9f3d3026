//! Leak tests: many pods, nodes and policies that come and go leave nothing in agent, store or kernel.

use std::{
    env, fs,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::{Cluster, with_cluster},
    node::{Node, PINS, on_node},
    others,
    pod::{NAMESPACE, Pod},
    progress::Progress,
    sys,
};
use serde_json::{Value, json};

/// Environment variable: number of pods; 100,000 for a long run.
const CYCLES: &str = "FERRULE_SOAK_CYCLES";
const SHORT: u32 = 1500;
/// The first pods leave reusable resources: threads, buffers, pages of the store.
const WARM_UP: u32 = 400;
const WORKERS: u32 = 4;
/// Growth by fragmentation, in KiB: live allocations do not grow, but a page stays as long as a small block
/// in it lives, and blocks belong to many threads. Measured: 0.2 to 1 MiB after 1,500 pods, 3 MiB after
/// 20,000.
const KEPT_KIB: u64 = 3 << 10;
const KEPT_FOR_LONG_KIB: u64 = 6 << 10;
/// Threads of an idle agent. One audits the store every few seconds, and one compiles policies.
const THREADS: u64 = 5;
/// With an API server: tasks with short periods use the idle threads in turn, so that some never end.
const THREADS_OF_CLUSTER: u64 = 12;

const PINS_OF_ALL_MAPS: usize = 23;
/// With the link that names what they were made from.
const PINS_OF_PROGRAMS: usize = 8;

/// Resources that could leak.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    /// Memory of the agent that is no copy of a file; code is mapped as it runs.
    anonymous_kib: u64,
    store_bytes: u64,
    descriptors: usize,
    pins: Vec<String>,
    programs: usize,
    maps: usize,
    kernel: Vec<String>,
}

#[test]
fn pod_churn_leaks_nothing() {
    on_node(|node| {
        // Large ranges, because released addresses stay in cooldown.
        node.start_agent(&["10.244.0.0/16", "fd00:10:244::/64"])?;
        let cycles = env::var(CYCLES).map_or(Ok(SHORT), |text| text.parse().context(CYCLES))?;
        let _stays = node.attach("stays")?;
        come_and_go(node, WARM_UP.min(cycles))?;
        let before = Size::of(node, THREADS)?;
        before.expect_an_agent_with_a_pod()?;
        let served = calls(node)?;
        come_and_go(node, cycles)?;
        let after = Size::of(node, THREADS)?;
        let now = calls(node)?;
        let each = [now[0] - served[0], now[1] - served[1]];
        ensure!(each == [f64::from(cycles); 2], "{each:?} ADDs and DELs, expected {cycles} of each");
        println!("after {cycles} more pods: {after:?}\nbefore: {before:?}");
        after.expect_no_more_than(&before, if cycles > SHORT { KEPT_FOR_LONG_KIB } else { KEPT_KIB })
    })
    .unwrap();
}

/// Nodes at once; each has two ranges and two addresses.
const NODES: u16 = 1000;
/// Waves before the measurements, until memory has its size; and measured ones, of 10,000 nodes.
const FIRST_WAVES: u16 = 4;
const WAVES: u16 = 10;
/// Between two moments, in KiB: a wave needs 10 MiB for a while, and the allocator keeps parts of it.
const KEPT_OF_WAVE_KIB: u64 = 20 << 10;
/// Between the lowest values of two halves: a leak of one KiB for each node is as much. Measured: 1 MiB.
const GROWTH_KIB: u64 = 5 << 10;
/// Room in the map NODES for one wave and the own node: a row that stays would keep another one out.
const ROWS: &str = "4008";
const ARRIVAL: Duration = Duration::from_secs(60);

/// Every tenth node is on the uplink's network, and the others are behind the router.
fn other_node(wave: u16, number: u16) -> anyhow::Result<Value> {
    let [high, low] = number.to_be_bytes();
    let v4: [u8; 4] = match number {
        0..100 => [192, 0, 2, 100 + low],
        _ => [198, 18, high, low],
    };
    let ranges = [format!("172.{}.{low}.0/24", 16 + high), format!("fd01:0:0:{number:x}::/64")];
    let object = objects::node(&format!("wave-{wave}-{number}"), &ranges.each_ref().map(String::as_str));
    let v6 = format!("2001:db8:18::{number:x}").parse()?;
    Ok(objects::with_addresses(object, &[v4.into(), v6]))
}

/// Returns the agent's anonymous memory afterwards, in KiB.
fn wave_of_nodes(node: &Node, cluster: &Cluster, wave: u16) -> anyhow::Result<u64> {
    let wait = |ranges: f64| {
        sys::wait_until(&format!("there are ways to {ranges} ranges"), ARRIVAL, || {
            let of = |way| node.count(&format!("ferrule_node_ranges{{way=\"{way}\"}}"));
            let (good, bad) = (of("direct")? + of("vxlan")?, of("none")?);
            thread::sleep(Duration::from_millis(100));
            ensure!((good, bad) == (ranges, 0.0), "{good} and {bad} without a way");
            Ok(true)
        })
    };
    for number in 0..NODES {
        cluster.api.create(Resource::Nodes, other_node(wave, number)?)?;
    }
    wait(2.0 * f64::from(NODES))?;
    let status = node.ctl(&["status"])?;
    ensure!(!status.contains(" unhealthy"), "{status}");
    for number in 0..NODES {
        cluster.api.delete(Resource::Nodes, "", &format!("wave-{wave}-{number}"))?;
    }
    wait(0.0)?;
    node.agent_status("RssAnon")
}

#[test]
fn node_churn_leaks_nothing() {
    with_cluster(&["--max-node-entries", ROWS], |node, cluster| {
        let _stays = cluster.attach(node, "stays")?;
        let alone = others::state()?;
        let progress = Progress::of(u32::from(FIRST_WAVES + WAVES), "waves of nodes");
        let waves = |numbers: std::ops::Range<u16>| -> anyhow::Result<Vec<u64>> {
            let waves = numbers.map(|wave| {
                let used = wave_of_nodes(node, cluster, wave);
                progress.step();
                used
            });
            waves.collect()
        };
        waves(0..FIRST_WAVES)?;
        let before = Size::of(node, THREADS_OF_CLUSTER)?;
        before.expect_an_agent_with_a_pod()?;
        let used = waves(FIRST_WAVES..FIRST_WAVES + WAVES)?;
        let (after, left) = (Size::of(node, THREADS_OF_CLUSTER)?, others::state()?);
        println!("after {WAVES} more waves of {NODES} nodes: {after:?}\nbefore: {before:?}\n{used:?} KiB");
        ensure!(left == alone, "{left:#?}\nexpected {alone:#?}");
        after.expect_no_more_than(&before, KEPT_OF_WAVE_KIB)?;
        let (early, late) = used.split_at(used.len() / 2);
        ensure!(late.iter().min() <= early.iter().map(|it| it + GROWTH_KIB).min().as_ref(), "{used:?} KiB");
        Ok(())
    })
    .unwrap();
}

/// Policies at once, each of which concerns the pod by rules and peers of its own. 6,000 are measured, so
/// that a leak of one KiB for each shows.
const POLICIES: u16 = 150;
const FIRST_POLICIES: u16 = 3;
const POLICY_WAVES: u16 = 40;
const POLICY_ROWS: [&str; 7] = ["VIFS", "PEERS", "BLOCKS", "RULESETS", "RULES", "NAMED", "PORTS"];

fn policy(wave: u16, number: u16) -> Value {
    let [high, low] = number.to_be_bytes();
    let (block, port) = (format!("198.18.{high}.{low}/32"), 1000 + number);
    let selected = json!({ "matchLabels": { "wave": wave.to_string() } });
    let peers = json!([{ "ipBlock": { "cidr": block } }, { "podSelector": selected }]);
    let ingress = json!([{ "from": peers,
        "ports": [{ "port": port, "endPort": port + number % 7 }] }]);
    let spec = json!({ "podSelector": selected, "policyTypes": ["Ingress", "Egress"], "ingress": ingress });
    objects::network_policy(NAMESPACE, &format!("wave-{wave}-{number}"), spec)
}

/// Returns the agent's anonymous memory afterwards, in KiB.
fn wave_of_policies(node: &Node, cluster: &Cluster, pod: &Pod, wave: u16) -> anyhow::Result<u64> {
    let wait = |what: &str, metric: &str, wanted: f64| {
        sys::wait_until(what, ARRIVAL, || {
            let found = node.metric(metric)?;
            ensure!(found == wanted, "{metric} is {found}");
            Ok(true)
        })
    };
    let labels = json!({ "metadata": { "labels": { "wave": wave.to_string() } } });
    cluster.api.patch(Resource::Pods, NAMESPACE, &pod.name, labels)?;
    for number in 0..POLICIES {
        cluster.api.create(Resource::NetworkPolicies, policy(wave, number))?;
    }
    wait("all policies are known", "ferrule_policy_policies", f64::from(POLICIES))?;
    wait("the pod is judged in both directions", "ferrule_policy_rulesets", 2.0)?;
    for number in 0..POLICIES {
        cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, &format!("wave-{wave}-{number}"))?;
    }
    wait("no policy is left", "ferrule_policy_policies", 0.0)?;
    node.agent_status("RssAnon")
}

fn policy_rows() -> anyhow::Result<Vec<usize>> {
    let count = |map: &&str| -> anyhow::Result<usize> {
        let rows: Vec<Value> =
            serde_json::from_str(&sys::run(&format!("bpftool -j map dump pinned {PINS}/{map}"))?)?;
        Ok(rows.len())
    };
    POLICY_ROWS.iter().map(count).collect()
}

#[test]
fn policy_churn_leaks_nothing() {
    with_cluster(&[], |node, cluster| {
        let stays = cluster.attach(node, "stays")?;
        let progress = Progress::of(u32::from(FIRST_POLICIES + POLICY_WAVES), "waves of policies");
        let waves = |numbers: std::ops::Range<u16>| -> anyhow::Result<Vec<u64>> {
            let waves = numbers.map(|wave| {
                let used = wave_of_policies(node, cluster, &stays, wave);
                progress.step();
                used
            });
            waves.collect()
        };
        waves(0..FIRST_POLICIES)?;
        let rows = policy_rows()?;
        ensure!(rows.first() == Some(&1), "the pod's row, and found {rows:?}");
        // Each has an open file.
        sys::wait_until("peers have checkpoints", ARRIVAL, || {
            let is_stored = |watch| Path::new(&format!("/run/ferrule/watch/{watch}.log")).exists();
            Ok(["all-pods", "namespaces", "services"].into_iter().all(is_stored))
        })?;
        let before = Size::of(node, THREADS_OF_CLUSTER)?;
        before.expect_an_agent_with_a_pod()?;
        let used = waves(FIRST_POLICIES..FIRST_POLICIES + POLICY_WAVES)?;
        let after = Size::of(node, THREADS_OF_CLUSTER)?;
        let number = POLICY_WAVES * POLICIES;
        println!("after {number} more policies: {after:?}\nbefore: {before:?}\n{used:?} KiB");
        sys::wait_until("only the rows of before are left", ARRIVAL, || Ok(policy_rows()? == rows))?;
        after.expect_no_more_than(&before, KEPT_FOR_LONG_KIB)
    })
    .unwrap();
}

fn come_and_go(node: &Node, cycles: u32) -> anyhow::Result<()> {
    let (left, progress) = (AtomicU32::new(cycles), Progress::of(cycles, "pods"));
    let next = || left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (next, progress) = (&next, &progress);
                let pod = node.pod(&format!("worker-{worker}"))?;
                let runtime = node.runtime()?;
                Ok(scope.spawn(move || -> anyhow::Result<()> {
                    while let Ok(number) = next() {
                        // The namespace of the one before: making namespaces would take most of the time.
                        let (uid, container_id) =
                            (format!("00000000-0000-4000-9000-{number:012}"), format!("f{number:063x}"));
                        let pod = Pod { uid, container_id, ..pod.clone() };
                        runtime.add(&pod)?;
                        runtime.del(&pod)?;
                        progress.step();
                    }
                    Pod::remove(pod)
                }))
            })
            .collect::<anyhow::Result<_>>()?;
        workers.into_iter().try_for_each(|it| it.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?)
    })
}

/// Successful ADDs and DELs so far.
fn calls(node: &Node) -> anyhow::Result<[f64; 2]> {
    let count = |verb: &str| {
        let labels = format!(r#"{{verb="{verb}",phase="total",code="0"}}"#);
        node.count(&format!("ferrule_cni_duration_seconds_count{labels}"))
    };
    Ok([count("ADD")?, count("DEL")?])
}

// === impl Size ===

impl Size {
    /// The bounds of growth prove nothing if the measurements are of nothing.
    fn expect_an_agent_with_a_pod(&self) -> anyhow::Result<()> {
        let is_map = |pin: &&String| pin.starts_with(|it: char| it.is_ascii_uppercase());
        ensure!(self.pins.iter().filter(is_map).count() == PINS_OF_ALL_MAPS, "{self:?}");
        ensure!(self.pins.len() == PINS_OF_ALL_MAPS + PINS_OF_PROGRAMS, "{self:?}");
        ensure!(self.programs == 7 && self.maps >= PINS_OF_ALL_MAPS && self.descriptors > 6, "{self:?}");
        ensure!(self.anonymous_kib > 1024 && self.store_bytes > 0, "{self:?}");
        // The uplink, loopback, the pod's interface with its routes, and its entries in three maps.
        ensure!(self.kernel.len() >= 9, "{self:?}");
        Ok(())
    }

    fn expect_no_more_than(&self, before: &Self, kept_kib: u64) -> anyhow::Result<()> {
        let is_same = |one: &Self, other: &Self| {
            one.kernel == other.kernel
                && one.pins == other.pins
                && (one.programs, one.maps) == (other.programs, other.maps)
                && one.store_bytes == other.store_bytes
        };
        // Tolerates connections that are just being closed.
        let is_bounded = self.descriptors <= before.descriptors + 4
            && self.anonymous_kib <= before.anonymous_kib + kept_kib;
        ensure!(is_same(self, before) && is_bounded, "{self:?}\nwas {before:?}");
        Ok(())
    }

    /// Measures once the reaper is idle.
    fn of(node: &Node, threads: u64) -> anyhow::Result<Self> {
        sys::wait_until("one pod interface is left", Duration::from_secs(30), || {
            let ours =
                sys::run("ip -o link show type veth")?.lines().filter(|it| !it.contains("uplink")).count();
            ensure!(ours == 1, "{ours} interfaces");
            Ok(true)
        })?;
        let pid = node.agent_pid().context("no agent")?;
        // Addresses in cooldown, as many as the churn of half a minute, are in the store and in memory.
        sys::wait_until("all cooldowns have ended", Duration::from_secs(60), || {
            let files = fs::read_dir("/run/ferrule/attachments")?.count();
            ensure!(files == 2, "{files} files, expected the record of the pod that stays, and `meta`");
            Ok(true)
        })?;
        // Idle connections and blocking threads end after their timeouts.
        sys::wait_until("the agent has only its permanent threads", Duration::from_secs(30), || {
            let found = node.agent_status("Threads")?;
            ensure!(found <= threads, "{found} threads");
            Ok(true)
        })?;
        let mut pins: Vec<_> =
            fs::read_dir(PINS)?.flatten().map(|it| it.file_name().to_string_lossy().into_owned()).collect();
        pins.sort();
        let files = fs::read_dir("/run/ferrule/attachments")?.map(|it| Ok(it?.metadata()?.len()));
        let store: u64 = files.sum::<std::io::Result<_>>()?;
        let descriptors: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd"))?
            .flatten()
            .filter_map(|it| fs::read_link(it.path()).ok())
            .collect();
        let of = |what: &str| descriptors.iter().filter(|it| it.to_string_lossy().contains(what)).count();
        Ok(Self {
            anonymous_kib: node.agent_status("RssAnon")?,
            store_bytes: store,
            descriptors: descriptors.len(),
            pins,
            programs: of("bpf-prog"),
            maps: of("bpf-map"),
            kernel: node.kernel_state()?,
        })
    }
}
