//! Neighbour discovery from a pod: solicitations, advertisements of its own addresses, and the gateway's
//! answers.

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
/// The gateway's solicited-node multicast address (RFC 4291, 2.7.1).
const SOLICITED: Ipv6Address = v6([0xff02, 0, 0, 0, 0, 1, 0xff00, 1]);
/// The nonce option of Linux's probes (RFC 7527).
const NONCE: [u8; 8] = [14, 1, 1, 2, 3, 4, 5, 6];

/// A router solicitation.
const ROUTER_SOLICIT: [u8; 8] = [ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];

/// The IPv6 header of a message: hop limit 255 (RFC 4861, 7.1).
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

/// A neighbour solicitation.
fn solicit(target: Ipv6Address, options: &[u8]) -> Vec<u8> {
    neighbour(NEIGHBOUR_SOLICITATION, target, options)
}

/// A neighbour advertisement.
fn advertise(target: Ipv6Address, options: &[u8]) -> Vec<u8> {
    neighbour(NEIGHBOUR_ADVERTISEMENT, target, options)
}

#[test]
fn messages_that_would_leave_the_link_are_dropped() {
    let [a, b, c, d] = B.v4;
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d];
    let far = v6([0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 9]);
    let site = v6([0xff05, 0, 0, 0, 0, 1, 0xff00, 5]);
    let messages = [("solicits", solicit(B.v6, &[])), ("advertises", advertise(A.v6, &[]))];
    let rows = messages.into_iter().flat_map(|(about, message)| {
        let to = |destination| ip(A.v6, destination);
        let martians = [v6([0, 0, 0, 0, 0, 0, 0, 1]), [0; 16], mapped];
        let martians = martians.map(|it| dropped(about, &to(it), &message, DropReason::Martian));
        let off_link = [far, B.v6, NODE_V6, site].map(|it| spoofed(about, &to(it), &message));
        martians.into_iter().chain(off_link)
    });
    check(Program::FromPod, &rows.collect::<Vec<_>>()).unwrap();
}

#[test]
fn solicitations_and_own_advertisements_pass() {
    let link_local = A.link_local();
    let (source, target) = (mac_option(SOURCE_MAC, A.mac), mac_option(TARGET_MAC, A.mac));
    let rows = [
        passes("solicits itself, which stays unanswered", &ip(A.v6, SOLICITED), &solicit(A.v6, &source)),
        passes("solicits a group", &ip(A.v6, SOLICITED), &solicit(ALL_NODES, &source)),
        passes("probes its address", &ip([0; 16], SOLICITED), &solicit(A.v6, &[])),
        passes("probes the gateway's address", &ip([0; 16], SOLICITED), &solicit(GATEWAY_IPV6, &[])),
        passes("probes its link-local address", &ip([0; 16], SOLICITED), &solicit(link_local, &NONCE)),
        passes("advertises itself", &ip(A.v6, GATEWAY_IPV6), &advertise(A.v6, &target)),
        passes(
            "advertises its link-local address",
            &ip(link_local, GATEWAY_IPV6),
            &advertise(link_local, &target),
        ),
        passes(
            "advertises from its link-local address",
            &ip(link_local, GATEWAY_IPV6),
            &advertise(A.v6, &target),
        ),
        passes("advertises without its MAC", &ip(A.v6, GATEWAY_IPV6), &advertise(A.v6, &[])),
        passes("advertises unsolicited", &ip(A.v6, ALL_NODES), &advertise(A.v6, &target)),
        passes(
            "four options",
            &ip(A.v6, SOLICITED),
            &solicit(A.v6, &[source.as_slice(), &NONCE, &NONCE, &target].concat()),
        ),
        passes(
            "a long option before its MAC",
            &ip(A.v6, SOLICITED),
            &solicit(A.v6, &[&[200, 3], data(22).as_slice(), &source].concat()),
        ),
        Row::stack("a pod without IPv6 solicits from its link-local address", ONLY_V4, {
            let ip = ip(ONLY_V4.link_local(), SOLICITED);
            sends(ONLY_V4, &ip.icmp(&solicit(ONLY_V4.link_local(), &mac_option(SOURCE_MAC, ONLY_V4.mac))))
        }),
    ];
    check(Program::FromPod, &rows).unwrap();
}

/// A solicitation for the gateway, and the answer, which replaces it in the frame.
fn answered(about: &'static str, from: Pod, ip: &Ipv6, options: &[u8]) -> Row {
    answered_about(GATEWAY_IPV6, about, from, ip, options)
}

