//! The counters of all interfaces with the names of their pods, and those of links with the names of the
//! links.

use std::collections::BTreeMap;

use agent_common::Counters;
use nix::net::if_::if_indextoname;

use super::seen;
use crate::{
    dataplane::Dataplane,
    metrics::{LinkCounters, PodCounters, PodLabels},
    registry::{Owner, Registry},
};

/// Most pods with series of their own, each with up to 2 directions and 20 reasons: more than kubelets run
/// (110, and seldom 500). The youngest of more pods share the series of [`OTHERS`].
const MAX_PODS: usize = 512;
/// No pod has such a name.
const OTHERS: &str = "_other";

/// Reads the counters of all attachments, oldest first, so that a new pod takes no series of another one.
///
/// The entry of interface 0 counts dropped packets of unknown pods: without labels, and only if there are
/// any.
pub fn read(registry: &Registry, dataplane: &Dataplane) -> Vec<PodCounters> {
    let owners = registry.owners();
    let known = owners.iter().filter_map(|owner| Some((labels(owner), owner.link.as_ref()?.ifindex)));
    // An interface that was removed meanwhile has no counters.
    let counters = |ifindex| dataplane.counters(ifindex).ok().flatten();
    let unknown = counters(0).filter(|it| *it != Counters::default()).map(|it| (PodLabels::default(), it));
    let known = known.filter_map(|(labels, ifindex)| Some((labels, counters(ifindex)?)));
    sum(unknown.into_iter().chain(known))
}

/// Reads the counters of the tunnel device and the uplinks. A link that was removed meanwhile has no name.
pub fn links(dataplane: &Dataplane) -> Vec<LinkCounters> {
    let links = dataplane.links().unwrap_or_default();
    let named = |(ifindex, traffic)| {
        let interface = if_indextoname(ifindex).ok()?.into_string().ok()?;
        Some(LinkCounters { ifindex, interface, traffic })
    };
    links.into_iter().filter_map(named).collect()
}

/// Two sandboxes of one pod, the earlier of which is being deleted, share their series.
fn sum(interfaces: impl Iterator<Item = (PodLabels, Counters)>) -> Vec<PodCounters> {
    let mut sums: BTreeMap<PodLabels, Counters> = BTreeMap::new();
    let others = PodLabels { pod: OTHERS.to_owned(), ..PodLabels::default() };
    for (labels, counters) in interfaces {
        let is_full = sums.len() > MAX_PODS && !sums.contains_key(&labels);
        *sums.entry(if is_full { others.clone() } else { labels }).or_default() += counters;
    }
    sums.into_iter().map(|(labels, counters)| PodCounters { labels, counters }).collect()
}

fn labels(owner: &Owner) -> PodLabels {
    PodLabels {
        namespace: owner.pod.namespace.clone(),
        pod: seen::pod_name(owner).to_owned(),
        interface: owner.key.ifname.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use agent_common::Traffic;

    use super::*;

    fn counters(packets: u64) -> Counters {
        Counters { egress: Traffic { packets, ..Traffic::default() }, ..Counters::default() }
    }

    fn pod(number: usize) -> PodLabels {
        PodLabels { pod: format!("pod{number:04}"), ..PodLabels::default() }
    }

    #[test]
    fn two_sandboxes_of_a_pod_share_their_series() {
        let sums = sum([(pod(1), counters(3)), (pod(2), counters(4)), (pod(1), counters(10))].into_iter());
        let packets: Vec<_> = sums.iter().map(|it| (&*it.labels.pod, it.counters.egress.packets)).collect();
        assert_eq!(packets, [("pod0001", 13), ("pod0002", 4)]);
    }

    #[test]
    fn pods_beyond_the_limit_are_summed_in_one_series() {
        let pods = (0..600).map(|number| (pod(number), counters(1)));
        let sums = sum([(PodLabels::default(), counters(7))].into_iter().chain(pods));
        assert_eq!(sums.len(), 514, "512 pods, the unknown ones, and the others");
        let of =
            |name: &str| sums.iter().find(|it| it.labels.pod == name).map(|it| it.counters.egress.packets);
        assert_eq!((of(""), of("pod0511"), of("pod0512"), of("_other")), (Some(7), Some(1), None, Some(88)));
    }
}
