//! Random packets: the programs agree with the model, and safety properties hold without it.
//!
//! `FERRULE_PACKETS=100000000` sets the number of packets of each test, for hours instead of seconds;
//! `FERRULE_PACKETS_SEED` the seed, which a failure prints with its smallest packet.

use std::{cell::RefCell, collections::HashSet, env, net::IpAddr};

use agent_common::{DropReason, EndpointKey, FlowKey, GATEWAY_IPV4, GATEWAY_IPV6, GATEWAY_MAC};
use anyhow::Context as _;
use ferrule_tests::{
    packet::{
        self, ARP, Arp, BROADCAST, FRAGMENT, ICMP, ICMPV6, IPV4, IPV6, Ipv4, Ipv4Address, Ipv6, Ipv6Address,
        Mac, QINQ, SCTP, SOURCE_MAC, TARGET_MAC, TCP, UDP, VLAN, extension, frame, hexdump, mac_option,
        neighbour, tagged,
    },
    program::{
        AllCounters, Program, Programs, SkBuff, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, verdict_name,
    },
};
use proptest::{
    collection::vec,
    option::weighted,
    prelude::*,
    sample::select,
    test_runner::{Config, RngSeed, TestRunner},
};

use crate::{
    model::{self, Flow, Outcome},
    node_tunnel::add_indexed_nodes,
    table::{
        A, B, Counted, FAR_V4, FAR_V6, NEW, NODE_V4, NODE_V6, ONLY_V4, ONLY_V6, OTHER_MAC, PODS, Pod,
        Rewritten, STRANGER, record, with_pods,
    },
};

const CASES: u32 = 24_000;
const SEED: u32 = 20;

/// A fixed seed, so that failures are reproducible.
pub fn config(cases: u32) -> Config {
    let seed = number("FERRULE_PACKETS_SEED").unwrap_or(SEED);
    println!("seed {seed}");
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed.into()), ..Config::default() }
}

fn cases() -> u32 {
    number("FERRULE_PACKETS").unwrap_or(CASES)
}

#[expect(clippy::panic, reason = "a setting of a test")]
fn number(name: &str) -> Option<u32> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

fn mac() -> impl Strategy<Value = Mac> {
    select(vec![A.mac, B.mac, GATEWAY_MAC, OTHER_MAC, BROADCAST, [0; 6], [0x33, 0x33, 0, 0, 0, 1]])
}

fn address_v4() -> impl Strategy<Value = Ipv4Address> {
    let known = vec![
        A.v4,
        B.v4,
        ONLY_V4.v4,
        ONLY_V6.v4,
        NEW.v4,
        GATEWAY_IPV4,
        NODE_V4,
        FAR_V4,
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [255; 4],
    ];
    prop_oneof![9 => select(known), 1 => any::<Ipv4Address>()]
}

fn address_v6() -> impl Strategy<Value = Ipv6Address> {
    let [a, b, c, d] = B.v4;
    let known = vec![
        A.v6,
        B.v6,
        ONLY_V4.v6,
        ONLY_V6.v6,
        NEW.v6,
        GATEWAY_IPV6,
        NODE_V6,
        FAR_V6,
        A.link_local(),
        B.link_local(),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    ];
    prop_oneof![9 => select(known), 1 => any::<Ipv6Address>()]
}

/// Mostly the usual value, so that the checks behind it are reached.
fn mostly<T: Clone + std::fmt::Debug + 'static>(
    usual: T,
    other: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    prop_oneof![4 => Just(usual), 1 => other]
}

fn arp() -> impl Strategy<Value = Vec<u8>> {
    let lens = (mostly(6, any::<u8>()), mostly(4, any::<u8>()));
    let about = (mostly(1, any::<u16>()), mostly(IPV4, any::<u16>()));
    (about, lens, mostly(1, 0..4_u16), mostly(A.mac, mac()), mostly(A.v4, address_v4()), address_v4())
        .prop_map(
            |(
                (hardware, protocol),
                (hardware_len, protocol_len),
                operation,
                sender_mac,
                sender_ip,
                target_ip,
            )| {
                let ask = Arp::ask(sender_mac, sender_ip, target_ip);
                Arp { hardware, protocol, hardware_len, protocol_len, operation, ..ask }.bytes()
            },
        )
}

