//! Requests, rows and JSON of drops and flows.

use clap::Parser as _;
use ferrule_proto::{
    flow::{
        self, Arp, Emitter, Endpoint, Ethernet, Ferrule, Flow, FlowFilter, FlowState, Ip, Layer4,
        NetworkInterface, Tcp, TcpFlags, Traffic, layer4::Protocol,
    },
    observer::{GetFlowsResponse, ServerStatusResponse, get_flows_response::ResponseTypes},
};
use prost_types::Timestamp;
use serde_json::json;

use super::{Selection, describe, filter::Verdict, json::Json, row::row, sampling::Sampling};

const TIME: Timestamp = Timestamp { seconds: 1_790_000_000, nanos: 123_456_789 };

fn endpoint(name: &str, address: &str) -> Option<Endpoint> {
    let addresses = vec![address.to_owned(), "fd00::2".to_owned()];
    Some(Endpoint { namespace: "shop".to_owned(), pod_name: name.to_owned(), addresses })
}

/// A forged SYN from shop/web-0 to port 80 of shop/db-0.
fn forged() -> Flow {
    let flags = Some(TcpFlags { syn: true, ..TcpFlags::default() });
    let tcp = Tcp { source_port: 40000, destination_port: 80, flags };
    Flow {
        time: Some(TIME),
        verdict: flow::Verdict::Dropped.into(),
        ip: Some(Ip { source: "10.0.0.9".to_owned(), destination: "10.0.0.2".to_owned(), ip_version: 1 }),
        l4: Some(Layer4 { protocol: Some(Protocol::Tcp(tcp)) }),
        source: endpoint("web-0", "10.0.0.1"),
        destination: endpoint("db-0", "10.0.0.2"),
        drop_reason_desc: flow::DropReason::InvalidSourceIp.into(),
        traffic_direction: flow::TrafficDirection::Egress.into(),
        interface: Some(NetworkInterface { index: 7, name: "frabc".to_owned() }),
        ferrule: Some(Ferrule { reason: "spoofed_ipv4".to_owned(), suppressed: 3, ..Ferrule::default() }),
        ..Flow::default()
    }
}

fn filters(selection: &Selection) -> Vec<FlowFilter> {
    selection.request(&[]).unwrap().whitelist
}

