//! Hands the node's pod CIDRs to the kernel and to the IPAM.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::{sync::watch::Receiver, task::spawn_blocking, time::timeout};

use crate::{
    health::Reporter,
    ipam::{PodCidrs, Ranges, overlap},
    plug::{
        connected::{self, Connected},
        host,
    },
    registry::Registry,
};

/// Pods would get the addresses of the node's neighbours.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pod CIDR {range} overlaps {}, the network of this node's interface {}, and pods would get the addresses of \
     the neighbours there: choose another range (--pod-cidr, or spec.podCIDRs of the Node), or remove the interface",
    of.net, of.interface
)]
pub struct UnusableRange {
    range: IpNet,
    of: Connected,
}

/// The wait after the kernel has refused.
const RETRY: Duration = Duration::from_secs(5);

/// Enables forwarding to and from the ranges, and then hands them to the IPAM: with the ranges, ADDs begin.
/// Blocks.
///
/// # Errors
/// If a range overlaps a network of the node, or the kernel refuses.
pub(super) fn use_ranges(registry: &Registry, ranges: PodCidrs) -> anyhow::Result<()> {
    check(&ranges, connected::networks()?)?;
    let own = host::addresses()?;
    host::forward(ranges.nets())?;
    registry.set_ranges(ranges, &own);
    Ok(())
}

fn check(ranges: &PodCidrs, networks: Vec<Connected>) -> Result<(), UnusableRange> {
    for of in networks {
        if let Some(range) = ranges.nets().iter().find(|range| overlap(range, &of.net)) {
            return Err(UnusableRange { range: *range, of });
        }
    }
    Ok(())
}

/// Applies the newest ranges after each change, and retries until that succeeds. Never returns.
pub(super) async fn follow_ranges(
    registry: Arc<Registry>,
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
            let to = Arc::clone(&registry);
            let failure = match spawn_blocking(move || use_ranges(&to, ranges)).await {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_overlaps_a_network_of_the_node_is_refused_with_its_interface() {
        let ranges = vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let ranges = PodCidrs::new(ranges).unwrap();
        let of = |net: &str| vec![Connected { net: net.parse().unwrap(), interface: "eth7".to_owned() }];
        for net in ["10.0.0.0/25", "10.0.0.0/16", "fd00::/48"] {
            let error = check(&ranges, of(net)).unwrap_err().to_string();
            assert!(error.contains(net) && error.contains("interface eth7"), "{error}");
        }
        assert_eq!(check(&ranges, [of("10.0.1.0/24"), of("192.0.2.0/24")].concat()), Ok(()));
    }
}