/// Entries of `STACK_FLOWS` that the generators' packets match now and then.
fn flows() -> HashSet<Flow> {
    let v4 = [B, ONLY_V4, A].map(|pod| [A.v4, pod.v4].map(IpAddr::from));
    let v6 = [B, ONLY_V6, A].map(|pod| [A.v6, pod.v6].map(IpAddr::from));
    let between = |[one, other]: [IpAddr; 2]| {
        let ports = [(1, 1), (1, 2), (2, 1), (3, 2)];
        let with_ports =
            ports.into_iter().flat_map(|(one, other)| [TCP, UDP, SCTP].map(|it| (it, one, other)));
        let echoes = [(ICMP, 1, 1), (ICMP, 2, 2), (ICMPV6, 2, 2), (ICMPV6, 3, 3)];
        with_ports.chain(echoes).map(move |(protocol, port, other_port)| {
            let mut ends = [(one, port), (other, other_port)];
            ends.sort_unstable();
            (protocol, ends)
        })
    };
    v4.into_iter().chain(v6).flat_map(between).collect()
}

fn flow_key((protocol, [one, other]): Flow) -> FlowKey {
    let end = |(address, port): (IpAddr, u16)| match address {
        IpAddr::V4(address) => (EndpointKey::ipv4(address.octets()), port),
        IpAddr::V6(address) => (EndpointKey::ipv6(address.octets()), port),
    };
    FlowKey::between(protocol, end(one), end(other))
}

/// The first eight bytes of TCP, UDP, SCTP or ICMP.
fn transport() -> impl Strategy<Value = Vec<u8>> {
    let kinds = select(vec![1, 2, 3, 1, 2, 3, 0x0000, 0x0800, 0x0300, 0x0b01, 0x0400, 0x8000, 0x8100]);
    // Now and then, ports of VXLAN and of DHCP clients.
    let ports = select([[1, 2, 3].repeat(20), vec![4789, 8472, 68, 546]].concat());
    let words = (kinds, ports, select(vec![1, 2, 3_u16]), any::<u16>());
    words.prop_map(|(a, b, c, d)| [a, b, c, d].into_iter().flat_map(u16::to_be_bytes).collect())
}

/// Payload of an IP packet: often a transport header, with a quoted packet behind it as in an ICMP error.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let pod = || select(vec![A, B, ONLY_V4, ONLY_V6]);
    let protocol = select(vec![ICMP, TCP, UDP, ICMPV6, SCTP, FRAGMENT]);
    let quoted = (pod(), pod(), protocol, any::<bool>(), 0..12_u16, 0..3_usize, transport());
    let quote = quoted.prop_map(|(from, to, protocol, six, fragment, words, payload)| {
        if six {
            return Ipv6::new(from.v6, to.v6, protocol).with(&payload);
        }
        let fragment = fragment.saturating_sub(10);
        Ipv4 { fragment, options: vec![1; words * 4], ..Ipv4::new(from.v4, to.v4, protocol) }.with(&payload)
    });
    let quote = (quote, mostly(100, 0..60_usize)).prop_map(|(quote, len)| packet::cut(&quote, len));
    prop_oneof![
        2 => vec(any::<u8>(), 0..40),
        2 => transport(),
        1 => (transport(), transport()).prop_map(|(first, second)| [first, second].concat()),
        3 => (transport(), quote).prop_map(|(transport, quote)| [transport, quote].concat()),
    ]
}

