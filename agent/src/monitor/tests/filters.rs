//! Which entries a filter matches, and which filters are refused.

use agent_common::event::{DropRecord, direction};
use ferrule_proto::flow::{
    self, DropReason, EventTypeFilter, FlowFilter, IpVersion, NetworkInterface, TcpFlags, TrafficDirection,
    Verdict, flow_filter::Experimental,
};

use super::{Pods, datagram, dropped, seen, syn};
use crate::monitor::{
    filter::{FilterError, Filters},
    seen::Seen,
};

/// A SYN from pod1 to port 80 of pod2, dropped on its way out.
fn entry() -> Seen {
    seen(dropped(1, &syn([10, 0, 0, 1], [10, 0, 0, 2])), &Pods::new(&[(1, 0), (2, 0)]))
}

fn matches(filter: FlowFilter) -> bool {
    Filters::new(&[filter], &[]).unwrap().matches(&entry())
}

fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn refused(filter: FlowFilter) -> String {
    Filters::new(&[], &[filter]).unwrap_err().to_string()
}

#[test]
fn addresses_match_exactly_or_by_network() {
    let from = |values| matches(FlowFilter { source_ip: texts(values), ..FlowFilter::default() });
    let to = |values| matches(FlowFilter { destination_ip: texts(values), ..FlowFilter::default() });
    assert!(from(&["10.0.0.1"]) && from(&["10.0.0.0/24"]) && from(&["fd00::/8", "10.0.0.1"]));
    assert!(!from(&["10.0.0.2"]) && !from(&["10.0.1.0/24"]));
    assert!(to(&["10.0.0.2"]) && !to(&["10.0.0.1"]));
}

#[test]
fn pods_match_by_namespace_and_the_beginning_of_the_name() {
    let from = |value| matches(FlowFilter { source_pod: texts(&[value]), ..FlowFilter::default() });
    let to = |value| matches(FlowFilter { destination_pod: texts(&[value]), ..FlowFilter::default() });
    assert!(from("shop/pod1") && from("shop/po") && from("shop/") && from("/pod") && from("/"));
    assert!(!from("shop/pod2") && !from("other/pod1") && !from("/web"));
    assert!(!from("pod1"), "a name without a namespace is one of the namespace default");
    assert!(to("shop/pod2") && !to("shop/pod1"));
    let unknown = seen(dropped(9, &syn([10, 0, 0, 1], [10, 9, 9, 9])), &Pods::default());
    let anywhere = FlowFilter { destination_pod: texts(&["/"]), ..FlowFilter::default() };
    assert!(!Filters::new(&[anywhere], &[]).unwrap().matches(&unknown), "no pod has the address");
}

#[test]
fn ports_protocols_and_flags_match() {
    let port = |from, to| {
        matches(FlowFilter { source_port: texts(from), destination_port: texts(to), ..FlowFilter::default() })
    };
    assert!(port(&[], &["80"]) && port(&["40000"], &["443", "80"]) && !port(&["80"], &[]));
    let protocol = |value| matches(FlowFilter { protocol: texts(&[value]), ..FlowFilter::default() });
    assert!(protocol("tcp") && protocol("TCP") && !protocol("udp") && !protocol("icmp"));
    let flags = |flags| matches(FlowFilter { tcp_flags: vec![flags], ..FlowFilter::default() });
    assert!(flags(TcpFlags { syn: true, ..TcpFlags::default() }));
    assert!(!flags(TcpFlags { syn: true, ack: true, ..TcpFlags::default() }), "all flags have to be set");
}

