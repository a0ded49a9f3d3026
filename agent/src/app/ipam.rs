//! Reports the use of the node's ranges, and the pods whose addresses are outside of them.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    cluster::PodRef,
    health::Reporter,
    ipam::Pressure,
    metrics::{IpamMetrics, count},
    registry::{Key, Registry},
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

/// The attachments outside of the ranges, if there are any. A container without a pod has only its key.
fn describe(outside: &[(Key, PodRef, String)]) -> Option<String> {
    let name = |(key, pod, addresses): &(Key, PodRef, String)| {
        if pod.name.is_empty() { format!("{key} ({addresses})") } else { format!("{pod} ({addresses})") }
    };
    let named: Vec<_> = outside.iter().take(NAMED).map(name).collect();
    let more = match outside.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!outside.is_empty()).then(|| {
        format!(
            "interfaces with addresses outside of the node's ranges, which another node may get: {}: {}{more}; delete \
             these pods",
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
            let key = Key::try_from(format!("net/c{number}/eth0")).unwrap();
            (key, pod, format!("10.0.0.{number}"))
        };
        let one = describe(&[pod(1)]).unwrap();
        assert!(one.contains("may get: 1: n/p1 (10.0.0.1); delete"), "{one}");
        let (key, _, addresses) = pod(1);
        let container = describe(&[(key, PodRef::default(), addresses)]).unwrap();
        assert!(container.contains(": net/c1/eth0 (10.0.0.1); delete"), "{container}");
        let all: Vec<_> = (0..7).map(pod).collect();
        let many = describe(&all).unwrap();
        assert!(many.contains("n/p4 (10.0.0.4) and 2 more") && !many.contains("p5"), "{many}");
    }
}
