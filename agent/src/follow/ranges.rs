//! The ranges that a controller gave to this node, put to use.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::{
    sync::watch::{Receiver, Sender, channel},
    task::spawn_blocking,
    time::sleep,
};

use crate::{
    attach::Engine,
    health::Reporter,
    plug::host,
    watch::{self, Change, Object as _, Sink},
};

/// Takes the Node object's changes.
pub(super) struct RangeSink {
    name: String,
    ranges: Sender<Vec<IpNet>>,
    health: Arc<Reporter>,
}

/// How long to wait after the kernel or the store has refused.
const RETRY: Duration = Duration::from_secs(5);

/// What takes the changes, and what puts the newest to use: one after the other, and again if that fails.
pub(super) fn ranges(
    engine: Arc<Engine>,
    name: &str,
    health: Reporter,
) -> (RangeSink, impl Future<Output = ()> + Send + 'static) {
    let (ranges, told) = channel(Vec::new());
    let health = Arc::new(health);
    let sink = RangeSink { name: name.to_owned(), ranges, health: Arc::clone(&health) };
    (sink, put_to_use(engine, told, health))
}

/// Makes the node forward what goes to and from ranges, and gives them to the IPAM; in this order, as from then on pods
/// are plugged. May block.
///
/// # Errors
/// If the ranges are unfit, or the kernel or the store refuses.
pub fn use_ranges(engine: &Engine, ranges: &[IpNet]) -> anyhow::Result<()> {
    let own = host::addresses()?;
    host::forward(ranges)?;
    Ok(engine.registry.set_ranges(ranges, &own)?)
}

impl Sink<watch::Node> for RangeSink {
    fn apply(&self, change: Change<watch::Node>) {
        match change {
            Change::Applied(node) => self.ranges_of(&node),
            Change::Gone { .. } => {
                tracing::warn!(node = self.name, "the Node object is gone; its pod CIDRs stay in use");
            }
            Change::Synced if self.ranges.borrow().is_empty() => {
                let name = &self.name;
                self.health.starting(format!(
                    "the node {name} has no spec.podCIDRs yet: a controller has to give it some"
                ));
            }
            Change::Synced => {}
        }
    }
}

// === impl RangeSink ===

impl RangeSink {
    fn ranges_of(&self, node: &watch::Node) {
        let one = std::slice::from_ref(&node.spec.pod_cidr).iter().filter(|it| !it.is_empty());
        let texts: Vec<&String> =
            if node.spec.pod_cidrs.is_empty() { one.collect() } else { node.spec.pod_cidrs.iter().collect() };
        let ranges: Result<Vec<IpNet>, _> = texts.iter().map(|text| text.parse()).collect();
        match ranges {
            Ok(ranges) if ranges.is_empty() => {}
            Ok(ranges) => {
                self.ranges.send_if_modified(|before| {
                    let is_new = *before != ranges;
                    *before = ranges;
                    is_new
                });
            }
            Err(_) => {
                let name = &node.metadata().name;
                self.health.unhealthy(format!("the spec.podCIDRs of the node {name} are none: {texts:?}"));
            }
        }
    }
}

async fn put_to_use(engine: Arc<Engine>, mut told: Receiver<Vec<IpNet>>, health: Arc<Reporter>) {
    loop {
        // The sink is gone when the agent stops; then there is nothing more to do, and this must not end before.
        if told.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        loop {
            let ranges = told.borrow_and_update().clone();
            let (engine, now) = (Arc::clone(&engine), ranges.clone());
            let failure = match spawn_blocking(move || use_ranges(&engine, &now)).await {
                Ok(Ok(())) => {
                    let texts: Vec<_> = ranges.iter().map(IpNet::to_string).collect();
                    tracing::info!(ranges = texts.join(", "), "the node has pod CIDRs");
                    health.healthy(texts.join(", "));
                    break;
                }
                Ok(Err(error)) => error,
                Err(panic) => panic.into(),
            };
            health.unhealthy(format!("the node's pod CIDRs cannot be used: {failure:#}; trying again"));
            sleep(RETRY).await;
        }
    }
}
