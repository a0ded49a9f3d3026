//! The records of the programs, written into the history.

use std::{future::pending, sync::Arc};

use agent_common::event::Event;

use super::{
    clock::WallClock,
    history::History,
    packet::Packet,
    seen::{KnownPods, Seen},
};
use crate::{
    chain::chain,
    dataplane::{EventReader, MapFailure},
    health::Reporter,
    metrics::MonitorMetrics,
    policy::{Denial, Denials},
};

/// Explains records and adds them to the history.
pub struct Recorder {
    pods: KnownPods,
    history: Arc<History>,
    denials: Arc<dyn Denials>,
    metrics: MonitorMetrics,
    clock: WallClock,
}

// === impl Recorder ===

impl Recorder {
    pub fn new(
        pods: KnownPods,
        history: Arc<History>,
        denials: Arc<dyn Denials>,
        metrics: MonitorMetrics,
    ) -> Self {
        Self { pods, history, denials, metrics, clock: WallClock::default() }
    }

    /// Records until dropped. Without records, everything else works.
    pub async fn run(mut self, reader: Result<EventReader, MapFailure>, health: Reporter) {
        let error = match reader {
            Err(error) => chain(&error),
            Ok(reader) => {
                health.healthy("recording dropped packets");
                chain(&reader.run(|event| self.record(event)).await)
            }
        };
        health
            .unhealthy(format!("dropped packets are counted, but not recorded: {error}; restart the agent"));
        pending().await
    }

    fn record(&mut self, event: Option<Event>) {
        let Some(event) = event else {
            self.metrics.undecodable.inc();
            return;
        };
        self.metrics.record(&event);
        let seen = Seen::new(&event, &self.pods, &mut self.clock);
        let denial = self.denial(&event, &seen.packet);
        self.history.push(Seen { denial, ..seen });
    }

    /// Which policies denied the packet.
    fn denial(&self, event: &Event, packet: &Packet) -> Option<Box<Denial>> {
        match event {
            Event::Drop(record) => self.denials.of(record, packet.traffic()).map(Box::new),
            Event::Flow(_) => None,
        }
    }
}
