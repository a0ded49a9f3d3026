//! `STACK_FLOWS`: `to_pod` records flows between pods of the node that the stack translates, and `from_pod`
//! leaves them to the stack.

use agent_common::{Endpoint, EndpointKey, Flow, FlowKey, GATEWAY_MAC, RingKey};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    packet::{
        DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMP, ICMPV6, IPV4, IPV6, Ipv4, Ipv6, Ipv6Address, SCTP,
        TCP, UDP, cut, data, echo, extension, fragment, icmp_error, tcp, udp,
    },
    program::{Program, Programs, SkBuff, TC_ACT_REDIRECT, TC_ACT_UNSPEC},
};

use crate::table::{
    A, B, FAR_V4, FAR_V6, NODE_V4, ONLY_V4, Pod, Row, check, check_with_flows, v6, with_pods,
};

/// Addresses of a Service.
const VIP_V4: [u8; 4] = [10, 96, 0, 10];
const VIP_V6: Ipv6Address = v6([0xfd00, 0x96, 0, 0, 0, 0, 0, 10]);
const CLIENT: u16 = 40000;
const SERVER: u16 = 8080;
const PORTS: [u8; 3] = [TCP, UDP, SCTP];
const ECHO_V6: [u8; 8] = [128, 0, 0, 0, 0, 7, 0, 1];

/// A payload that starts with ports; a TCP segment without flags.
fn transport(source: u16, destination: u16) -> Vec<u8> {
    segment(source, destination, 0)
}

fn segment(source: u16, destination: u16, flags: u8) -> Vec<u8> {
    let mut segment = tcp(source, destination, b"some bytes");
    segment.iter_mut().skip(13).take(1).for_each(|byte| *byte = flags);
    segment
}

/// Pod `B` is the client of pod `A`.
fn flow_v4(protocol: u8) -> FlowKey {
    FlowKey::between(protocol, (EndpointKey::ipv4(B.v4), CLIENT), (EndpointKey::ipv4(A.v4), SERVER))
}

fn flow_v6(protocol: u8) -> FlowKey {
    FlowKey::between(protocol, (EndpointKey::ipv6(B.v6), CLIENT), (EndpointKey::ipv6(A.v6), SERVER))
}

fn v4(from: Pod, to: Pod, protocol: u8) -> Ipv4 {
    Ipv4::new(from.v4, to.v4, protocol)
}

fn v6_of(from: Pod, to: Pod, protocol: u8) -> Ipv6 {
    Ipv6::new(from.v6, to.v6, protocol)
}

/// A packet from pod to pod in both families: left to the stack, or delivered.
fn rows(
    about: &'static str,
    from: Pod,
    to: Pod,
    protocols: [u8; 2],
    payload: &[u8],
    stack: bool,
) -> [Row; 2] {
    let [first, second] = protocols;
    let (ip4, ip6) = (v4(from, to, first), v6_of(from, to, second));
    if stack {
        return [
            Row::stack(about, from, from.sends_v4(&ip4.with(payload))),
            Row::stack(about, from, from.sends_v6(&ip6.with(payload))),
        ];
    }
    let less = (Ipv4 { ttl: 63, ..ip4.clone() }, Ipv6 { hop_limit: 63, ..ip6.clone() });
    [
        Row::delivered(
            about,
            from,
            from.sends_v4(&ip4.with(payload)),
            to,
            to.receives(IPV4, &less.0.with(payload)),
        ),
        Row::delivered(
            about,
            from,
            from.sends_v6(&ip6.with(payload)),
            to,
            to.receives(IPV6, &less.1.with(payload)),
        ),
    ]
}