#[test]
fn verdict_reason_direction_and_version_match() {
    let base = FlowFilter::default;
    let verdict = |it: Verdict| matches(FlowFilter { verdict: vec![it.into()], ..base() });
    assert!(verdict(Verdict::Dropped) && !verdict(Verdict::Forwarded));
    let reason = |it: DropReason| matches(FlowFilter { drop_reason_desc: vec![it.into()], ..base() });
    assert!(reason(DropReason::InvalidSourceIp) && !reason(DropReason::PolicyDenied));
    let to = |it: TrafficDirection| matches(FlowFilter { traffic_direction: vec![it.into()], ..base() });
    assert!(to(TrafficDirection::Egress) && !to(TrafficDirection::Ingress));
    let version = |it: IpVersion| matches(FlowFilter { ip_version: vec![it.into()], ..base() });
    assert!(version(IpVersion::IPv4) && !version(IpVersion::IPv6));
    assert!(!matches(FlowFilter { reply: vec![true, false], ..base() }), "unknown for a drop");
    let interface = |index, name: &str| {
        matches(FlowFilter { interface: vec![NetworkInterface { index, name: name.to_owned() }], ..base() })
    };
    assert!(interface(1, "") && interface(0, "fr1") && !interface(2, "") && !interface(0, "fr2"));
    let event = |r#type, match_sub_type, sub_type| {
        let event_type = vec![EventTypeFilter { r#type, match_sub_type, sub_type }];
        matches(FlowFilter { event_type, ..base() })
    };
    // 132 is Cilium's number of an invalid source address.
    assert!(event(1, false, 0) && event(1, true, 132) && !event(1, true, 133) && !event(4, false, 0));
}

#[test]
fn all_fields_of_a_filter_have_to_match_and_one_filter_of_several() {
    let from = FlowFilter { source_pod: texts(&["shop/pod1"]), ..FlowFilter::default() };
    let web = FlowFilter { destination_port: texts(&["443"]), ..from.clone() };
    assert!(matches(from.clone()) && !matches(web.clone()));
    let is_shown = |include: &[_], exclude: &[_]| Filters::new(include, exclude).unwrap().matches(&entry());
    assert!(is_shown(&[web.clone(), from.clone()], &[]));
    assert!(is_shown(&[], &[web]));
    assert!(!is_shown(&[], &[from]));
    assert!(is_shown(&[], &[]));
    assert!(!is_shown(&[], &[FlowFilter::default()]), "a filter without fields matches everything");
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    let one = || texts(&["x"]);
    let base = FlowFilter::default;
    for (field, filter) in [
        ("source_label", FlowFilter { source_label: one(), ..base() }),
        ("destination_service", FlowFilter { destination_service: one(), ..base() }),
        ("http_path", FlowFilter { http_path: one(), ..base() }),
        ("uuid", FlowFilter { uuid: one(), ..base() }),
        ("node_name", FlowFilter { node_name: one(), ..base() }),
        ("source_identity", FlowFilter { source_identity: vec![0], ..base() }),
        ("encrypted", FlowFilter { encrypted: vec![false], ..base() }),
        ("source_workload", FlowFilter { source_workload: vec![flow::Workload::default()], ..base() }),
        ("experimental", FlowFilter { experimental: Some(Experimental::default()), ..base() }),
        (
            "tcp_flags.NS",
            FlowFilter { tcp_flags: vec![TcpFlags { ns: true, ..TcpFlags::default() }], ..base() },
        ),
    ] {
        let error = refused(filter);
        assert!(error.starts_with(&format!("the filter's field {field} is not supported: ")), "{error}");
    }
}

#[test]
fn invalid_values_are_refused_with_what_was_expected() {
    let base = FlowFilter::default;
    let error = refused(FlowFilter { source_ip: texts(&["10.0.0"]), ..base() });
    let expected = "the filter's field source_ip has the value \"10.0.0\", expected an address, or a network such as \
                    10.0.0.0/24";
    assert_eq!(error, expected);
    assert!(
        refused(FlowFilter { destination_port: texts(&["65536"]), ..base() }).contains("destination_port")
    );
    assert!(refused(FlowFilter { protocol: texts(&["http"]), ..base() }).contains("tcp, udp, sctp"));
    assert!(refused(FlowFilter { source_pod: texts(&["a/b/c"]), ..base() }).contains("source_pod"));
    assert!(refused(FlowFilter { destination_pod: texts(&[""]), ..base() }).contains("destination_pod"));
}

#[test]
fn the_number_of_filters_and_values_is_bounded() {
    let filters = vec![FlowFilter::default(); 65];
    assert_eq!(Filters::new(&filters, &[]).unwrap_err(), FilterError::TooMany(65));
    assert!(Filters::new(&filters[..32], &filters[..32]).is_ok());
    let ports = (0..65).map(|port: u16| port.to_string()).collect();
    let error = refused(FlowFilter { source_port: ports, ..FlowFilter::default() });
    assert!(error.contains("source_port has 65 values, expected at most 64"), "{error}");
}

#[test]
fn a_packet_without_ports_matches_no_port() {
    let filter = FlowFilter { source_port: texts(&["0"]), ..FlowFilter::default() };
    let filters = Filters::new(&[filter], &[]).unwrap();
    let cut = dropped(1, &datagram([10, 0, 0, 1], [10, 0, 0, 2])[..36]);
    let record = DropRecord { direction: direction::INGRESS, ..cut };
    assert!(!filters.matches(&seen(record, &Pods::default())));
}
