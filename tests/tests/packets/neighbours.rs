//! Neighbour discovery from a pod: it may ask, and answer for itself. For the gateway, it is the program that answers.

use agent_common::{DropReason, GATEWAY_IPV6, GATEWAY_MAC};
use ferrule_tests::{
    packet::{
        HOP_BY_HOP, ICMPV6, IPV6, Ipv6, Ipv6Address, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION,
        REDIRECT, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION, SOURCE_MAC, TARGET_MAC, cut, data, extension,
        frame, mac_option, neighbour, router_advertisement,
    },
    program::Program,
};

use crate::table::{A, B, NODE_V6, ONLY_V4, OTHER_MAC, Pod, Row, check, v6};

const ALL_NODES: Ipv6Address = v6([0xff02, 0, 0, 0, 0, 0, 0, 1]);
const ALL_ROUTERS: Ipv6Address = v6([0xff02, 0, 0, 0, 0, 0, 0, 2]);
/// Where an address is asked for (RFC 4291, 2.7.1): the gateway's.
const SOLICITED: Ipv6Address = v6([0xff02, 0, 0, 0, 0, 1, 0xff00, 1]);
/// An option that Linux adds to its probes (RFC 7527).
const NONCE: [u8; 8] = [14, 1, 1, 2, 3, 4, 5, 6];

/// A router solicitation.
const SOLICITS: [u8; 8] = [ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];

/// A message as it is to be sent: from a pod's address, at hop limit 255.
fn ip(source: Ipv6Address, destination: Ipv6Address) -> Ipv6 {
    Ipv6 { hop_limit: 255, ..Ipv6::new(source, destination, ICMPV6) }
}

fn sends(from: Pod, packet: &[u8]) -> Vec<u8> {
    frame([0x33, 0x33, 0xff, 0, 0, 1], from.mac, IPV6, packet)
}

fn passes(about: &'static str, ip: &Ipv6, message: &[u8]) -> Row {
    Row::stack(about, A, sends(A, &ip.icmp(message)))
}

fn dropped(about: &'static str, ip: &Ipv6, message: &[u8], reason: DropReason) -> Row {
    Row::dropped(about, A.ifindex, sends(A, &ip.icmp(message)), reason)
}

fn spoofed(about: &'static str, ip: &Ipv6, message: &[u8]) -> Row {
    dropped(about, ip, message, DropReason::SpoofedNd)
}

/// Asks for an address, with options.
fn ask(target: Ipv6Address, options: &[u8]) -> Vec<u8> {
    neighbour(NEIGHBOUR_SOLICITATION, target, options)
}

/// Tells of an address, with options.
fn tell(target: Ipv6Address, options: &[u8]) -> Vec<u8> {
    neighbour(NEIGHBOUR_ADVERTISEMENT, target, options)
}

#[test]
fn a_pod_asks_and_answers_for_itself() {
    let link_local = A.link_local();
    let (source, target) = (mac_option(SOURCE_MAC, A.mac), mac_option(TARGET_MAC, A.mac));
    let rows = [
        passes("asks for a sibling, which nobody answers", &ip(A.v6, SOLICITED), &ask(B.v6, &source)),
        passes("probes its address", &ip([0; 16], SOLICITED), &ask(A.v6, &[])),
        passes("probes the gateway's", &ip([0; 16], SOLICITED), &ask(GATEWAY_IPV6, &[])),
        passes("probes its link-local address", &ip([0; 16], SOLICITED), &ask(link_local, &NONCE)),
        passes("answers", &ip(A.v6, GATEWAY_IPV6), &tell(A.v6, &target)),
        passes(
            "answers for its link-local address",
            &ip(link_local, GATEWAY_IPV6),
            &tell(link_local, &target),
        ),
        passes("answers from its link-local address", &ip(link_local, GATEWAY_IPV6), &tell(A.v6, &target)),
        passes("answers without its MAC", &ip(A.v6, GATEWAY_IPV6), &tell(A.v6, &[])),
        passes("announces itself", &ip(A.v6, ALL_NODES), &tell(A.v6, &target)),
        passes(
            "four options",
            &ip(A.v6, SOLICITED),
            &ask(B.v6, &[source.as_slice(), &NONCE, &NONCE, &target].concat()),
        ),
        passes(
            "a long option before its MAC",
            &ip(A.v6, SOLICITED),
            &ask(B.v6, &[&[200, 3], data(22).as_slice(), &source].concat()),
        ),
        Row::stack("a pod without IPv6 asks from its link-local address", ONLY_V4, {
            let ip = ip(ONLY_V4.link_local(), SOLICITED);
            sends(ONLY_V4, &ip.icmp(&ask(B.v6, &mac_option(SOURCE_MAC, ONLY_V4.mac))))
        }),
    ];
    check(Program::FromPod, &rows).unwrap();
}