/// The new flow that is recorded when the stack delivers `packet` to `A`.
fn recorded(programs: &mut Programs, packet: &[u8]) -> anyhow::Result<Option<FlowKey>> {
    let before: Vec<FlowKey> = programs.stack_flows.keys().collect::<Result<_, _>>()?;
    let ran = programs.run(Program::ToPod, SkBuff::forwarded(B.ifindex, A.ifindex), packet)?;
    ran.expect(TC_ACT_UNSPEC)?;
    ensure!(ran.packet == packet, "the packet was modified: {ran:?}");
    let now: Vec<FlowKey> = programs.stack_flows.keys().collect::<Result<_, _>>()?;
    ensure!(before.iter().all(|flow| now.contains(flow)), "a flow was evicted: {before:?}, {now:?}");
    let mut new = now.into_iter().filter(|flow| !before.contains(flow));
    let flow = new.next();
    ensure!(new.next().is_none(), "more than one flow was recorded");
    if let Some(flow) = flow {
        ensure!(programs.stack_flows.get(&flow, 0)?.ifindex == A.ifindex);
    }
    Ok(flow)
}

#[test]
fn connections_from_the_ports_of_translated_flows_go_to_the_stack() {
    const SYN: u8 = 2;
    const SYN_ECN: u8 = 0xc2;
    const SYN_ACK: u8 = 0x12;
    const ACK: u8 = 0x10;
    let table = [1024, 8080, 32767].into_iter().flat_map(|port| {
        [
            rows("a SYN", B, A, [TCP; 2], &segment(port, SERVER, SYN), true),
            rows("a SYN with ECN", B, A, [TCP; 2], &segment(port, SERVER, SYN_ECN), true),
            rows("a SYN from a server", B, A, [TCP; 2], &segment(port, SERVER, SYN_ACK), false),
            rows("a later segment", B, A, [TCP; 2], &segment(port, SERVER, ACK), false),
            rows("a SYN cut off", B, A, [TCP; 2], &cut(&segment(port, SERVER, SYN), 13), false),
            rows("another protocol", B, A, [UDP; 2], &segment(port, SERVER, SYN), false),
        ]
    });
    let others = [1, 1023, 32768, 40000, 65535]
        .map(|port| rows("a SYN from another port", B, A, [TCP; 2], &segment(port, SERVER, SYN), false));
    check(Program::FromPod, &table.chain(others).flatten().collect::<Vec<_>>()).unwrap();
}

#[test]
fn replies_of_recorded_flows_go_to_the_stack() {
    for protocol in PORTS {
        let flows = [flow_v4(protocol), flow_v6(protocol)];
        let table = [
            rows("a reply", A, B, [protocol; 2], &transport(SERVER, CLIENT), true),
            // Untranslated, between the same ends: the stack sees all packets of a flow or none.
            rows("a request", B, A, [protocol; 2], &transport(CLIENT, SERVER), true),
            rows("with another client port", A, B, [protocol; 2], &transport(SERVER, CLIENT + 1), false),
            rows("with another server port", A, B, [protocol; 2], &transport(SERVER + 1, CLIENT), false),
            rows("ports swapped", A, B, [protocol; 2], &transport(CLIENT, SERVER), false),
            rows("between other pods", A, A, [protocol; 2], &transport(SERVER, CLIENT), false),
        ];
        check_with_flows(Program::FromPod, &flows, &table.into_iter().flatten().collect::<Vec<_>>()).unwrap();
        let others = PORTS.into_iter().filter(|other| *other != protocol);
        // The port's first byte is ICMP's type, and that of an error in ICMPv6.
        let others = others.chain([253, ICMP]).flat_map(|other| {
            rows("of another protocol", A, B, [other; 2], &transport(SERVER, CLIENT), false)
        });
        check_with_flows(Program::FromPod, &flows, &others.collect::<Vec<_>>()).unwrap();
    }
}

#[test]
fn unrecorded_flows_are_delivered() {
    let table = PORTS.map(|protocol| {
        let request = rows("a request", B, A, [protocol; 2], &transport(CLIENT, SERVER), false);
        let reply = rows("a reply", A, B, [protocol; 2], &transport(SERVER, CLIENT), false);
        request.into_iter().chain(reply)
    });
    check(Program::FromPod, &table.into_iter().flatten().collect::<Vec<_>>()).unwrap();
}