fn ipv4() -> impl Strategy<Value = Vec<u8>> {
    let odd = (
        mostly(4, 0..16_u8),
        weighted(0.1, any::<u8>()),
        weighted(0.1, 0..80_u16),
        weighted(0.1, any::<u16>()),
        mostly(0, 1..11_usize),
    );
    let protocol = prop_oneof![4 => select(vec![ICMP, TCP, UDP, SCTP, ICMPV6, 4]), 1 => any::<u8>()];
    let rest = (any::<u8>(), mostly(0x4000, any::<u16>()), mostly(64, 0..4_u8), protocol, payload());
    (odd, rest, mostly(A.v4, address_v4()), address_v4()).prop_map(
        |(
            (version, ihl, total_len, checksum, words),
            (tos, fragment, ttl, protocol, payload),
            source,
            destination,
        )| {
            let options = vec![1; words * 4];
            let ip = Ipv4::new(source, destination, protocol);
            Ipv4 { version, ihl, total_len, checksum, options, tos, fragment, ttl, ..ip }.with(&payload)
        },
    )
}

fn ipv6() -> impl Strategy<Value = Vec<u8>> {
    let odd = (mostly(6, 0..16_u8), weighted(0.1, 0..80_u16), any::<u32>());
    let rest = (select(vec![0, 6, 17, 43, 44, 58, 58, 59, 60, 132, 255]), mostly(64, 0..4_u8), payload());
    (odd, rest, mostly(A.v6, address_v6()), address_v6()).prop_map(
        |((version, payload_len, class_flow), (next_header, hop_limit, payload), source, destination)| {
            let ip = Ipv6::new(source, destination, next_header);
            Ipv6 { version, payload_len, class_flow, hop_limit, ..ip }.with(&payload)
        },
    )
}

fn options() -> impl Strategy<Value = Vec<u8>> {
    let with_mac = (select(vec![SOURCE_MAC, TARGET_MAC]), mostly(A.mac, mac()));
    let option = prop_oneof![
        with_mac.prop_map(|(kind, mac)| mac_option(kind, mac)),
        (any::<u8>(), 0..4_u8).prop_map(|(kind, units)| [
            vec![kind, units],
            vec![0; 6 + usize::from(units / 2) * 8]
        ]
        .concat()),
    ];
    vec(option, 0..6).prop_map(|options| options.concat())
}

fn neighbours() -> impl Strategy<Value = Vec<u8>> {
    let odd = (mostly(255, any::<u8>()), weighted(0.1, 0..80_u16), mostly(false, Just(true)));
    let message = (mostly(135, 128..140_u8), address_v6(), options(), 0..6_usize);
    (odd, message, mostly(A.v6, address_v6()), address_v6()).prop_map(
        |((hop_limit, payload_len, hidden), (kind, target, options, missing), source, destination)| {
            let ip = Ipv6 { hop_limit, payload_len, ..Ipv6::new(source, destination, ICMPV6) };
            let whole = neighbour(kind, target, &options);
            // One message in six is cut off.
            let message = packet::cut(&whole, if missing == 5 { whole.len() - 5 } else { whole.len() });
            if hidden {
                Ipv6 { next_header: 60, ..ip }.with(&extension(ICMPV6, &message))
            } else {
                ip.icmp(&message)
            }
        },
    )
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        arp().prop_map(|packet| (ARP, packet)),
        ipv4().prop_map(|packet| (IPV4, packet)),
        ipv6().prop_map(|packet| (IPV6, packet)),
        neighbours().prop_map(|packet| (IPV6, packet)),
        (any::<u16>(), vec(any::<u8>(), 0..100)),
    ];
    let made = (
        mostly(GATEWAY_MAC, mac()),
        mostly(A.mac, mac()),
        payload,
        0..64_usize,
        0..40_u8,
        any::<(u16, u8)>(),
    );
    let made = made.prop_map(|(destination, source, (ethertype, payload), padding, odd, (at, byte))| {
        let whole = frame(destination, source, ethertype, &payload);
        let whole = if odd == 1 { tagged(&whole, &[(VLAN, 5)]) } else { whole };
        let whole = if odd == 2 { tagged(&whole, &[(QINQ, 5)]) } else { whole };
        let mut whole = if odd > 30 { [whole, vec![0; padding]].concat() } else { whole };
        let at = usize::from(at) % whole.len();
        // One byte is wrong, or the frame is cut off.
        match whole.get_mut(at) {
            Some(slot) if odd == 3 => *slot = byte,
            _ if odd == 4 => whole.truncate(at.max(14)),
            _ => {}
        }
        whole
    });
    prop_oneof![19 => made, 1 => vec(any::<u8>(), 14..200)].prop_map(with_whole_header)
}