/// A question for the gateway, and its answer, which takes the question's place in the frame.
fn answered(about: &'static str, from: Pod, ip: &Ipv6, options: &[u8]) -> Row {
    let question = sends(from, &ip.icmp(&ask(GATEWAY_IPV6, options)));
    // It is a router, was asked, and knows better (RFC 4861, 4.4).
    let head = [NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0xe0, 0, 0, 0];
    let mut answer = [head.as_slice(), &GATEWAY_IPV6].concat();
    if options.len() >= 8 {
        answer.extend(mac_option(TARGET_MAC, GATEWAY_MAC));
    }
    let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(GATEWAY_IPV6, ip.source, ICMPV6) };
    let mut out = frame(from.mac, GATEWAY_MAC, IPV6, &ip.icmp(&answer));
    // What is behind the packet's end is padding.
    out.extend(question.iter().skip(out.len()));
    Row::answered(about, from, question, out)
}

#[test]
fn the_gateway_answers_whoever_asks_for_it() {
    let source = mac_option(SOURCE_MAC, A.mac);
    let rows = [
        answered("asked", A, &ip(A.v6, SOLICITED), &source),
        answered("asked from the pod's link-local address", A, &ip(A.link_local(), SOLICITED), &source),
        answered("asked by unicast, as when an entry is renewed", A, &ip(A.v6, GATEWAY_IPV6), &source),
        answered("asked without a MAC", A, &ip(A.v6, GATEWAY_IPV6), &[]),
        answered("asked with more options", A, &ip(A.v6, SOLICITED), &[source.as_slice(), &NONCE].concat()),
        answered(
            "asked by a pod without IPv6, from its link-local address",
            ONLY_V4,
            &ip(ONLY_V4.link_local(), SOLICITED),
            &mac_option(SOURCE_MAC, ONLY_V4.mac),
        ),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn a_pod_does_not_answer_for_others() {
    let own = mac_option(TARGET_MAC, A.mac);
    let answers = |about, target| spoofed(about, &ip(A.v6, GATEWAY_IPV6), &tell(target, &own));
    let from = |about, source| {
        [
            spoofed(about, &ip(source, SOLICITED), &ask(GATEWAY_IPV6, &mac_option(SOURCE_MAC, A.mac))),
            spoofed(about, &ip(source, GATEWAY_IPV6), &tell(A.v6, &own)),
        ]
    };
    let option = |about, kind, mac| {
        [
            spoofed(about, &ip(A.v6, SOLICITED), &ask(GATEWAY_IPV6, &mac_option(kind, mac))),
            spoofed(about, &ip(A.v6, GATEWAY_IPV6), &tell(A.v6, &mac_option(kind, mac))),
        ]
    };
    let claims = [
        answers("answers for the sibling", B.v6),
        answers("answers for the sibling's link-local address", B.link_local()),
        answers("answers for the gateway", GATEWAY_IPV6),
        answers("answers for the node", NODE_V6),
        answers("answers for no address", [0; 16]),
        spoofed("answers from no address", &ip([0; 16], GATEWAY_IPV6), &tell(A.v6, &own)),
        Row::dropped(
            "a pod without IPv6 answers for no address",
            ONLY_V4.ifindex,
            sends(ONLY_V4, &ip(ONLY_V4.link_local(), GATEWAY_IPV6).icmp(&tell([0; 16], &[]))),
            DropReason::SpoofedNd,
        ),
        spoofed(
            "somebody's MAC behind its own",
            &ip(A.v6, SOLICITED),
            &ask(GATEWAY_IPV6, &[mac_option(SOURCE_MAC, A.mac), mac_option(SOURCE_MAC, B.mac)].concat()),
        ),
        spoofed(
            "somebody's MAC behind a long option",
            &ip(A.v6, SOLICITED),
            &ask(GATEWAY_IPV6, &[&[200, 3], data(22).as_slice(), &mac_option(SOURCE_MAC, B.mac)].concat()),
        ),
        spoofed(
            "probes with somebody's MAC",
            &ip([0; 16], SOLICITED),
            &ask(A.v6, &mac_option(SOURCE_MAC, B.mac)),
        ),
    ];
    let sources = [
        from("from the sibling", B.v6),
        from("from the sibling's link-local address", B.link_local()),
        from("from the gateway", GATEWAY_IPV6),
        from("from a group", ALL_NODES),
    ];
    let options = [
        option("with the sibling's MAC as source", SOURCE_MAC, B.mac),
        option("with the sibling's MAC as target", TARGET_MAC, B.mac),
        option("with the gateway's MAC", TARGET_MAC, GATEWAY_MAC),
        option("with nobody's MAC", SOURCE_MAC, OTHER_MAC),
        option("with no MAC", SOURCE_MAC, [0; 6]),
    ];
    let rows = claims.into_iter().chain(sources.into_iter().flatten()).chain(options.into_iter().flatten());
    check(Program::FromPod, &rows.collect::<Vec<_>>()).unwrap();
}

#[test]
fn a_pod_is_no_router() {
    let link_local = A.link_local();
    let redirect = [neighbour(REDIRECT, GATEWAY_IPV6, &NODE_V6), mac_option(TARGET_MAC, A.mac)].concat();
    let rows = [
        spoofed("advertises itself as router", &ip(link_local, ALL_NODES), &router_advertisement()),
        spoofed("the same to the gateway", &ip(link_local, GATEWAY_IPV6), &router_advertisement()),
        spoofed("the same from its address", &ip(A.v6, ALL_NODES), &router_advertisement()),
        spoofed("the same from the gateway", &ip(GATEWAY_IPV6, ALL_NODES), &router_advertisement()),
        spoofed("the same to a sibling", &ip(link_local, B.v6), &router_advertisement()),
        spoofed(
            "advertises a prefix",
            &ip(link_local, ALL_NODES),
            &[router_advertisement(), [&[3, 4, 64, 0xc0], data(28).as_slice()].concat()].concat(),
        ),
        // What any host does. Nobody would answer: there is one router, which it knows.
        dropped("asks for routers", &ip(link_local, ALL_ROUTERS), &SOLICITS, DropReason::Multicast),
        dropped(
            "asks for routers from its address",
            &ip(A.v6, ALL_ROUTERS),
            &SOLICITS,
            DropReason::Multicast,
        ),
        spoofed("asks for routers as its sibling", &ip(B.link_local(), ALL_ROUTERS), &SOLICITS),
        spoofed("asks for routers as nobody", &ip([0; 16], ALL_ROUTERS), &SOLICITS),
        spoofed("redirects", &ip(link_local, GATEWAY_IPV6), &redirect),
        spoofed("redirects in the gateway's name", &ip(GATEWAY_IPV6, NODE_V6), &redirect),
        spoofed("redirects a sibling", &ip(A.v6, B.v6), &redirect),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn what_only_a_router_may_send_does_not_hide() {
    let hidden = |about, source, destination, reason| {
        // Hop-by-hop, twice destination options, and a fragment header that fragments nothing.
        let ip = Ipv6 { next_header: HOP_BY_HOP, ..ip(source, destination) };
        let message = ip.sealed(&router_advertisement());
        let behind_one = ip.with(&extension(ICMPV6, &message));
        let behind_many =
            ip.with(&extension(60, &extension(60, &extension(44, &extension(ICMPV6, &message)))));
        [behind_one, behind_many].map(|packet| Row::dropped(about, A.ifindex, sends(A, &packet), reason))
    };
    let rows = [
        hidden("to all nodes", A.link_local(), ALL_NODES, DropReason::Multicast),
        hidden("to the gateway", A.link_local(), GATEWAY_IPV6, DropReason::SpoofedNd),
        hidden("from the gateway", GATEWAY_IPV6, NODE_V6, DropReason::SpoofedIpv6),
        hidden("from the sibling", B.link_local(), GATEWAY_IPV6, DropReason::SpoofedIpv6),
        hidden("from its link-local address to a sibling", A.link_local(), B.v6, DropReason::SpoofedIpv6),
    ];
    check(Program::FromPod, &rows.into_iter().flatten().collect::<Vec<_>>()).unwrap();
}

#[test]
fn a_message_comes_from_the_link() {
    let source = mac_option(SOURCE_MAC, A.mac);
    // RFC 4861, 7.1: 255 is what no packet has that was routed.
    let rows: Vec<Row> = [0, 1, 64, 254]
        .into_iter()
        .flat_map(|hop_limit| {
            [
                spoofed(
                    "asks, as if routed",
                    &Ipv6 { hop_limit, ..ip(A.v6, SOLICITED) },
                    &ask(GATEWAY_IPV6, &source),
                ),
                spoofed(
                    "answers, as if routed",
                    &Ipv6 { hop_limit, ..ip(A.v6, GATEWAY_IPV6) },
                    &tell(A.v6, &[]),
                ),
            ]
        })
        .collect();
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn options_are_whole_and_few() {
    let asks = |about, options: &[u8], reason| {
        dropped(about, &ip(A.v6, SOLICITED), &ask(GATEWAY_IPV6, options), reason)
    };
    let source = mac_option(SOURCE_MAC, A.mac);
    let mut rows = vec![
        asks("an option of no length", &[1, 0, 0, 0, 0, 0, 0, 0], DropReason::Malformed),
        asks(
            "an option of no length behind a good one",
            &[source.as_slice(), &[0; 8]].concat(),
            DropReason::Malformed,
        ),
        asks("an option that is cut off", cut(&source, 7).as_slice(), DropReason::Malformed),
        asks("one byte of an option", &[1], DropReason::Malformed),
        asks("five options", &source.repeat(5), DropReason::SpoofedNd),
        asks("a hundred options", &source.repeat(100), DropReason::SpoofedNd),
        asks(
            "the wrong MAC as the fifth",
            &[source.repeat(4), mac_option(SOURCE_MAC, B.mac)].concat(),
            DropReason::SpoofedNd,
        ),
    ];
    // The message itself is cut off; its type is there.
    let whole = ask(GATEWAY_IPV6, &[]);
    rows.extend((2..whole.len()).map(|len| {
        dropped(
            "a solicitation that is cut off",
            &ip(A.v6, SOLICITED),
            &cut(&whole, len),
            DropReason::Malformed,
        )
    }));
    rows.push(spoofed(
        "a router advertisement that is cut off",
        &ip(A.link_local(), ALL_NODES),
        &[ROUTER_ADVERTISEMENT, 0],
    ));
    // An option that reaches beyond the packet says nothing that the stack would hear: it drops the message.
    rows.push(passes(
        "an option that is longer than the packet",
        &ip(A.v6, SOLICITED),
        &ask(B.v6, &[200, 9, 0, 0, 0, 0, 0, 0]),
    ));
    check(Program::FromPod, &rows).unwrap();
}