fn one(text: &str) -> Vec<String> {
    vec![text.to_owned()]
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn a_row_names_pods_protocol_reason_and_what_is_missing() {
    let expected = [
        "2026-09-21T14:13:20.123Z",
        "shop/web-0 (10.0.0.9):40000",
        "shop/db-0:80",
        "TCP SYN",
        "dropped spoofed_ipv4",
        "frabc",
        "+3 suppressed",
    ];
    assert_eq!(row(&forged()), expected);
}

#[test]
fn ends_without_a_pod_are_addresses() {
    let ip = |source: &str, destination: &str| {
        let ip = Ip { source: source.to_owned(), destination: destination.to_owned(), ip_version: 0 };
        let [_, from, to, ..] = row(&Flow { source: None, destination: None, ip: Some(ip), ..forged() });
        (from, to)
    };
    assert_eq!(ip("10.0.0.9", "fd00::9"), ("10.0.0.9:40000".to_owned(), "[fd00::9]:80".to_owned()));
    let none =
        Flow { interface: Some(NetworkInterface { index: 7, ..Default::default() }), ..Flow::default() };
    assert_eq!(row(&none), ["-", "-", "-", "-", "verdict_unknown", "7", ""]);
    let ethernet = Some(Ethernet { source: "02:00:00:00:00:01".to_owned(), ..Ethernet::default() });
    let ferrule = Some(Ferrule { ethertype: 0x88cc, ..Ferrule::default() });
    let [_, from, _, protocol, ..] = row(&Flow { ethernet, ferrule, ..none });
    assert_eq!((from.as_str(), protocol.as_str()), ("02:00:00:00:00:01", "ethertype 0x88cc"));
}

#[test]
fn a_row_of_arp_has_its_addresses_and_one_of_a_flow_its_traffic() {
    let arp = Arp {
        operation: 1,
        sender_ip: "10.0.0.9".to_owned(),
        target_ip: "10.0.0.2".to_owned(),
        ..Arp::default()
    };
    let ferrule = Some(Ferrule { arp: Some(arp), reason: "spoofed_arp".to_owned(), ..Ferrule::default() });
    let [_, from, to, protocol, ..] = row(&Flow { ip: None, l4: None, ferrule, ..forged() });
    assert_eq!([from, to, protocol], ["shop/web-0 (10.0.0.9)", "shop/db-0", "ARP request"]);
    let ferrule = Ferrule {
        state: FlowState::Closed.into(),
        forward: Some(Traffic { packets: 3, bytes: 180 }),
        lost: 2,
        ..Ferrule::default()
    };
    let forwarded = flow::Verdict::Forwarded.into();
    let [.., verdict, _, note] = row(&Flow { verdict: forwarded, ferrule: Some(ferrule), ..forged() });
    assert_eq!([verdict, note], ["forwarded closed", "3/0 packets, 180/0 bytes, +2 lost"]);
}

#[test]
fn a_row_names_the_policy_that_denies_and_an_audited_packet_stands_out() {
    let ferrule = Ferrule {
        reason: "policy_ingress".to_owned(),
        denied_by: "no policy allows; NetworkPolicy shop/db isolates the pod".to_owned(),
        suppressed: 2,
        ..Ferrule::default()
    };
    let of = |verdict: flow::Verdict| {
        let [.., verdict, _, note] =
            row(&Flow { verdict: verdict.into(), ferrule: Some(ferrule.clone()), ..forged() });
        (verdict, note)
    };
    let note = "no policy allows; NetworkPolicy shop/db isolates the pod, +2 suppressed";
    assert_eq!(of(flow::Verdict::Dropped), ("dropped policy_ingress".to_owned(), note.to_owned()));
    assert_eq!(of(flow::Verdict::Audit).0, "AUDIT policy_ingress");
}

#[test]
fn json_is_that_of_protocol_buffers_with_the_declared_names() {
    let emitter = Some(Emitter { name: "Ferrule".to_owned(), version: String::new() });
    let flow = Flow { emitter, is_reply: Some(false), ..forged() };
    let response = GetFlowsResponse {
        response_types: Some(ResponseTypes::Flow(Box::new(flow))),
        node_name: "node-1".to_owned(),
        time: Some(TIME),
    };
    let line = Json::new().unwrap().line(&response).unwrap();
    assert!(!line.contains('\n'), "{line}");
    let time = "2026-09-21T14:13:20.123456789Z";
    let expected = json!({
        "flow": {
            "time": time,
            "verdict": "DROPPED",
            "IP": {"source": "10.0.0.9", "destination": "10.0.0.2", "ipVersion": "IPv4"},
            "l4": {"TCP": {"source_port": 40000, "destination_port": 80, "flags": {"SYN": true}}},
            "source": {"namespace": "shop", "pod_name": "web-0", "addresses": ["10.0.0.1", "fd00::2"]},
            "destination": {"namespace": "shop", "pod_name": "db-0", "addresses": ["10.0.0.2", "fd00::2"]},
            "traffic_direction": "EGRESS",
            "drop_reason_desc": "INVALID_SOURCE_IP",
            "is_reply": false,
            "interface": {"index": 7, "name": "frabc"},
            "emitter": {"name": "Ferrule"},
            "ferrule": {"reason": "spoofed_ipv4", "suppressed": 3},
        },
        "node_name": "node-1",
        "time": time,
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), expected);
}

#[test]
fn no_condition_is_no_filter() {
    assert_eq!(filters(&Selection::default()), []);
    let dropped = Selection::default().request(&[Verdict::Dropped, Verdict::Audit]).unwrap().whitelist;
    // 2 is DROPPED, 4 is AUDIT.
    assert_eq!(dropped, [FlowFilter { verdict: vec![2, 4], ..FlowFilter::default() }]);
}

#[test]
fn pod_and_port_match_at_either_end_and_with_to_the_pod_is_the_source() {
    let base = FlowFilter::default;
    let (pod, ports) = (one("shop/web-0"), one("80"));
    let both = Selection { pod: some("shop/web-0"), port: Some(80), ..Selection::default() };
    let expected = [
        FlowFilter { source_pod: pod.clone(), source_port: ports.clone(), ..base() },
        FlowFilter { source_pod: pod.clone(), destination_port: ports.clone(), ..base() },
        FlowFilter { destination_pod: pod.clone(), source_port: ports.clone(), ..base() },
        FlowFilter { destination_pod: pod.clone(), destination_port: ports, ..base() },
    ];
    assert_eq!(filters(&both), expected);
    let to = |to: &str| Selection { pod: some("shop/web-0"), to: some(to), ..Selection::default() };
    for address in ["10.0.0.2", "10.0.0.0/24", "fd00::/8"] {
        let expected = FlowFilter { source_pod: pod.clone(), destination_ip: one(address), ..base() };
        assert_eq!(filters(&to(address)), [expected]);
    }
    let expected = FlowFilter { source_pod: pod, destination_pod: one("/db"), ..base() };
    assert_eq!(filters(&to("db")), [expected]);
}

#[test]
fn namespace_and_pod_are_combined() {
    let of = |namespace: &str, pod: Option<&str>| {
        let pod = pod.map(str::to_owned);
        let selection =
            Selection { namespace: some(namespace), pod, to: some("10.0.0.2"), ..Selection::default() };
        Ok::<_, anyhow::Error>(selection.request(&[])?.whitelist.remove(0).source_pod)
    };
    assert_eq!(of("shop", None).unwrap(), ["shop/"]);
    assert_eq!(of("shop", Some("web")).unwrap(), ["shop/web"]);
    assert_eq!(of("shop", Some("shop/web")).unwrap(), ["shop/web"]);
    assert!(of("shop", Some("other/web")).unwrap_err().to_string().contains("--namespace shop"));
    let invalid = Selection { pod: some("a/b/c"), ..Selection::default() };
    assert!(invalid.request(&[]).unwrap_err().to_string().contains("expected namespace/name"));
}

#[test]
fn without_a_limit_the_last_20_are_shown_and_with_since_or_follow_others() {
    let number = |selection: &Selection| selection.request(&[]).unwrap().number;
    assert_eq!(number(&Selection::default()), 20);
    let since = Some("5m".parse().unwrap());
    let recent = Selection { since, ..Selection::default() };
    assert_eq!(number(&recent), 0);
    assert_eq!(number(&Selection { follow: true, ..Selection::default() }), 0);
    assert_eq!(number(&Selection { last: Some(7), follow: true, ..recent.clone() }), 7);
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let since = recent.request(&[]).unwrap().since.unwrap().seconds;
    assert!((299..=301).contains(&(now - since)), "{now} {since}");
}

#[test]
fn sampling_is_set_with_any_output_and_without_a_selection() {
    let parse = |line: &str| crate::Args::try_parse_from(line.split(' '));
    assert!(parse("ferrulectl flows --sampling 10 -o json --socket /run/x.sock").is_ok());
    for selecting in [
        "-f",
        "--pod x",
        "--namespace x",
        "--to x",
        "--port 1",
        "--since 5m",
        "--last 1",
        "--verdict dropped",
    ] {
        assert!(parse(&format!("ferrulectl flows {selecting}")).is_ok(), "{selecting}");
        assert!(parse(&format!("ferrulectl flows --sampling off {selecting}")).is_err(), "{selecting}");
    }
}

#[test]
fn sampling_is_a_number_or_off() {
    let parse = |text: &str| text.parse::<Sampling>();
    assert_eq!(
        (parse("off"), parse("1"), parse("100")),
        (Ok(Sampling(0)), Ok(Sampling(1)), Ok(Sampling(100)))
    );
    for invalid in ["0", "-1", "on", ""] {
        assert_eq!(parse(invalid), Err("expected a number from 1, or off"), "{invalid}");
    }
}

#[test]
fn an_empty_result_says_why() {
    let status = |flow_sampling, seen_flows| ServerStatusResponse {
        flow_sampling,
        seen_flows,
        max_flows: 4096,
        ..ServerStatusResponse::default()
    };
    let off = describe(&status(0, 9), &[], false).unwrap();
    assert!(off.contains("flows are not recorded") && off.contains("--sampling 1"), "{off}");
    assert_eq!(describe(&status(0, 9), &[Verdict::Forwarded], true), Some(off));
    let dropped = |status| describe(&status, &[Verdict::Dropped, Verdict::Audit], false).unwrap();
    assert_eq!(dropped(status(0, 0)), "nothing was recorded since the agent started");
    assert!(dropped(status(0, 9)).starts_with("no record matches; since the agent started there were 9"));
    assert_eq!(describe(&status(1, 9), &[], true), None);
}
