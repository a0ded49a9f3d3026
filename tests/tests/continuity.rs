//! Pods' packets do not notice what becomes of the agent: none is lost, and none overtakes another.

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

/// How long nobody is there to mend anything, in seconds; minutes, if one has the time.
const DEAD: &str = "FERRULE_DEAD_SECONDS";
/// How often it goes and comes.
const RESTARTS: &str = "FERRULE_RESTARTS";

/// Two pods, between which packets go all the time, both ways and in both families.
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

    /// A connection of each family carries all that is sent while something happens.
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

    fn expect_all(self, node: &Node) -> anyhow::Result<()> {
        let outcomes = self.probes.into_iter().map(Probe::end).collect::<anyhow::Result<Vec<_>>>()?;
        let is_whole = outcomes.iter().try_for_each(|it| it.expect_all());
        is_whole.with_context(|| format!("{outcomes:#?}, and was counted: {:#?}", node.attachments()))
    }
}

fn number(name: &str, default: u64) -> anyhow::Result<u64> {
    env::var(name).map_or(Ok(default), |text| text.parse().with_context(|| format!("{name}={text}")))
}

#[test]
fn pain_14_no_packet_is_lost_while_the_agent_is_dead_and_restarted() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let dead = Duration::from_secs(number(DEAD, 3)?);
        traffic.while_streaming(|| {
            node.kill_agent()?;
            thread::sleep(dead);
            node.start_again()?;
            node.signal_agent(Signal::SIGSTOP)?;
            thread::sleep(Duration::from_millis(300));
            node.signal_agent(Signal::SIGCONT)?;
            for _ in 0..number(RESTARTS, 3)? {
                node.stop_agent()?;
                node.start_again()?;
                node.kill_agent()?;
                node.start_again()?;
            }
            Ok(())
        })?;
        traffic.expect_all(node)
    })
    .unwrap();
}

/// Another build of the agent, which can be told to be of another version of the maps.
const OTHER_BUILD: &str = "test/ferrule-agent";
const SHIPPED: &str = "ferrule-agent";
const ABI: &str = "FERRULE_ABI_VERSION";

/// Ends the agent in one way or the other, and lets a build take over.
fn replace(node: &mut Node, build: &str, environment: &[(&str, &str)], by_crash: bool) -> anyhow::Result<()> {
    if by_crash {
        node.kill_agent()?
    } else {
        node.stop_agent()?
    }
    node.use_agent(build, environment);
    node.start_again()
}

#[test]
fn no_packet_is_lost_while_another_build_takes_over() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let ids = || sys::run(&format!("bpftool -j map show pinned {PINS}/VIFS"));
        let before = ids()?;
        traffic.while_streaming(|| {
            for by_crash in [false, true] {
                replace(node, OTHER_BUILD, &[], by_crash)?;
                replace(node, SHIPPED, &[], by_crash)?;
            }
            Ok(())
        })?;
        ensure!(ids()? == before, "the maps are the same ones");
        let runtime = node.runtime()?;
        traffic.pods.iter().try_for_each(|pod| runtime.check(pod))?;
        traffic.expect_all(node)
    })
    .unwrap();
}

#[test]
fn no_packet_is_lost_and_nothing_forgotten_while_a_build_with_other_maps_takes_over() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let counted = |node: &Node| -> anyhow::Result<u64> {
            let attachments = node.attachments()?;
            let packets =
                attachments.iter().filter_map(|it| it.get("counters")?.get("egress_packets")?.as_u64());
            Ok(packets.sum())
        };
        let other = PINS.replace("/v1", "/v7");
        traffic.while_streaming(|| {
            for by_crash in [false, true] {
                for (build, environment, pins, gone) in [
                    (OTHER_BUILD, &[(ABI, "7")][..], other.as_str(), PINS),
                    (SHIPPED, &[], PINS, other.as_str()),
                ] {
                    let before = counted(node)?;
                    let theirs = format!("{gone}/ONLY_THEIRS");
                    sys::run(&format!(
                        "bpftool map create {theirs} type array key 4 value 4 entries 1 name ONLY_THEIRS"
                    ))?;
                    replace(node, build, environment, by_crash)?;
                    ensure!(counted(node)? >= before, "it counts on");
                    ensure!(Path::new(pins).join("VIFS").exists() && !Path::new(gone).exists(), "{pins}");
                }
            }
            Ok(())
        })?;
        let runtime = node.runtime()?;
        traffic.pods.iter().try_for_each(|pod| runtime.check(pod))?;
        traffic.expect_all(node)
    })
    .unwrap();
}

#[test]
fn no_packet_flow_or_count_is_lost_while_map_capacities_change() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let counted = |node: &Node| -> anyhow::Result<u64> {
            let attachments = node.attachments()?;
            let packets =
                attachments.iter().filter_map(|it| it.get("counters")?.get("egress_packets")?.as_u64());
            Ok(packets.sum())
        };
        let (key, value) = ("9 ".repeat(40), "1 0 0 0");
        sys::run(&format!("bpftool map update pinned {PINS}/STACK_FLOWS key {key} value {value}"))?;
        let parent = Path::new(PINS).parent().context("no parent")?;
        traffic.while_streaming(|| {
            for (by_crash, settings) in [
                (false, &[("FERRULE_MAX_VIFS", "8192"), ("FERRULE_MAX_STACK_FLOWS", "131072")][..]),
                (true, &[("FERRULE_MAX_ENDPOINTS", "100000")]),
                (true, &[]),
            ] {
                let before = counted(node)?;
                replace(node, SHIPPED, settings, by_crash)?;
                ensure!(counted(node)? >= before, "counts are lost");
                sys::run(&format!("bpftool map lookup pinned {PINS}/STACK_FLOWS key {key}"))?;
                let directories = fs::read_dir(parent)?.count();
                ensure!(directories == 1, "{directories} directories of pins are left");
            }
            Ok(())
        })?;
        let runtime = node.runtime()?;
        traffic.pods.iter().try_for_each(|pod| runtime.check(pod))?;
        traffic.expect_all(node)
    })
    .unwrap();
}

#[test]
fn no_packet_is_lost_while_others_come_and_go() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let runtime = node.runtime()?;
        for round in 0..20 {
            let pods = (0..5)
                .map(|number| node.attach(&format!("r{round}-{number}")))
                .collect::<Result<Vec<_>, _>>()?;
            pods.iter().try_for_each(|pod| runtime.del(pod))?;
            pods.into_iter().try_for_each(Pod::remove)?;
        }
        sys::wait_until("only the two are left", Duration::from_secs(5), || {
            Ok(node.attachments()?.len() == 2)
        })?;
        traffic.expect_all(node)
    })
    .unwrap();
}
