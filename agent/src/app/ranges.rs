//! Hands the node's pod CIDRs to the kernel and to the IPAM.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch::Receiver, task::spawn_blocking, time::timeout};

use super::local_network::LocalNetwork;
use crate::{health::Reporter, ipam::Ranges, registry::Registry};

/// The wait after the kernel has refused.
const RETRY: Duration = Duration::from_secs(5);

/// Applies the newest ranges after each change, and retries until that succeeds. Never returns.
pub(super) async fn follow_ranges(
    (registry, network): (Arc<Registry>, Arc<LocalNetwork>),
    mut changes: Receiver<Ranges>,
    health: Arc<Reporter>,
) {
    loop {
        // The sender is dropped when the watches stop, which is before this task has to end.
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        loop {
            let ranges = match changes.borrow_and_update().clone() {
                Ranges::Awaited => break,
                Ranges::Known(ranges) => ranges,
                Ranges::Withdrawn(why) => {
                    health.unhealthy(format!("{why}; pods keep their addresses, and new pods get none"));
                    registry.withdraw_ranges(why);
                    break;
                }
            };
            let text = ranges.to_string();
            let to = Arc::clone(&network);
            let failure = match spawn_blocking(move || to.use_ranges(ranges)).await {
                Ok(Ok(())) => {
                    tracing::info!(ranges = text, "using the node's pod CIDRs");
                    health.healthy(text);
                    break;
                }
                Ok(Err(error)) => error,
                Err(panic) => panic.into(),
            };
            // Earlier ranges are not this node's any more.
            let why = format!("cannot use the node's pod CIDRs {text}: {failure:#}");
            health.unhealthy(format!("{why}; retrying"));
            registry.withdraw_ranges(why);
            if let Ok(Err(_)) = timeout(RETRY, changes.changed()).await {
                std::future::pending::<()>().await;
            }
        }
    }
}
