//! `ferrulectl bench self`: what this node's pods wait for, and what the programs cost, in a few seconds.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ferrule_proto::agent::{BenchSelfResponse, Percentiles, PhaseTime, ProgramRuns};
use tokio::{task::spawn_blocking, time::sleep};
use tonic::Status;

use super::probe;
use crate::{
    attach::{Journal, Times},
    chain::chain,
    dataplane::Dataplane,
    metrics::ProgramInfo,
    registry::{Registry, State},
};

/// What is measured.
pub(super) struct Bench {
    pub(super) registry: Arc<Registry>,
    pub(super) dataplane: Arc<Dataplane>,
    pub(super) journal: Arc<Journal>,
}

/// Seconds. The longest leaves a client with a deadline of 10 s time for the answer.
const SECONDS: std::ops::RangeInclusive<u32> = 1..=8;
/// Pods that are asked.
const MAX_PODS: usize = 16;
/// Between two questions, each of which leaves a connection in conntrack that ends within 10 s.
const PAUSE: Duration = Duration::from_millis(5);

// === impl Bench ===

impl Bench {
    /// # Errors
    /// INVALID_ARGUMENT unless the time is one of [`SECONDS`].
    pub(super) async fn run(self, seconds: u32) -> Result<BenchSelfResponse, Status> {
        if !SECONDS.contains(&seconds) {
            let (least, most) = (SECONDS.start(), SECONDS.end());
            let why = format!("the field seconds is {seconds}, expected a number from {least} to {most}");
            return Err(Status::invalid_argument(why));
        }
        let start = Instant::now();
        // The kernel counts runs as long as the descriptor is open.
        let counting = self.dataplane.count_runs();
        let before = self.programs().await?;
        let asked = self.ask(start + Duration::from_secs(seconds.into())).await;
        let after = self.programs().await?;
        let (programs, no_programs_because) = match counting {
            Ok(_) => (runs(&before, &after), String::new()),
            Err(error) => (Vec::new(), format!("the kernel counts no runs: {error}")),
        };
        let times = self.journal.times();
        Ok(BenchSelfResponse {
            took_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
            adds: percentiles(times.iter().map(|it| it.total).collect()),
            add_phases: phases(&times),
            answers: percentiles(asked.answers),
            pods: asked.pods,
            unanswered: asked.unanswered,
            unanswered_because: asked.because,
            programs,
            no_programs_because,
        })
    }

    /// Asks pods in turn until the time is over.
    async fn ask(&self, end: Instant) -> Asked {
        let attached = self.registry.find(|it| it.state == State::Attached && it.vif.is_default);
        let pods: Vec<_> = attached.into_iter().take(MAX_PODS).collect();
        let addresses = pods.iter().flat_map(|it| it.vif.addresses.iter());
        let addresses: Vec<IpAddr> = addresses.filter(|it| probe::can_ask(*it)).collect();
        let mut asked = Asked { pods: u32::try_from(pods.len()).unwrap_or(u32::MAX), ..Asked::default() };
        let mut turns = addresses.iter().cycle();
        while Instant::now() < end {
            match turns.next() {
                Some(address) => match probe::ask(*address).await {
                    Ok(after) => asked.answers.push(after),
                    Err(error) => {
                        asked.unanswered += 1;
                        asked.because = format!("{address}: {error}");
                    }
                },
                // The programs may run for other packets.
                None => sleep(end.saturating_duration_since(Instant::now())).await,
            }
            sleep(PAUSE).await;
        }
        asked
    }

    async fn programs(&self) -> Result<Vec<ProgramInfo>, Status> {
        let dataplane = Arc::clone(&self.dataplane);
        let read = spawn_blocking(move || dataplane.programs()).await;
        read.map_err(|error| Status::internal(chain(&error)))
    }
}

/// What pods answered.
#[derive(Default)]
struct Asked {
    pods: u32,
    answers: Vec<Duration>,
    unanswered: u64,
    because: String,
}

