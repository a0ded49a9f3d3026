//! What the programs cost: time per run for real packets, as the kernel counts it
//! (`kernel.bpf_stats_enabled`).
//!
//! Times depend on machine and load: compare those of one run. They include the kernel's two readings of the
//! clock.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{node::with_agent, pod::Pod, sys};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use serde_json::Value;

const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
const ROUND: Duration = Duration::from_millis(500);
const ROUNDS: usize = 5;

/// Counts run times while it exists.
struct Stats(String);

// === impl Stats ===

impl Stats {
    fn enable() -> anyhow::Result<Self> {
        let before = fs::read_to_string(STATS)?;
        fs::write(STATS, "1")?;
        Ok(Self(before))
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        let _ = fs::write(STATS, &self.0);
    }
}

/// Nanoseconds and runs of a program so far.
fn spent(program: u64) -> anyhow::Result<(u64, u64)> {
    let shown: Value = serde_json::from_str(&sys::run(&format!("bpftool -j prog show id {program}"))?)?;
    let field = |name: &str| shown.get(name).and_then(Value::as_u64).unwrap_or_default();
    Ok((field("run_time_ns"), field("run_cnt")))
}

fn stay_on_one_cpu() -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(0)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}

/// Requests and responses of a byte, per second, with both ends on one CPU.
fn round_trips(client: &Pod, server: &Pod, to: SocketAddr, time: Duration) -> anyhow::Result<f64> {
    let listener = sys::bind_in(server.path(), to, TcpListener::bind)?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || -> anyhow::Result<()> {
            stay_on_one_cpu()?;
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let mut byte = [0];
            while stream.read(&mut byte)? == 1 {
                stream.write_all(&byte)?;
            }
            Ok(())
        });
        let counted = sys::in_netns(client.path(), || {
            stay_on_one_cpu()?;
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
            stream.set_nodelay(true)?;
            let (start, mut count) = (Instant::now(), 0_u32);
            while start.elapsed() < time {
                for _ in 0..100 {
                    stream.write_all(&[7])?;
                    stream.read_exact(&mut [0])?;
                    count += 1;
                }
            }
            Ok(f64::from(count) / start.elapsed().as_secs_f64())
        });
        serving.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        counted
    })
}

#[test]
fn run_time_of_packets_between_pods_is_printed() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let filters = sys::run(&format!("bpftool -j net show dev {}", node.host_ifname(&a)?))?;
        let filters: Value = serde_json::from_str(&filters)?;
        let all = filters.pointer("/0/tc").and_then(Value::as_array).context("no filters")?;
        let named = |name: &str| {
            let found = all.iter().find(|it| it.get("name").and_then(Value::as_str) == Some(name));
            found
                .and_then(|it| it.get("id")?.as_u64())
                .with_context(|| format!("no filter {name}: {filters}"))
        };
        let from_pod = named("from_pod")?;
        for address in &b.addresses {
            let to = SocketAddr::new(*address, 8080);
            let (mut costs, mut rates) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                rates.push(round_trips(&a, &b, to, ROUND)?);
                let _stats = Stats::enable()?;
                let before = spent(from_pod)?;
                round_trips(&a, &b, to, ROUND)?;
                let after = spent(from_pod)?;
                let (time, runs) = (after.0 - before.0, after.1 - before.1);
                ensure!(runs > 100, "only {runs} packets");
                costs.push(time as f64 / runs as f64);
            }
            costs.sort_by(f64::total_cmp);
            rates.sort_by(f64::total_cmp);
            let median = |all: &[f64]| all.get(ROUNDS / 2).copied().unwrap_or_default();
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            println!(
                "from_pod, {family}, pod to pod: {:.0} ns per run; {:.0} round trips/s",
                median(&costs),
                median(&rates)
            );
        }
        Ok(())
    })
    .unwrap();
}