#[test]
fn packets_with_truncated_ports_are_delivered() {
    let flows = [flow_v4(UDP), flow_v6(UDP)];
    let whole = udp(SERVER, CLIENT, b"");
    let table = (0..8).flat_map(|len| rows("truncated", A, B, [UDP; 2], &cut(&whole, len), false));
    check_with_flows(Program::FromPod, &flows, &table.collect::<Vec<_>>()).unwrap();
}

#[test]
fn flows_from_pods_of_the_node_are_recorded() {
    with_pods(|programs| {
        for protocol in PORTS {
            let payload = transport(CLIENT, SERVER);
            let packets = [
                (flow_v4(protocol), A.receives(IPV4, &v4(B, A, protocol).with(&payload))),
                (flow_v6(protocol), A.receives(IPV6, &v6_of(B, A, protocol).with(&payload))),
            ];
            for (flow, packet) in packets {
                ensure!(recorded(programs, &packet)? == Some(flow), "{flow:?} is not recorded");
                ensure!(recorded(programs, &packet)?.is_none(), "{flow:?} is recorded twice");
            }
            // The reply goes to the stack unchanged.
            for reply in [
                A.sends_v4(&v4(A, B, protocol).with(&transport(SERVER, CLIENT))),
                A.sends_v6(&v6_of(A, B, protocol).with(&transport(SERVER, CLIENT))),
            ] {
                let ran = programs.run(Program::FromPod, SkBuff::on(A.ifindex), &reply)?;
                ran.expect(TC_ACT_UNSPEC)?;
                ensure!(ran.packet == reply);
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn ends_are_in_the_order_of_their_addresses_and_not_of_their_words_in_memory() {
    let v4 = |address: [u8; 4]| EndpointKey::ipv4(address);
    // Each differs from the address of `A`, 10.244.0.5 or fd00:10:244::5, in two bytes of one word, in
    // opposite directions: a little-endian comparison would have another result.
    let ipv4 = [([10, 243, 0, 9], true), ([10, 244, 1, 4], false)];
    let ipv6 = [
        (v6([0xfd00, 0x10, 0x243, 0xff, 0, 0, 0, 1]), true),
        (v6([0xfd00, 0x11, 0x243, 0, 0, 0, 0, 9]), false),
        (v6([0xfd00, 0x10, 0x244, 0, 0, 0, 1, 4]), false),
        (v6([0xfd00, 0x10, 0x243, 0, 0, 0, 0, 9]), true),
    ];
    let payload = transport(CLIENT, SERVER);
    let packets = ipv4.map(|(peer, is_low)| {
        (v4(peer), v4(A.v4), is_low, A.receives(IPV4, &Ipv4::new(peer, A.v4, TCP).with(&payload)))
    });
    let more = ipv6.map(|(peer, is_low)| {
        let ends = [EndpointKey::ipv6(peer), EndpointKey::ipv6(A.v6)];
        (ends[0], ends[1], is_low, A.receives(IPV6, &Ipv6::new(peer, A.v6, TCP).with(&payload)))
    });
    with_pods(|programs| {
        for (peer, own, is_low, packet) in packets.iter().chain(&more) {
            let endpoint = Endpoint { ifindex: B.ifindex, mac: B.mac, reserved: [0; 2] };
            programs.endpoints.insert(peer, &endpoint, 0)?;
            let [(low, low_port), (high, high_port)] =
                if *is_low { [(*peer, CLIENT), (*own, SERVER)] } else { [(*own, SERVER), (*peer, CLIENT)] };
            let expected = FlowKey { low, high, low_port, high_port, protocol: TCP, reserved: [0; 3] };
            let found = recorded(programs, packet)?;
            ensure!(found == Some(expected), "{found:?}, expected {expected:?}");
            let both = [((*peer, CLIENT), (*own, SERVER)), ((*own, SERVER), (*peer, CLIENT))];
            ensure!(both.iter().all(|(one, other)| FlowKey::between(TCP, *one, *other) == expected));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn first_fragments_and_packets_with_options_are_recorded() {
    let (more, payload) = (Ipv4::MORE_FRAGMENTS, transport(CLIENT, SERVER));
    let v4 = |ip: Ipv4| (flow_v4(UDP), A.receives(IPV4, &ip.with(&payload)));
    let packets = [
        v4(Ipv4 { fragment: more, ..v4_request() }),
        v4(Ipv4 { options: vec![1; 4], ..v4_request() }),
        v4(Ipv4 { options: vec![1; 40], ..v4_request() }),
        (flow_v6(UDP), A.receives(IPV6, &v6_of(B, A, FRAGMENT).with(&fragment(UDP, 0, true, &payload)))),
        (flow_v6(UDP), {
            A.receives(IPV6, &v6_of(B, A, DESTINATION_OPTIONS).with(&extension(UDP, &payload)))
        }),
        (flow_v6(UDP), {
            let part = fragment(DESTINATION_OPTIONS, 0, true, &extension(UDP, &payload));
            A.receives(IPV6, &v6_of(B, A, HOP_BY_HOP).with(&extension(FRAGMENT, &part)))
        }),
    ];
    for (flow, packet) in packets {
        with_pods(|programs| {
            ensure!(recorded(programs, &packet)? == Some(flow));
            Ok(())
        })
        .unwrap();
    }
}

fn v4_request() -> Ipv4 {
    v4(B, A, UDP)
}

#[test]
fn other_packets_are_not_recorded() {
    let payload = transport(CLIENT, SERVER);
    let ipv4 = |ip: Ipv4| A.receives(IPV4, &ip.with(&payload));
    let ipv6 = |ip: Ipv6, payload: &[u8]| A.receives(IPV6, &ip.with(payload));
    let packets = [
        ("from the node", ipv4(Ipv4 { source: NODE_V4, ..v4_request() })),
        ("from far away", ipv4(Ipv4 { source: FAR_V4, ..v4_request() })),
        ("a Service's reply", ipv4(Ipv4 { source: VIP_V4, ..v4_request() })),
        ("a later fragment", ipv4(Ipv4 { fragment: 185, ..v4_request() })),
        ("of a protocol without ports", ipv4(v4(B, A, 253))),
        ("without ports", A.receives(IPV4, &v4_request().with(&data(7)))),
        ("a header that is too short", ipv4(Ipv4 { ihl: Some(15), ..v4_request() })),
        ("an error", A.receives(IPV4, &v4(B, A, ICMP).with(&icmp_error(3, &v4_request().with(&payload))))),
        ("IPv6 from far away", ipv6(Ipv6 { source: FAR_V6, ..v6_of(B, A, UDP) }, &payload)),
        ("a Service's reply over IPv6", ipv6(Ipv6 { source: VIP_V6, ..v6_of(B, A, UDP) }, &payload)),
        ("a later fragment of IPv6", ipv6(v6_of(B, A, FRAGMENT), &fragment(UDP, 1, true, &payload))),
        ("a truncated fragment header", ipv6(v6_of(B, A, FRAGMENT), &data(7))),
        ("behind too many extension headers", {
            let headers = (0..4).fold(extension(UDP, &payload), |it, _| extension(DESTINATION_OPTIONS, &it));
            ipv6(v6_of(B, A, DESTINATION_OPTIONS), &headers)
        }),
        ("from a link-local address", ipv6(Ipv6 { source: B.link_local(), ..v6_of(B, A, UDP) }, &payload)),
    ];
    with_pods(|programs| {
        for (about, packet) in packets {
            let flow = recorded(programs, &packet)?;
            ensure!(flow.is_none(), "{about}: {flow:?} is recorded");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn dropped_packets_are_not_recorded() {
    with_pods(|programs| {
        let stray = A.receives(IPV4, &Ipv4 { destination: FAR_V4, ..v4_request() }.with(&transport(1, 2)));
        programs.run(Program::ToPod, SkBuff::forwarded(B.ifindex, A.ifindex), &stray)?;
        let spoofed = A.receives(IPV4, &v4_request().with(&transport(1, 2)));
        programs.run(Program::ToPod, SkBuff::forwarded(1, A.ifindex), &spoofed)?;
        ensure!(programs.stack_flows.keys().next().is_none());
        Ok(())
    })
    .unwrap();
}

#[test]
fn icmp_errors_take_the_way_of_the_quoted_flow() {
    let flows = [flow_v4(TCP), flow_v4(UDP), flow_v6(TCP), flow_v6(UDP)];
    let mut table = Vec::new();
    let mut error = |about, kinds: [u8; 2], quoted: [Vec<u8>; 2], stack| {
        let [kind4, kind6] = kinds;
        let [quoted4, quoted6] = quoted;
        let [row, _] = rows(about, A, B, [ICMP, 59], &icmp_error(kind4, &quoted4), stack);
        let [_, row6] = rows(about, A, B, [253, ICMPV6], &icmp_error(kind6, &quoted6), stack);
        table.extend([row, row6]);
    };
    let request = |protocol, client, len| {
        let payload = cut(&transport(client, SERVER), len);
        [v4(B, A, protocol).with(&payload), v6_of(B, A, protocol).with(&payload)]
    };
    for protocol in [TCP, UDP] {
        for kinds in [[3, 1], [4, 2], [5, 3], [11, 3], [12, 4]] {
            error("about a recorded flow", kinds, request(protocol, CLIENT, 30), true);
            error("about another flow", kinds, request(protocol, CLIENT + 1, 30), false);
        }
        error("with the shortest quote", [3, 1], request(protocol, CLIENT, 8), true);
        for len in 0..8 {
            error("with a truncated quote", [3, 1], request(protocol, CLIENT, len), false);
        }
    }
    error("about another protocol", [3, 1], request(SCTP, CLIENT, 30), false);
    let with_options = Ipv4 { options: vec![1; 8], ..v4(B, A, TCP) }.with(&transport(CLIENT, SERVER));
    let [_, plain] = request(TCP, CLIENT, 30);
    error("about a packet with options", [3, 1], [with_options, plain.clone()], true);
    let [(first, first6), (later, later6)] = [0, 9].map(|at| {
        let payload = transport(CLIENT, SERVER);
        let quoted = Ipv4 { fragment: Ipv4::MORE_FRAGMENTS | at, ..v4(B, A, TCP) }.with(&payload);
        (quoted, v6_of(B, A, FRAGMENT).with(&fragment(TCP, at, true, &payload)))
    });
    error("about a first fragment", [3, 2], [first, first6], true);
    error("about a later fragment", [3, 2], [later, later6], false);
    // No errors: the payload is not a quote.
    error("an echo", [8, 128], request(TCP, CLIENT, 30), false);
    error("no error", [13, 150], request(TCP, CLIENT, 30), false);
    check_with_flows(Program::FromPod, &flows, &table).unwrap();
}

#[test]
fn echoes_are_identified_by_their_identifier() {
    let known = |protocol, one, other| FlowKey::between(protocol, (one, 7), (other, 7));
    let flows = [
        known(ICMP, EndpointKey::ipv4(A.v4), EndpointKey::ipv4(B.v4)),
        known(ICMPV6, EndpointKey::ipv6(A.v6), EndpointKey::ipv6(B.v6)),
    ];
    let ip6 = v6_of(B, A, ICMPV6);
    with_pods(|programs| {
        let [first, second] = flows;
        ensure!(recorded(programs, &A.receives(IPV4, &v4(B, A, ICMP).with(&echo(b"ping"))))? == Some(first));
        ensure!(recorded(programs, &A.receives(IPV6, &ip6.icmp(&ECHO_V6)))? == Some(second));
        Ok(())
    })
    .unwrap();
    let kind = |kind, id| [kind, 0, 0, 0, 0, id, 0, 1];
    let [mut table, others] = [7, 8].map(|id| {
        let stack = id == 7;
        let mut table = Vec::new();
        for (kind4, kind6) in [(8, 128), (0, 129)] {
            let [row, _] = rows("an echo", A, B, [ICMP, 59], &kind(kind4, id), stack);
            let [_, row6] = rows("an echo", A, B, [253, ICMPV6], &kind(kind6, id), stack);
            table.extend([row, row6]);
        }
        table
    });
    table.extend(others);
    check_with_flows(Program::FromPod, &flows, &table).unwrap();
}

#[test]
fn pod_that_opens_many_flows_evicts_only_its_own_unused_ones() {
    // More than all pods together may have.
    const MANY: u32 = 80_000;
    /// A 16th of the map's default capacity.
    const SHARE: usize = 4096;
    let attacker = ONLY_V4;
    with_pods(|programs| {
        let to_a = |from: Pod, protocol, client, server| {
            A.receives(IPV4, &v4(from, A, protocol).with(&transport(client, server)))
        };
        ensure!(recorded(programs, &to_a(B, UDP, CLIENT, SERVER))? == Some(flow_v4(UDP)));
        let send = |programs: &mut Programs, protocol, client, server| {
            let packet = to_a(attacker, protocol, client, server);
            let skb = SkBuff::forwarded(attacker.ifindex, A.ifindex);
            programs.run(Program::ToPod, skb, &packet)?.expect(TC_ACT_UNSPEC)
        };
        for number in 0..MANY {
            // Vary both ports: there are more flows than ports.
            let (client, server) = ((number % 60_000) as u16, 1 + (number / 60_000) as u16);
            send(programs, TCP, client, server)?;
            if number % 500 == 0 {
                send(programs, UDP, CLIENT, SERVER)?;
            }
        }
        let reply = |programs: &mut Programs, to: Pod, protocol, server, client| {
            let reply = A.sends_v4(&v4(A, to, protocol).with(&transport(server, client)));
            programs.run(Program::FromPod, SkBuff::on(A.ifindex), &reply)
        };
        reply(programs, B, UDP, SERVER, CLIENT)?.expect(TC_ACT_UNSPEC).context("another pod's flow")?;
        reply(programs, attacker, UDP, SERVER, CLIENT)?.expect(TC_ACT_UNSPEC).context("a flow in use")?;
        reply(programs, attacker, TCP, 1, 1)?.expect(TC_ACT_REDIRECT).context("an old flow")?;
        let recorded = programs.stack_flows.keys().filter(Result::is_ok).count();
        ensure!((SHARE..=SHARE + 1).contains(&recorded), "{recorded} flows are recorded");
        Ok(())
    })
    .unwrap();
}

/// A TCP segment with flags that the stack delivers to `A` from its client `B`, or one that `A` answers.
fn exchange(programs: &mut Programs, client: u16, is_answer: bool, flags: u8) -> anyhow::Result<()> {
    let (program, skb, packet) = if is_answer {
        let segment = segment(SERVER, client, flags);
        (Program::FromPod, SkBuff::on(A.ifindex), A.sends_v4(&v4(A, B, TCP).with(&segment)))
    } else {
        let segment = segment(client, SERVER, flags);
        let skb = SkBuff::forwarded(B.ifindex, A.ifindex);
        (Program::ToPod, skb, A.receives(IPV4, &v4(B, A, TCP).with(&segment)))
    };
    programs.run(program, skb, &packet)?.expect(TC_ACT_UNSPEC)
}

/// The key of a connection from `B`, and whether it is recorded.
fn connection(programs: &Programs, client: u16) -> (FlowKey, bool) {
    let ends = [(EndpointKey::ipv4(B.v4), client), (EndpointKey::ipv4(A.v4), SERVER)];
    let key = FlowKey::between(TCP, ends[0], ends[1]);
    (key, programs.stack_flows.get(&key, 0).is_ok())
}

/// Lets time pass for the flow, as far as the programs see.
fn grow_older(programs: &mut Programs, client: u16, jiffies: u32) -> anyhow::Result<()> {
    let (key, _) = connection(programs, client);
    let Flow { ifindex, used } = programs.stack_flows.get(&key, 0)?;
    Ok(programs.stack_flows.insert(&key, &Flow { ifindex, used: used.wrapping_sub(jiffies) }, 0)?)
}

#[test]
fn ended_connections_give_up_their_places_before_those_that_are_open() {
    const FIN: u8 = 0x11;
    const RST: u8 = 4;
    const SYN: u8 = 2;
    const ACK: u8 = 0x10;
    const PLACES: u16 = 4096;
    const LONG: u32 = 10_000;
    let (client, server) = (false, true);
    // What the two ends send one after another, and whether the connection has ended then.
    let endings: [(&[(bool, u8)], bool); 9] = [
        (&[], false),
        (&[(client, FIN)], false),
        (&[(client, FIN), (server, ACK), (client, FIN)], false),
        (&[(server, FIN), (server, FIN), (client, ACK)], false),
        (&[(client, FIN), (server, FIN), (client, ACK)], true),
        (&[(server, FIN), (client, ACK), (client, FIN), (server, ACK)], true),
        (&[(client, RST)], true),
        (&[(server, RST), (client, ACK)], true),
        (&[(client, FIN), (server, FIN), (client, ACK), (client, SYN)], false),
    ];
    let port = |number: usize| 40_000 + u16::try_from(number).unwrap_or_default();
    with_pods(|programs| {
        for (number, (segments, _)) in endings.iter().enumerate() {
            for (is_answer, flags) in [(client, SYN)].iter().chain(*segments) {
                exchange(programs, port(number), *is_answer, *flags)?;
            }
            // The last packets of a connection take the stack, too.
            exchange(programs, port(number), server, ACK)?;
            grow_older(programs, port(number), LONG)?;
        }
        // The other places are of connections that have just been used.
        for other in 0..PLACES - u16::try_from(endings.len())? {
            exchange(programs, other, client, SYN)?;
        }
        ensure!(programs.stack_flows.keys().count() == usize::from(PLACES));
        for (number, (segments, has_ended)) in endings.iter().enumerate().filter(|(_, (_, ended))| *ended) {
            let (_, is_recorded) = connection(programs, port(number));
            ensure!(is_recorded && *has_ended, "{segments:?} has lost its place before it was needed");
        }
        // One new flow looks at eight places, and takes the first of an ended one; those before it are older.
        exchange(programs, 50_000, client, SYN)?;
        for (number, (segments, _)) in endings.iter().enumerate() {
            let (_, is_recorded) = connection(programs, port(number));
            ensure!(is_recorded == (number != 4), "{segments:?}: recorded: {is_recorded}");
        }
        // The next three are of ended flows, too, and a new flow takes one of them at once.
        for (new, displaced) in [(50_001, 5), (50_002, 6), (50_003, 7)] {
            exchange(programs, new, client, SYN)?;
            ensure!(
                !connection(programs, port(displaced)).1,
                "{:?} has kept its place",
                endings[displaced].0
            );
        }
        ensure!(connection(programs, port(8)).1, "a connection from the port of an ended one lost its place");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_connection_that_has_just_ended_keeps_its_place_for_its_last_packets() {
    const RST: u8 = 4;
    const SYN: u8 = 2;
    with_pods(|programs| {
        // The oldest place, and older ones behind it.
        for number in 0..8 {
            exchange(programs, 40_000 + number, false, SYN)?;
            if number != 0 {
                grow_older(programs, 40_000 + number, 5000)?;
            }
        }
        for other in 0..4096 - 8 {
            exchange(programs, other, false, SYN)?;
        }
        exchange(programs, 40_000, true, RST)?;
        // Just now, however slow the machine is.
        grow_older(programs, 40_000, 0_u32.wrapping_sub(10_000))?;
        exchange(programs, 50_000, false, SYN)?;
        ensure!(connection(programs, 40_000).1, "its retransmitted packets would bypass the stack");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_new_flow_is_recorded_although_ended_flows_of_many_pods_fill_the_maps() {
    /// More than the maps' default capacity.
    const MANY: u32 = 70_000;
    with_pods(|programs| {
        for number in 0..MANY {
            let [_, one, two, three] = number.to_be_bytes();
            let ends = [EndpointKey::ipv4([10, one, two, three]), EndpointKey::ipv4([10, 9, 9, 9])];
            let flow = FlowKey::between(TCP, (ends[0], 1), (ends[1], 2));
            // A map that refuses further entries is full as well.
            let _ = programs.stack_flows.insert(&flow, &Flow { ifindex: 900, used: 0 }, 0);
            let place = RingKey { ifindex: 1000 + number / 4096, place: number % 4096 };
            let _ = programs.flow_rings.insert(&place, &flow, 0);
        }
        let request = v4(B, A, UDP).with(&transport(CLIENT, SERVER));
        let skb = SkBuff::forwarded(B.ifindex, A.ifindex);
        programs.run(Program::ToPod, skb, &A.receives(IPV4, &request))?.expect(TC_ACT_UNSPEC)?;
        ensure!(programs.stack_flows.get(&flow_v4(UDP), 0)?.ifindex == A.ifindex);
        let reply = A.sends_v4(&v4(A, B, UDP).with(&transport(SERVER, CLIENT)));
        programs.run(Program::FromPod, SkBuff::on(A.ifindex), &reply)?.expect(TC_ACT_UNSPEC)
    })
    .unwrap();
}

#[test]
fn packets_of_recorded_flows_are_checked_too() {
    use agent_common::DropReason;
    let flows = [flow_v4(TCP), flow_v6(TCP)];
    let payload = transport(CLIENT, SERVER);
    // `A` claims to be the client.
    let rows = [
        Row::dropped("IPv4", A.ifindex, A.sends_v4(&v4(B, A, TCP).with(&payload)), DropReason::SpoofedIpv4),
        Row::dropped(
            "IPv6",
            A.ifindex,
            A.sends_v6(&v6_of(B, A, TCP).with(&payload)),
            DropReason::SpoofedIpv6,
        ),
        Row::dropped(
            "a fragment",
            A.ifindex,
            A.sends_v4(&Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..v4(B, A, TCP) }.with(&payload)),
            DropReason::SpoofedIpv4,
        ),
        Row::dropped(
            "a wrong checksum",
            A.ifindex,
            {
                let ip = Ipv4 { checksum: Some(0xdead), ..v4(A, B, TCP) };
                A.sends_v4(&ip.with(&transport(SERVER, CLIENT)))
            },
            DropReason::Malformed,
        ),
        Row::dropped(
            "not to the gateway",
            A.ifindex,
            {
                let packet = v4(A, B, TCP).with(&transport(SERVER, CLIENT));
                ferrule_tests::packet::frame([2, 0, 0, 0, 0, 9], A.mac, IPV4, &packet)
            },
            DropReason::NotToGateway,
        ),
    ];
    assert_ne!(GATEWAY_MAC, [2, 0, 0, 0, 0, 9]);
    check_with_flows(Program::FromPod, &flows, &rows).unwrap();
}
