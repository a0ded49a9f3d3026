//! The story as it is printed.

use ferrule_proto::agent::{
    AddTimes, Attachment, Counters, Deviation, DroppedPacket, ExplainPodResponse, ExplainPoliciesResponse,
    ExplainedInterface, FailedAdd, Filter, HostEnd, JudgedDirection, JudgingPolicy, MapRow, PhaseTime,
    PodEnd, PodVerdict, PolicyRule, PolicyState, attachment::State, pod_verdict::Kind, policy_state,
};

use super::*;

/// 2026-01-02T03:04:05Z.
const TIME: u64 = 1_767_323_045;

fn interface() -> ExplainedInterface {
    let text = |text: &str| text.to_owned();
    let attachment = Attachment {
        container_id: text("0123456789abcdef"),
        ifname: text("eth0"),
        netns: text("/run/netns/web-0"),
        netns_dev: 4,
        netns_ino: 4_026_532_000,
        mac: text("0a:fe:0a:f4:00:02"),
        mtu: 1450,
        addresses: vec![text("10.244.0.2")],
        state: State::Attached.into(),
        created_at_ms: (TIME - 192) * 1000,
        counters: Some(Counters { egress_packets: 3, egress_bytes: 126, ..Counters::default() }),
        ..Attachment::default()
    };
    let filter = |direction: &str, name: &str, program, own| Filter {
        direction: text(direction),
        name: text(name),
        program,
        tag: if own { text("6deef7357e7b4530") } else { String::new() },
        own,
    };
    ExplainedInterface {
        attachment: Some(attachment),
        source: text("the agent's own IPAM"),
        kind: text("veth"),
        routes: vec![text("default via 169.254.1.1")],
        generation: 42,
        netns_exists: true,
        host_end: Some(HostEnd {
            name: text("frabc"),
            index: 7,
            up: true,
            mac: text("02:00:00:00:00:01"),
            mtu: 1450,
            routes: vec![text("10.244.0.2")],
            neighbours: vec![text("10.244.0.2 0a:fe:0a:f4:00:02")],
            filters: vec![filter("egress", "from_pod", 51, true), filter("ingress", "other", 9, false)],
        }),
        pod_end: Some(PodEnd {
            up: true,
            mac: text("0a:fe:0a:f4:00:02"),
            mtu: 1450,
            addresses: vec![text("10.244.0.2")],
            routes: vec![text("default via 169.254.1.1")],
            neighbours: Vec::new(),
        }),
        rows: vec![
            MapRow { map: text("VIFS"), key: text("7"), value: text("eth0 of shop/web-0") },
            MapRow { map: text("VIFS.subject"), key: text("7"), value: String::new() },
        ],
        add: Some(AddTimes {
            began_ms: (TIME - 192) * 1000,
            total_us: 12_345,
            phases: vec![PhaseTime { phase: text("plug"), took_us: 9_100 }],
        }),
        ..ExplainedInterface::default()
    }
}

fn told(kind: Kind, because: &[&str], todo: &[&str]) -> ExplainPodResponse {
    let owned = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect();
    let state = PolicyState { kind: policy_state::Kind::Enforcing.into(), reason: String::new() };
    ExplainPodResponse {
        verdict: Some(PodVerdict { kind: kind.into(), because: owned(because), todo: owned(todo) }),
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        uid: "u1".to_owned(),
        interfaces: vec![interface()],
        policy_state: Some(state),
        node: "node-1".to_owned(),
        listed: Some(true),
        ..ExplainPodResponse::default()
    }
}

#[test]
fn a_carried_pod_has_its_whole_story() {
    let expected = "\
shop/web-0: carried

UID u1, node node-1, listed by the API server

eth0 of sandbox 0123456789ab, attached since 3m12s
  VIF       veth, 10.244.0.2, MAC 0a:fe:0a:f4:00:02, MTU 1450, generation 42
  source    the agent's own IPAM
  routes    default via 169.254.1.1
  sandbox   /run/netns/web-0 (4:4026532000)
  host end  frabc (7), up, MAC 02:00:00:00:00:01, MTU 1450
            routes 10.244.0.2
            neighbours 10.244.0.2 0a:fe:0a:f4:00:02
            filter from_pod on egress, program 51, tag 6deef7357e7b4530
            filter other on ingress, program 9, not this agent's
  pod end   up, MAC 0a:fe:0a:f4:00:02, MTU 1450, 10.244.0.2
            routes default via 169.254.1.1
            neighbours none
  map rows  VIFS 7: eth0 of shop/web-0
            VIFS.subject 7: missing
  counters  out 3 packets, 126 bytes; in 0 packets, 0 bytes; drops 0
  ADD       12.3 ms at 2026-01-02T03:00:53.000Z: plug 9.1 ms
  drift     none

policies: enforcing

last drops: none recorded";
    let told = told(Kind::Carried, &[], &[]);
    assert_eq!(story::tell(&told, TIME), expected);
    assert_eq!(exit_code(&told), 0);
}

#[test]
fn the_first_line_says_why_and_what_to_do() {
    let told = told(Kind::NotCarried, &["link-down: frabc is down", "old\u{1b}"], &["wait", "look"]);
    let text = story::tell(&told, TIME);
    let expected = "\
shop/web-0: not carried: link-down: frabc is down
  to do: wait
also: old\\u{1b}
  to do: look
";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(exit_code(&told), 1);
}

#[test]
fn what_the_agent_does_not_know_is_said() {
    let mut told = told(Kind::Impaired, &["why"], &["what"]);
    let it = &mut told.interfaces[0];
    it.source.clear();
    it.add = None;
    it.pod_end = None;
    it.no_pod_end_because = "another namespace".to_owned();
    it.deviations =
        vec![Deviation { kind: "link-mtu".to_owned(), what: "wrong MTU".to_owned(), ..Default::default() }];
    told.failed_adds = vec![FailedAdd {
        container_id: "cafe0123456789".to_owned(),
        ifname: "eth0".to_owned(),
        last_ms: (TIME - 3) * 1000,
        times: 4,
        code: 11,
        message: "no address".to_owned(),
    }];
    let judging = JudgingPolicy {
        kind: "NetworkPolicy".to_owned(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        rules: vec![PolicyRule::default()],
        ..JudgingPolicy::default()
    };
    told.policies = Some(ExplainPoliciesResponse {
        ingress: Some(JudgedDirection { isolates: true, policies: vec![judging] }),
        egress: Some(JudgedDirection::default()),
        audited: true,
        ..ExplainPoliciesResponse::default()
    });
    told.drops = vec![DroppedPacket {
        time_ms: TIME * 1000,
        direction: "ingress".to_owned(),
        source: "10.244.0.9".to_owned(),
        destination: "shop/web-0 (10.244.0.2)".to_owned(),
        summary: "TCP Flags: SYN; policy_ingress".to_owned(),
        ..DroppedPacket::default()
    }];
    let text = story::tell(&told, TIME);
    for line in [
        "  source    unknown since the agent's restart",
        "  pod end   not read: another namespace",
        "  ADD       unknown since the agent's restart",
        "  drift     link-mtu: wrong MTU",
        "  cafe01234567  eth0  3s ago  failed 4 times, code 11: no address",
        "policies: enforcing; audited: what is denied passes",
        "  ingress  isolated: NetworkPolicy shop/web (1 rule)",
        "  egress   open: no policy judges",
        "  2026-01-02T03:04:05.000Z  ingress  10.244.0.9  → shop/web-0 (10.244.0.2)  TCP Flags: SYN; policy_ingress",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
}