/// `BPF_PROG_TEST_RUN` refuses IP packets without a whole header; `wire` sends such packets.
fn with_whole_header(mut frame: Vec<u8>) -> Vec<u8> {
    let header = match frame.get(12..14) {
        Some([8, 0]) => 20,
        Some([0x86, 0xdd]) => 40,
        _ => 0,
    };
    frame.resize(frame.len().max(14 + header), 0);
    frame
}

fn from() -> impl Strategy<Value = u32> {
    mostly(A.ifindex, select(vec![ONLY_V4.ifindex, ONLY_V6.ifindex, NEW.ifindex, STRANGER]))
}

fn pod(ifindex: u32) -> Option<Pod> {
    PODS.into_iter().find(|pod| pod.ifindex == ifindex)
}

/// Replaces `A`'s addresses, which the generators use, by those of the sending pod.
fn with_own_addresses(pod: Option<Pod>, mut frame: Vec<u8>) -> Vec<u8> {
    let Some(pod) = pod else { return frame };
    let replace = |frame: &mut Vec<u8>, at: usize, old: &[u8], new: &[u8]| {
        if let Some(slot) = frame.get_mut(at..at + old.len()).filter(|slot| *slot == old) {
            slot.copy_from_slice(new);
        }
    };
    replace(&mut frame, 6, &A.mac, &pod.mac);
    replace(&mut frame, 22, &A.mac, &pod.mac);
    replace(&mut frame, 28, &A.v4, &pod.v4);
    replace(&mut frame, 22, &A.v6, &pod.v6);
    frame
}

/// A safety property without the model: a pod receives packets only from the sender's own addresses to its
/// own.
fn may_be_delivered(pod: Option<Pod>, frame: &[u8]) -> bool {
    let Some(pod) = pod else { return false };
    let field = |at: usize, len: usize| frame.get(at..at + len).unwrap_or_default();
    let own_v4 = pod.v4 != [0; 4] && field(12, 2) == IPV4.to_be_bytes() && field(26, 4) == pod.v4;
    let own_v6 = pod.v6 != [0; 16] && field(12, 2) == IPV6.to_be_bytes() && field(22, 16) == pod.v6;
    let to_v4 = own_v4 && PODS.iter().any(|to| to.v4 != [0; 4] && field(30, 4) == to.v4);
    let to_v6 = own_v6 && PODS.iter().any(|to| to.v6 != [0; 16] && field(38, 16) == to.v6);
    field(0, 6) == GATEWAY_MAC && field(6, 6) == pod.mac && (to_v4 || to_v6)
}

