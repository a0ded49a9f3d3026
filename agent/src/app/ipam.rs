//! Reports the use of the node's ranges, and the pods whose addresses are outside of them.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    cluster::PodRef, health::Reporter, ipam::Pressure, metrics::IpamMetrics, metrics::count,
    registry::Registry,
};

/// Observes the registry's addresses.
pub(super) struct IpamReport {
    pub registry: Arc<Registry>,
    /// Ranges beside the node's own that pods' addresses may be in.
    pub also_allowed: Vec<IpNet>,
    pub metrics: IpamMetrics,
    /// `None` if no pod gets its address from the IPAM.
    pub ipam: Option<Reporter>,
    /// `None` if addresses need no range.
    pub addresses: Option<Reporter>,
    pub pressure: Pressure,
}

/// Nothing on the path of a call reports; addresses are counted this often.
const PERIOD: Duration = Duration::from_secs(1);
/// Pods that a message names.
const NAMED: usize = 5;

// === impl IpamReport ===

impl IpamReport {
    /// Runs until dropped.
    pub async fn run(mut self) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.update();
        }
    }

    pub fn update(&mut self) {
        let usage = self.registry.usage();
        self.metrics.set(&usage);
        if let Some(ipam) = &self.ipam {
            match self.pressure.update(&usage) {
                Ok(described) => ipam.healthy(described),
                Err(why) => ipam.unhealthy(why),
            }
        }
        let outside = self.registry.outside(&self.also_allowed);
        self.metrics.outside.set(count(outside.len()));
        if let Some(addresses) = &self.addresses {
            match describe(&outside) {
                None => addresses.healthy("every pod's address is in a range of this node"),
                Some(why) => addresses.unhealthy(why),
            }
        }
    }
}

/// The pods outside of the ranges, if there are any.
fn describe(outside: &[(PodRef, String)]) -> Option<String> {
    let named: Vec<_> =
        outside.iter().take(NAMED).map(|(pod, addresses)| format!("{pod} ({addresses})")).collect();
    let more = match outside.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!outside.is_empty()).then(|| {
        format!(
            "{} of this node's interfaces have addresses outside of its ranges, which another node may get: {}{more}; \
             delete these pods",
            outside.len(),
            named.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_outside_of_the_ranges_are_named_up_to_five() {
        assert_eq!(describe(&[]), None);
        let pod = |number: usize| {
            let pod = PodRef { namespace: "n".to_owned(), name: format!("p{number}"), uid: String::new() };
            (pod, format!("10.0.0.{number}"))
        };
        let one = describe(&[pod(1)]).unwrap();
        assert!(one.starts_with("1 of this node's") && one.contains(": n/p1 (10.0.0.1); delete"), "{one}");
        let all: Vec<_> = (0..7).map(pod).collect();
        let many = describe(&all).unwrap();
        assert!(many.contains("n/p4 (10.0.0.4) and 2 more") && !many.contains("p5"), "{many}");
    }
}
