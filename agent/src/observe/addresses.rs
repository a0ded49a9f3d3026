//! `ferrulectl ipam`: the node's ranges, and which address is whose.

use ferrule_proto::agent::{ListAddressesResponse, PodAddress, PodRange, pod_address::State};

use crate::{
    ipam::Ranges,
    registry::{Holder, Holding, Registry},
};

pub(super) fn list(registry: &Registry) -> ListAddressesResponse {
    let ranges = registry.ranges().borrow().clone();
    let addresses = registry.holdings().into_iter().map(|it| {
        let in_range = ranges.nets().iter().any(|range| range.contains(&it.address));
        show(it, in_range)
    });
    let shown = registry.usage_by_range().into_iter().map(|it| PodRange {
        range: it.ranges,
        used: it.used as u64,
        resting: it.cooling_down as u64,
        free: u64::try_from(it.free).unwrap_or(u64::MAX),
    });
    ListAddressesResponse {
        ranges: shown.collect(),
        addresses: addresses.collect(),
        no_ranges_because: match &ranges {
            Ranges::Known(_) => String::new(),
            Ranges::Awaited => "the node's pod CIDRs are not known yet".to_owned(),
            Ranges::Withdrawn(why) => why.clone(),
        },
    }
}

fn show(Holding { address, key, holder }: Holding, in_range: bool) -> PodAddress {
    let shown = PodAddress {
        address: address.to_string(),
        network: key.network.to_string(),
        container_id: key.container_id.to_string(),
        ifname: key.ifname.to_string(),
        in_range,
        ..PodAddress::default()
    };
    match holder {
        Holder::Attachment(pod) => PodAddress {
            state: State::Used.into(),
            pod_namespace: pod.namespace,
            pod_name: pod.name,
            ..shown
        },
        Holder::Add => PodAddress { state: State::Promised.into(), ..shown },
        Holder::Left => PodAddress { state: State::Left.into(), ..shown },
        Holder::Resting(rest) => PodAddress {
            state: State::Resting.into(),
            rests_ms: u64::try_from(rest.as_millis()).unwrap_or(u64::MAX),
            ..shown
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{cluster::PodRef, registry::Key};

    #[test]
    fn each_holder_has_a_state_and_only_a_pod_has_a_name() {
        let holding = |holder| Holding {
            address: "10.0.0.2".parse().unwrap(),
            key: Key::try_from("net/a/eth0".to_owned()).unwrap(),
            holder,
        };
        let pod = PodRef { namespace: "shop".to_owned(), name: "web".to_owned(), uid: String::new() };
        for (holder, state, name, rests_ms) in [
            (Holder::Attachment(pod), State::Used, "web", 0),
            (Holder::Add, State::Promised, "", 0),
            (Holder::Left, State::Left, "", 0),
            (Holder::Resting(Duration::from_millis(1500)), State::Resting, "", 1500),
        ] {
            let shown = show(holding(holder), true);
            assert_eq!((shown.state(), shown.pod_name.as_str(), shown.rests_ms), (state, name, rests_ms));
            assert_eq!((shown.container_id.as_str(), shown.in_range), ("a", true));
        }
    }
}