fn check_from_pod(
    programs: &mut Programs,
    flows: &HashSet<Flow>,
    ifindex: u32,
    frame: &[u8],
) -> anyhow::Result<(Outcome, Option<DropReason>)> {
    let pod = pod(ifindex);
    let mut expected = programs.counters()?;
    let mut dropped_for = None;
    let before = expected.clone();
    let ran = programs.run(Program::FromPod, SkBuff::on(ifindex), frame)?;
    let counters = programs.counters()?;
    let outcome = model::from_pod(pod, frame, flows);
    // The receiver's policies are not known; the reason is counted there.
    if outcome == Outcome::Dropped(HashSet::from([DropReason::PolicyUnknown])) && ifindex != NEW.ifindex {
        expected.entry(NEW.ifindex).or_default().ingress.drops.policy_unknown += 1;
        anyhow::ensure!(counters == expected, "got {counters:?}\nexpected {expected:?}");
        ran.expect(TC_ACT_SHOT)?;
        return Ok((outcome, Some(DropReason::PolicyUnknown)));
    }
    let mut count = |ifindex, counted: Counted| {
        counted.add_to(expected.entry(ifindex).or_default(), Program::FromPod, frame.len())
    };
    let (verdict, packet) = match &outcome {
        Outcome::Dropped(reasons) => {
            let counted = |reason: &&DropReason| {
                let at = if **reason == DropReason::NoVif { 0 } else { ifindex };
                let drops = |all: &AllCounters| all.get(&at).map_or(0, |it| it.egress.drops.get(**reason));
                drops(&counters) == drops(&before) + 1
            };
            let reason = reasons
                .iter()
                .find(counted)
                .with_context(|| format!("{ran:?}expected a drop for {reasons:?}, got {counters:?}"))?;
            count(if *reason == DropReason::NoVif { 0 } else { ifindex }, Counted::Drop(*reason));
            dropped_for = Some(*reason);
            (TC_ACT_SHOT, frame)
        }
        Outcome::Stack => {
            count(ifindex, Counted::Egress);
            (TC_ACT_UNSPEC, frame)
        }
        Outcome::Delivered { to, packet } => {
            count(ifindex, Counted::Egress);
            count(*to, Counted::Ingress);
            (TC_ACT_REDIRECT, packet.as_slice())
        }
        Outcome::Answered { packet } => {
            count(ifindex, Counted::Egress);
            (TC_ACT_REDIRECT, packet.as_slice())
        }
    };
    let is_answer = matches!(outcome, Outcome::Answered { .. });
    let is_safe = ran.verdict != TC_ACT_REDIRECT || is_answer || may_be_delivered(pod, frame);
    anyhow::ensure!(
        ran.verdict == verdict && ran.packet == packet && counters == expected && is_safe,
        "from interface {ifindex}:\n{}got {ran:?}expected {}, {outcome:?}:\n{}\n\
         got counters {counters:?}\nexpected {expected:?}",
        hexdump(frame),
        verdict_name(verdict),
        hexdump(packet),
    );
    match (&outcome, pod) {
        (Outcome::Delivered { to, .. }, _) => {
            let to = self::pod(*to).context("delivered to an unknown interface")?;
            Rewritten::Delivered(to).check(frame, &ran.packet)?;
        }
        (Outcome::Answered { .. }, Some(pod)) => Rewritten::Answered(pod).check(frame, &ran.packet)?,
        _ => {}
    }
    Ok((outcome, dropped_for))
}

