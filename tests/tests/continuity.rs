//! Pods' packets do not notice what becomes of the agent: none is lost, and none overtakes another.

use std::{
    env,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use ferrule_tests::{
    node::{Node, with_agent},
    pod::Pod,
    probe::Probe,
    sys, traffic,
};
use nix::sys::signal::Signal;

/// How long nobody is there to mend anything, in seconds; minutes, if one has the time.
const DEAD: &str = "FERRULE_DEAD_SECONDS";

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

    fn expect_all(self) -> anyhow::Result<()> {
        for probe in self.probes {
            probe.end()?.expect_all()?;
        }
        Ok(())
    }
}

fn seconds(name: &str, default: u64) -> anyhow::Result<Duration> {
    let seconds =
        env::var(name).map_or(Ok(default), |text| text.parse().with_context(|| format!("{name}={text}")))?;
    Ok(Duration::from_secs(seconds))
}

#[test]
fn pain_14_no_packet_is_lost_while_the_agent_is_dead_and_restarted() {
    with_agent(|node| {
        let traffic = Traffic::start(node)?;
        let dead = seconds(DEAD, 3)?;
        traffic.while_streaming(|| {
            node.kill_agent()?;
            thread::sleep(dead);
            node.start_again()?;
            node.signal_agent(Signal::SIGSTOP)?;
            thread::sleep(Duration::from_millis(300));
            node.signal_agent(Signal::SIGCONT)?;
            for _ in 0..3 {
                node.stop_agent()?;
                node.start_again()?;
                node.kill_agent()?;
                node.start_again()?;
            }
            Ok(())
        })?;
        traffic.expect_all()
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
        traffic.expect_all()
    })
    .unwrap();
}