/// What the programs have run between two looks.
fn runs(before: &[ProgramInfo], after: &[ProgramInfo]) -> Vec<ProgramRuns> {
    let since = |it: &ProgramInfo| {
        let earlier = before.iter().find(|earlier| earlier.id == it.id);
        let (runs, run_ns) = earlier.map_or((0, 0), |it| (it.runs, it.run_ns));
        ProgramRuns {
            name: it.name.to_owned(),
            id: it.id,
            runs: it.runs.saturating_sub(runs),
            run_ns: it.run_ns.saturating_sub(run_ns),
        }
    };
    after.iter().map(since).collect()
}

/// The median of each phase, in the order in which calls enter them.
fn phases(all: &[Times]) -> Vec<PhaseTime> {
    let mut phases: Vec<(&'static str, Vec<Duration>)> = Vec::new();
    for (phase, took) in all.iter().flat_map(|it| &it.phases) {
        match phases.iter_mut().find(|it| it.0 == *phase) {
            Some((_, all)) => all.push(*took),
            None => phases.push((phase, vec![*took])),
        }
    }
    let median = |all| percentiles(all).map_or(0, |it| it.p50_ns / 1000);
    let show = |(phase, all): (&str, _)| PhaseTime { phase: phase.to_owned(), took_us: median(all) };
    phases.into_iter().map(show).collect()
}

/// By nearest rank; `None` of nothing.
fn percentiles(mut all: Vec<Duration>) -> Option<Percentiles> {
    all.sort_unstable();
    let rank = |percent: usize| {
        let at = (all.len() * percent).div_ceil(100).saturating_sub(1);
        all.get(at).map(|it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX))
    };
    Some(Percentiles {
        count: u64::try_from(all.len()).unwrap_or(u64::MAX),
        p50_ns: rank(50)?,
        p90_ns: rank(90)?,
        p99_ns: rank(99)?,
        max_ns: rank(100)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let of = |all: &[u64]| percentiles(all.iter().copied().map(Duration::from_nanos).collect());
        assert_eq!(of(&[]), None);
        let one = of(&[7]).unwrap();
        assert_eq!((one.count, one.p50_ns, one.p99_ns, one.max_ns), (1, 7, 7, 7));
        let all: Vec<u64> = (1..=200).rev().collect();
        let all = of(&all).unwrap();
        assert_eq!((all.p50_ns, all.p90_ns, all.p99_ns, all.max_ns), (100, 180, 198, 200));
    }

    #[test]
    fn runs_are_those_between_two_looks_and_a_new_program_has_run_from_0() {
        let program = |id, runs, run_ns| ProgramInfo {
            name: "from_pod",
            id,
            tag: String::new(),
            instructions: 0,
            memory: 0,
            runs,
            run_ns,
        };
        let found = runs(&[program(1, 10, 1000)], &[program(1, 12, 1600), program(2, 5, 50)]);
        let found: Vec<_> = found.iter().map(|it| (it.id, it.runs, it.run_ns)).collect();
        assert_eq!(found, [(1, 2, 600), (2, 5, 50)]);
    }

    #[test]
    fn phases_have_the_median_of_the_adds_that_entered_them() {
        let times = |phases: &[(&'static str, u64)]| Times {
            began_ms: 0,
            total: Duration::ZERO,
            phases: phases.iter().map(|(phase, ms)| (*phase, Duration::from_millis(*ms))).collect(),
        };
        let all =
            [times(&[("queue", 1), ("plug", 3)]), times(&[("queue", 5), ("plug", 4)]), times(&[("plug", 9)])];
        let medians: Vec<_> = phases(&all).into_iter().map(|it| (it.phase, it.took_us)).collect();
        assert_eq!(medians, [("queue".to_owned(), 1000), ("plug".to_owned(), 4000)]);
    }
}