#[test]
fn from_pod_agrees_with_the_model() {
    with_pods(|programs| {
        let (flows, none) = (flows(), HashSet::new());
        for flow in &flows {
            record(programs, &flow_key(*flow))?;
        }
        add_indexed_nodes(programs)?;
        let programs = RefCell::new(programs);
        let seen = RefCell::new(std::collections::BTreeMap::<String, u32>::new());
        let frames =
            (from(), any_frame()).prop_map(|(from, frame)| (from, with_own_addresses(pod(from), frame)));
        let result = TestRunner::new(config(cases())).run(&frames, |(from, frame)| {
            let outcome = check_from_pod(&mut programs.borrow_mut(), &flows, from, &frame);
            let outcome = outcome.map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
            let name = match outcome.0 {
                Outcome::Dropped(_) => outcome.1.map_or("", DropReason::name),
                Outcome::Stack if model::from_pod(pod(from), &frame, &none) != Outcome::Stack => "translated",
                Outcome::Stack => "stack",
                Outcome::Delivered { .. } => "delivered",
                Outcome::Answered { .. } => "answered",
            };
            *seen.borrow_mut().entry(name.to_owned()).or_default() += 1;
            Ok(())
        });
        result.map_err(|error| anyhow::anyhow!("{error}"))?;
        // The generators must reach every outcome.
        let seen = seen.into_inner();
        println!("of {} packets: {seen:?}", cases());
        let reached = |name: &str| seen.get(name).is_some_and(|count| *count >= 20);
        let of_others = [
            DropReason::NotForPod,
            DropReason::DhcpServer,
            DropReason::TunnelOuter,
            DropReason::TunnelInner,
            DropReason::TunnelDestination,
            DropReason::TunnelNested,
            DropReason::PolicyEgress,
            DropReason::PolicyIngress,
            DropReason::PeerUnknown,
        ];
        let reasons =
            DropReason::ALL.iter().filter(|reason| !of_others.contains(reason)).map(|reason| reason.name());
        let missed: Vec<&str> = reasons
            .chain(["stack", "translated", "delivered", "answered"])
            .filter(|name| !reached(name))
            .collect();
        anyhow::ensure!(missed.is_empty(), "the generators reach too rarely: {missed:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn to_pod_passes_only_packets_for_the_pod() {
    with_pods(|programs| {
        let (programs, recorded) = (RefCell::new(programs), RefCell::new(0));
        let other = select(vec![0, 1, B.ifindex, ONLY_V4.ifindex, ONLY_V6.ifindex]);
        let ingress = mostly(A.ifindex, other);
        let frames = (from(), ingress, any_frame());
        let result = TestRunner::new(config(cases())).run(&frames, |(ifindex, ingress, frame)| {
            let skb = SkBuff::forwarded(ingress, ifindex);
            let ran = programs.borrow_mut().run(Program::ToPod, skb, &frame);
            let ran = ran.map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
            prop_assert_eq!(&ran.packet, &frame);
            if ran.verdict == TC_ACT_SHOT {
                return Ok(());
            }
            prop_assert_eq!(ran.verdict, TC_ACT_UNSPEC);
            let field = |at: usize, len: usize| frame.get(at..at + len).unwrap_or_default();
            let for_pod = pod(ifindex).is_some_and(|pod| match field(12, 2) {
                [8, 0] => field(30, 4) == pod.v4 && pod.v4 != [0; 4],
                [8, 6] => field(38, 4) == pod.v4 && pod.v4 != [0; 4],
                [0x86, 0xdd] => {
                    let link_local =
                        field(38, 1) == [0xfe] && field(39, 1).iter().all(|byte| byte & 0xc0 == 0x80);
                    let asks = field(38, 1) == [0xff] && field(20, 1) == [ICMPV6] && field(54, 1) == [135];
                    field(38, 16) == pod.v6 && pod.v6 != [0; 16] || link_local || asks
                }
                _ => false,
            });
            prop_assert!(for_pod, "interface {}:\n{}", ifindex, hexdump(&frame));
            // Never as a pod of the node, except from that pod or from the host itself.
            let sender = PODS.iter().find(|pod| match field(12, 2) {
                [8, 0] => field(26, 4) == pod.v4 && pod.v4 != [0; 4],
                [0x86, 0xdd] => field(22, 16) == pod.v6 && pod.v6 != [0; 16],
                _ => false,
            });
            let genuine = sender.is_none_or(|sender| ingress == 0 || ingress == sender.ifindex);
            prop_assert!(genuine, "from {} to {}:\n{}", ingress, ifindex, hexdump(&frame));
            // The flow is recorded exactly if the model says so. The entry is removed before the next packet.
            let to_own = pod(ifindex).is_some_and(|pod| match field(12, 2) {
                [8, 0] => field(30, 4) == pod.v4,
                [0x86, 0xdd] => field(38, 16) == pod.v6,
                _ => false,
            });
            let expected = model::recorded(&frame).filter(|_| to_own).map(flow_key);
            let flows = &mut programs.borrow_mut().stack_flows;
            let known: Vec<FlowKey> = flows.keys().filter_map(Result::ok).collect();
            prop_assert_eq!(&known, &Vec::from_iter(expected), "{}", hexdump(&frame));
            for flow in &known {
                *recorded.borrow_mut() += 1;
                flows.remove(flow).map_err(|error| TestCaseError::fail(error.to_string()))?;
            }
            Ok(())
        });
        result.map_err(|error| anyhow::anyhow!("{error}"))?;
        let recorded = recorded.into_inner();
        anyhow::ensure!(recorded >= 100, "only {recorded} of {} flows are recorded", cases());
        Ok(())
    })
    .unwrap();
}
