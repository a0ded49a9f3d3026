//! Hands the node's pod CIDRs to the kernel and to the IPAM.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::{sync::watch::Receiver, task::spawn_blocking, time::sleep};

use crate::{health::Reporter, plug::host, registry::Registry};

/// The wait after the kernel or the store has refused.
const RETRY: Duration = Duration::from_secs(5);

/// Enables forwarding to and from the ranges, and then hands them to the IPAM: with the ranges, ADDs begin.
/// Blocks.
///
/// # Errors
/// If a range is unusable, or the kernel or the store refuses.
pub(super) fn use_ranges(registry: &Registry, ranges: &[IpNet]) -> anyhow::Result<()> {
    let own = host::addresses()?;
    host::forward(ranges)?;
    Ok(registry.set_ranges(ranges, &own)?)
}

/// Calls [`use_ranges`] with the newest ranges after each change, and retries until that succeeds. Never
/// returns.
pub(super) async fn follow_ranges(
    registry: Arc<Registry>,
    mut changes: Receiver<Vec<IpNet>>,
    health: Arc<Reporter>,
) {
    loop {
        // The sender is dropped when the watches stop, which is before this task has to end.
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        loop {
            let ranges = changes.borrow_and_update().clone();
            let (registry, now) = (Arc::clone(&registry), ranges.clone());
            let failure = match spawn_blocking(move || use_ranges(&registry, &now)).await {
                Ok(Ok(())) => {
                    let texts: Vec<_> = ranges.iter().map(IpNet::to_string).collect();
                    tracing::info!(ranges = texts.join(", "), "using the node's pod CIDRs");
                    health.healthy(texts.join(", "));
                    break;
                }
                Ok(Err(error)) => error,
                Err(panic) => panic.into(),
            };
            health.unhealthy(format!("cannot use the node's pod CIDRs: {failure:#}; retrying"));
            sleep(RETRY).await;
        }
    }
}
