//! From counters to rates. Pure.

use std::{collections::HashMap, time::Duration};

use ferrule_proto::agent::{Attachment, Counters};
use serde::Serialize;

/// What an interface of a pod does in a second. Directions are the pod's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Rate {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container_id: String,
    pub(crate) ifname: String,
    pub(crate) egress_packets: f64,
    pub(crate) egress_bytes: f64,
    pub(crate) ingress_packets: f64,
    pub(crate) ingress_bytes: f64,
    pub(crate) drops: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Bytes in both directions
    #[default]
    Bytes,
    /// Packets in both directions
    Packets,
    Drops,
    /// Bytes that the pod sends
    Out,
    /// Bytes that the pod receives
    In,
    /// The name
    Pod,
}

/// The rates of the attachments that have counters now. One that is new has counted from 0.
pub(super) fn rates(before: &[Attachment], now: &[Attachment], elapsed: Duration) -> Vec<Rate> {
    let key = |it: &Attachment| (it.container_id.clone(), it.ifname.clone(), it.created_at_ms);
    let before: HashMap<_, _> =
        before.iter().filter_map(|it| Some((key(it), it.counters.as_ref()?))).collect();
    let none = Counters::default();
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = |it: &Attachment| {
        let (now, then) = (it.counters.as_ref()?, before.get(&key(it)).copied().unwrap_or(&none));
        let per_second = |of: fn(&Counters) -> u64| of(now).saturating_sub(of(then)) as f64 / seconds;
        Some(Rate {
            namespace: it.pod_namespace.clone(),
            pod: it.pod_name.clone(),
            container_id: it.container_id.clone(),
            ifname: it.ifname.clone(),
            egress_packets: per_second(|it| it.egress_packets),
            egress_bytes: per_second(|it| it.egress_bytes),
            ingress_packets: per_second(|it| it.ingress_packets),
            ingress_bytes: per_second(|it| it.ingress_bytes),
            drops: per_second(|it| {
                it.egress_drops.iter().chain(&it.ingress_drops).map(|it| it.packets).sum()
            }),
        })
    };
    now.iter().filter_map(rate).collect()
}

/// The largest first; equal ones by name.
pub(super) fn order(rates: &mut [Rate], by: Sort) {
    rates.sort_by(|one, other| {
        let names =
            |it: &Rate| (it.namespace.clone(), it.pod.clone(), it.ifname.clone(), it.container_id.clone());
        other.weight(by).total_cmp(&one.weight(by)).then_with(|| names(one).cmp(&names(other)))
    });
}

/// With three digits and a unit of 1000.
pub(super) fn shown(rate: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| rate >= *unit) {
        Some((unit, name)) if rate / unit < 10.0 => format!("{:.1}{name}", rate / unit),
        Some((unit, name)) => format!("{:.0}{name}", rate / unit),
        None => format!("{rate:.0}"),
    }
}

// === impl Rate ===

impl Rate {
    fn weight(&self, by: Sort) -> f64 {
        match by {
            Sort::Bytes => self.egress_bytes + self.ingress_bytes,
            Sort::Packets => self.egress_packets + self.ingress_packets,
            Sort::Drops => self.drops,
            Sort::Out => self.egress_bytes,
            Sort::In => self.ingress_bytes,
            Sort::Pod => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::Drop;

    use super::*;

    fn attachment(pod: &str, out: u64, into: u64, drops: u64) -> Attachment {
        Attachment {
            pod_namespace: "shop".to_owned(),
            pod_name: pod.to_owned(),
            container_id: pod.to_owned(),
            counters: Some(Counters {
                egress_packets: out / 100,
                egress_bytes: out,
                ingress_packets: into / 100,
                ingress_bytes: into,
                ingress_drops: vec![Drop { reason: "policy_ingress".to_owned(), packets: drops }],
                ..Counters::default()
            }),
            ..Attachment::default()
        }
    }

    #[test]
    fn a_rate_is_the_difference_in_a_second_and_a_new_pod_counts_from_zero() {
        let before = [attachment("web", 1000, 500, 1), attachment("gone", 9, 9, 9)];
        let without = Attachment { counters: None, ..attachment("starting", 0, 0, 0) };
        let now = [attachment("web", 5000, 900, 7), attachment("new", 200, 0, 0), without];
        let rates = rates(&before, &now, Duration::from_secs(2));
        assert_eq!(rates.len(), 2, "{rates:?}");
        assert_eq!((rates[0].egress_bytes, rates[0].ingress_bytes, rates[0].drops), (2000.0, 200.0, 3.0));
        assert_eq!((rates[0].egress_packets, rates[1].egress_bytes), (20.0, 100.0));
        let replaced = [Attachment { created_at_ms: 7, ..attachment("web", 10, 0, 0) }];
        assert_eq!(super::rates(&before, &replaced, Duration::from_secs(1))[0].egress_bytes, 10.0);
    }

    #[test]
    fn the_order_is_that_of_the_key_and_then_of_names() {
        let now = [attachment("b", 100, 900, 0), attachment("c", 500, 0, 9), attachment("a", 500, 0, 0)];
        let mut rates = rates(&[], &now, Duration::from_secs(1));
        for (sort, expected) in [
            (Sort::Bytes, "bac"),
            (Sort::Packets, "bac"),
            (Sort::Drops, "cab"),
            (Sort::Out, "acb"),
            (Sort::In, "bac"),
            (Sort::Pod, "abc"),
        ] {
            order(&mut rates, sort);
            assert_eq!(rates.iter().map(|it| it.pod.as_str()).collect::<String>(), expected, "{sort:?}");
        }
    }

    #[test]
    fn rates_are_short() {
        for (rate, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1000.0, "1.0k"),
            (12_345.0, "12k"),
            (2_500_000.0, "2.5M"),
            (3e10, "30G"),
        ] {
            assert_eq!(shown(rate), text);
        }
    }
}
