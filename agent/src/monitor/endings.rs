//! The last records of flows that end without a sign, as all but TCP's do: those without a packet for a
//! minute. The agent removes their entries from the map, and those of closed flows, which have had their last
//! record.
//!
//! The programs cannot make these records: they run for packets only.

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent_common::{
    FlowKey,
    event::{Event, FlowRecord, FlowStats, flow_state, kind},
};
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use super::{
    clock::WallClock,
    history::History,
    seen::{KnownPods, Seen},
};
use crate::{
    chain::chain,
    dataplane::{Dataplane, MapFailure},
    metrics::MonitorMetrics,
    registry::since_boot,
};

/// Looks at the flows that are counted, while any are.
pub struct Endings {
    dataplane: Arc<Dataplane>,
    pods: KnownPods,
    history: Arc<History>,
    metrics: MonitorMetrics,
    clock: WallClock,
}

type Flows = Vec<(FlowKey, FlowStats)>;

/// What the last look has found.
#[derive(Debug, Default)]
struct Known(HashMap<FlowKey, Count>);

#[derive(Debug, Clone, Copy)]
struct Count {
    packets: u64,
    /// Of the look that found this number first, since boot.
    since: Duration,
}

/// Between two looks; one at a full map takes some ten milliseconds of CPU.
const PERIOD: Duration = Duration::from_secs(10);
/// A flow without packets for so long has ended.
const IDLE: Duration = Duration::from_secs(60);

// === impl Endings ===

impl Endings {
    pub fn new(
        dataplane: Arc<Dataplane>,
        pods: KnownPods,
        history: Arc<History>,
        metrics: MonitorMetrics,
    ) -> Self {
        Self { dataplane, pods, history, metrics, clock: WallClock::default() }
    }

    /// Runs until dropped.
    pub async fn run(mut self) {
        let mut looks = interval(PERIOD);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut known, mut has_failed) = (Known::default(), false);
        loop {
            looks.tick().await;
            // Without sampling, no flow is counted, and none has ended.
            if self.dataplane.flow_sampling() == 0 {
                known = Known::default();
                continue;
            }
            let dataplane = Arc::clone(&self.dataplane);
            let look = spawn_blocking(move || {
                let found = look(&dataplane, &mut known);
                (known, found)
            });
            let found;
            (known, found) = look.await.unwrap_or_else(|_| (Known::default(), Ok(Vec::new())));
            match found {
                Ok(ended) => {
                    has_failed = false;
                    self.record(ended);
                }
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::warn!(error = chain(&error), "flows that end have no last record; retrying");
                }
                Err(_) => {}
            }
        }
    }

    fn record(&mut self, ended: Flows) {
        let time = u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX);
        for (flow, stats) in ended {
            let state = flow_state::ENDED;
            let event = Event::Flow(FlowRecord {
                kind: kind::FLOW,
                state,
                time,
                suppressed: 0,
                lost: 0,
                flow,
                stats,
            });
            self.metrics.record(&event);
            self.history.push(Seen::new(&event, &self.pods, &mut self.clock));
        }
    }
}

/// The flows that have ended, and are forgotten. One that cannot be forgotten is found again. Blocks.
fn look(dataplane: &Dataplane, known: &mut Known) -> Result<Flows, MapFailure> {
    let mut ended = known.ended(dataplane.counted_flows()?, since_boot());
    let mut failure = None;
    ended.retain(|(flow, _)| dataplane.forget_flow(flow).map_err(|error| failure = Some(error)).is_ok());
    match failure {
        Some(error) if ended.is_empty() => Err(error),
        _ => Ok(ended.into_iter().filter(|(_, stats)| stats.closed == 0).collect()),
    }
}

// === impl Known ===

impl Known {
    /// Takes what a look has found `now`, and returns the flows that have ended.
    fn ended(&mut self, found: Flows, now: Duration) -> Flows {
        let mut next = HashMap::with_capacity(found.len());
        // A walk can find a flow twice.
        let mut ended = HashMap::new();
        for (flow, stats) in found {
            let packets = stats.from_low.packets.wrapping_add(stats.from_high.packets);
            let before = self.0.get(&flow).filter(|it| it.packets == packets);
            let count = before.copied().unwrap_or(Count { packets, since: now });
            if now.saturating_sub(count.since) < IDLE {
                next.insert(flow, count);
            } else {
                ended.insert(flow, stats);
            }
        }
        self.0 = next;
        ended.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_common::{EndpointKey, event::FlowTraffic};

    fn flow(port: u16, packets: u64) -> (FlowKey, FlowStats) {
        let end = |last, port| (EndpointKey::ipv4([10, 0, 0, last]), port);
        let traffic = FlowTraffic { packets, bytes: 0 };
        (
            FlowKey::between(17, end(1, port), end(2, 53)),
            FlowStats { from_high: traffic, ..FlowStats::default() },
        )
    }

    #[test]
    fn a_flow_without_packets_for_a_minute_has_ended_once() {
        const NONE: [u16; 0] = [];
        let mut known = Known::default();
        let mut at = |seconds, found: &[_]| {
            let ended = known.ended(found.to_vec(), Duration::from_secs(seconds));
            ended.iter().map(|(flow, _)| flow.low_port).collect::<Vec<_>>()
        };
        assert_eq!(at(100, &[flow(1, 5), flow(2, 5)]), NONE);
        assert_eq!(at(159, &[flow(1, 5), flow(2, 6)]), NONE);
        assert_eq!(at(160, &[flow(1, 5), flow(2, 6), flow(1, 5)]), [1], "found twice by one walk");
        assert_eq!(at(170, &[flow(2, 6)]), NONE);
        assert_eq!(at(219, &[flow(1, 5), flow(2, 6)]), [2], "flow 1 has begun again");
        // Not found by a walk that was cut short.
        assert_eq!(at(230, &[]), NONE);
        assert_eq!(at(290, &[flow(1, 5)]), NONE);
        assert_eq!(at(350, &[flow(1, 5)]), [1]);
    }
}