fn answered_about(target: Ipv6Address, about: &'static str, from: Pod, ip: &Ipv6, options: &[u8]) -> Row {
    let solicitation = sends(from, &ip.icmp(&solicit(target, options)));
    // Flags: router, solicited, override (RFC 4861, 4.4).
    let head = [NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0xe0, 0, 0, 0];
    let mut answer = [head.as_slice(), &target].concat();
    if options.len() >= 8 {
        answer.extend(mac_option(TARGET_MAC, GATEWAY_MAC));
    }
    let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(GATEWAY_IPV6, ip.source, ICMPV6) };
    let mut out = frame(from.mac, GATEWAY_MAC, IPV6, &ip.icmp(&answer));
    // The rest of the frame becomes padding.
    out.extend(solicitation.iter().skip(out.len()));
    Row::answered(about, from, solicitation, out)
}

#[test]
fn the_gateway_answers_for_every_other_address() {
    let source = mac_option(SOURCE_MAC, A.mac);
    let own_gateway = v6([0xfd00, 0x10, 0x244, 0, 0, 0, 0, 1]);
    let rows = [B.v6, B.link_local(), NODE_V6, own_gateway, v6([0xfe80, 0, 0, 0, 0, 0, 0, 2])]
        .map(|target| answered_about(target, "an address of no gateway", A, &ip(A.v6, SOLICITED), &source));
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn solicitations_for_the_gateway_are_answered() {
    let source = mac_option(SOURCE_MAC, A.mac);
    let rows = [
        answered("solicited", A, &ip(A.v6, SOLICITED), &source),
        answered("from the pod's link-local address", A, &ip(A.link_local(), SOLICITED), &source),
        answered("by unicast, as for a neighbour entry in state PROBE", A, &ip(A.v6, GATEWAY_IPV6), &source),
        answered("without a MAC", A, &ip(A.v6, GATEWAY_IPV6), &[]),
        answered("with more options", A, &ip(A.v6, SOLICITED), &[source.as_slice(), &NONCE].concat()),
        answered(
            "by a pod without IPv6, from its link-local address",
            ONLY_V4,
            &ip(ONLY_V4.link_local(), SOLICITED),
            &mac_option(SOURCE_MAC, ONLY_V4.mac),
        ),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn claims_of_other_addresses_are_dropped() {
    let own = mac_option(TARGET_MAC, A.mac);
    let advertises = |about, target| spoofed(about, &ip(A.v6, GATEWAY_IPV6), &advertise(target, &own));
    let from = |about, source| {
        [
            spoofed(about, &ip(source, SOLICITED), &solicit(GATEWAY_IPV6, &mac_option(SOURCE_MAC, A.mac))),
            spoofed(about, &ip(source, GATEWAY_IPV6), &advertise(A.v6, &own)),
        ]
    };
    let option = |about, kind, mac| {
        [
            spoofed(about, &ip(A.v6, SOLICITED), &solicit(GATEWAY_IPV6, &mac_option(kind, mac))),
            spoofed(about, &ip(A.v6, GATEWAY_IPV6), &advertise(A.v6, &mac_option(kind, mac))),
        ]
    };
    let claims = [
        advertises("advertises the sibling", B.v6),
        advertises("advertises the sibling's link-local address", B.link_local()),
        advertises("advertises the gateway", GATEWAY_IPV6),
        advertises("advertises the node", NODE_V6),
        advertises("advertises ::", [0; 16]),
        spoofed("advertises from ::", &ip([0; 16], GATEWAY_IPV6), &advertise(A.v6, &own)),
        Row::dropped(
            "a pod without IPv6 advertises ::",
            ONLY_V4.ifindex,
            sends(ONLY_V4, &ip(ONLY_V4.link_local(), GATEWAY_IPV6).icmp(&advertise([0; 16], &[]))),
            DropReason::SpoofedNd,
        ),
        spoofed(
            "another MAC behind its own",
            &ip(A.v6, SOLICITED),
            &solicit(GATEWAY_IPV6, &[mac_option(SOURCE_MAC, A.mac), mac_option(SOURCE_MAC, B.mac)].concat()),
        ),
        spoofed(
            "another MAC behind a long option",
            &ip(A.v6, SOLICITED),
            &solicit(
                GATEWAY_IPV6,
                &[&[200, 3], data(22).as_slice(), &mac_option(SOURCE_MAC, B.mac)].concat(),
            ),
        ),
        spoofed(
            "probes with another MAC",
            &ip([0; 16], SOLICITED),
            &solicit(A.v6, &mac_option(SOURCE_MAC, B.mac)),
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
        option("with an unknown MAC", SOURCE_MAC, OTHER_MAC),
        option("with the zero MAC", SOURCE_MAC, [0; 6]),
    ];
    let rows = claims.into_iter().chain(sources.into_iter().flatten()).chain(options.into_iter().flatten());
    check(Program::FromPod, &rows.collect::<Vec<_>>()).unwrap();
}

#[test]
fn messages_for_routers_to_send_are_dropped() {
    let link_local = A.link_local();
    let redirect = [neighbour(REDIRECT, GATEWAY_IPV6, &NODE_V6), mac_option(TARGET_MAC, A.mac)].concat();
    let rows = [
        spoofed("advertises itself as router", &ip(link_local, ALL_NODES), &router_advertisement()),
        spoofed(
            "advertises itself as router to the gateway",
            &ip(link_local, GATEWAY_IPV6),
            &router_advertisement(),
        ),
        spoofed(
            "advertises itself as router from its address",
            &ip(A.v6, ALL_NODES),
            &router_advertisement(),
        ),
        spoofed("advertises a router as the gateway", &ip(GATEWAY_IPV6, ALL_NODES), &router_advertisement()),
        spoofed("advertises itself as router to a sibling", &ip(link_local, B.v6), &router_advertisement()),
        spoofed(
            "advertises a prefix",
            &ip(link_local, ALL_NODES),
            &[router_advertisement(), [&[3, 4, 64, 0xc0], data(28).as_slice()].concat()].concat(),
        ),
        // Every host solicits routers. The only router is configured.
        dropped("solicits routers", &ip(link_local, ALL_ROUTERS), &ROUTER_SOLICIT, DropReason::Multicast),
        dropped(
            "solicits routers from its address",
            &ip(A.v6, ALL_ROUTERS),
            &ROUTER_SOLICIT,
            DropReason::Multicast,
        ),
        spoofed("solicits routers as its sibling", &ip(B.link_local(), ALL_ROUTERS), &ROUTER_SOLICIT),
        spoofed("solicits routers from ::", &ip([0; 16], ALL_ROUTERS), &ROUTER_SOLICIT),
        spoofed("redirects", &ip(link_local, GATEWAY_IPV6), &redirect),
        spoofed("redirects as the gateway", &ip(GATEWAY_IPV6, NODE_V6), &redirect),
        spoofed("redirects a sibling", &ip(A.v6, B.v6), &redirect),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn messages_for_routers_behind_extension_headers_are_dropped() {
    let hidden = |about, source, destination, reason| {
        // Hop-by-hop, twice destination options, and an atomic fragment.
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
fn messages_with_hop_limit_below_255_are_dropped() {
    let source = mac_option(SOURCE_MAC, A.mac);
    // RFC 4861, 7.1: a routed packet cannot have 255.
    let rows: Vec<Row> = [0, 1, 64, 254]
        .into_iter()
        .flat_map(|hop_limit| {
            [
                spoofed(
                    "solicits, as if routed",
                    &Ipv6 { hop_limit, ..ip(A.v6, SOLICITED) },
                    &solicit(GATEWAY_IPV6, &source),
                ),
                spoofed(
                    "advertises, as if routed",
                    &Ipv6 { hop_limit, ..ip(A.v6, GATEWAY_IPV6) },
                    &advertise(A.v6, &[]),
                ),
            ]
        })
        .collect();
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn malformed_and_excessive_options_are_dropped() {
    let solicits = |about, options: &[u8], reason| {
        dropped(about, &ip(A.v6, SOLICITED), &solicit(GATEWAY_IPV6, options), reason)
    };
    let source = mac_option(SOURCE_MAC, A.mac);
    let mut rows = vec![
        solicits("an option of length zero", &[1, 0, 0, 0, 0, 0, 0, 0], DropReason::Malformed),
        solicits(
            "an option of length zero behind a valid one",
            &[source.as_slice(), &[0; 8]].concat(),
            DropReason::Malformed,
        ),
        solicits("a truncated option", cut(&source, 7).as_slice(), DropReason::Malformed),
        solicits("one byte of an option", &[1], DropReason::Malformed),
        solicits("five options", &source.repeat(5), DropReason::SpoofedNd),
        solicits("a hundred options", &source.repeat(100), DropReason::SpoofedNd),
        solicits(
            "the wrong MAC as the fifth",
            &[source.repeat(4), mac_option(SOURCE_MAC, B.mac)].concat(),
            DropReason::SpoofedNd,
        ),
    ];
    // The message is truncated behind its type.
    let whole = solicit(GATEWAY_IPV6, &[]);
    rows.extend((2..whole.len()).map(|len| {
        dropped("a truncated solicitation", &ip(A.v6, SOLICITED), &cut(&whole, len), DropReason::Malformed)
    }));
    rows.push(spoofed(
        "a truncated router advertisement",
        &ip(A.link_local(), ALL_NODES),
        &[ROUTER_ADVERTISEMENT, 0],
    ));
    // Passes: the stack drops a message whose option reaches beyond the packet.
    rows.push(passes(
        "an option that is longer than the packet",
        &ip(A.v6, SOLICITED),
        &solicit(A.v6, &[200, 9, 0, 0, 0, 0, 0, 0]),
    ));
    check(Program::FromPod, &rows).unwrap();
}
