//! ARP from a pod: it may ask, and tell of its own address. For the gateway, it is the program that answers.

use agent_common::{DropReason, GATEWAY_IPV4, GATEWAY_MAC};
use ferrule_tests::{
    packet::{self, Arp, BROADCAST, Ipv4Address, frame},
    program::Program,
};

use crate::table::{A, B, FAR_V4, NODE_V4, ONLY_V4, ONLY_V6, OTHER_MAC, Pod, Row, check};

fn sends(from: Pod, arp: &Arp) -> Vec<u8> {
    frame(BROADCAST, from.mac, packet::ARP, &arp.bytes())
}

fn ask() -> Arp {
    Arp::ask(A.mac, A.v4, GATEWAY_IPV4)
}

fn reply() -> Arp {
    Arp { operation: Arp::REPLY, target_mac: GATEWAY_MAC, ..ask() }
}

/// RFC 5227: does anybody have this address?
fn probe(target_ip: Ipv4Address) -> Arp {
    Arp { sender_ip: [0; 4], target_ip, ..ask() }
}

#[test]
fn a_pod_asks_and_tells_of_itself() {
    let passes = |about, arp: Arp| Row::stack(about, A, sends(A, &arp));
    let rows = [
        passes("request for a sibling, which nobody answers", Arp { target_ip: B.v4, ..ask() }),
        passes("reply to the gateway", reply()),
        passes("probe for its own address", probe(A.v4)),
        // Whoever answered would say that it is taken; nobody needs to know that of this one.
        passes("probe for the gateway's", probe(GATEWAY_IPV4)),
        passes("announcement of its own address", Arp { target_ip: A.v4, ..ask() }),
        passes("the same as a reply", Arp { target_ip: A.v4, operation: Arp::REPLY, ..ask() }),
    ];
    check(Program::FromPod, &rows).unwrap();
}

/// The gateway's answer to a pod.
fn answer(to: Pod) -> Vec<u8> {
    let answer =
        Arp { operation: Arp::REPLY, target_mac: to.mac, ..Arp::ask(GATEWAY_MAC, GATEWAY_IPV4, to.v4) };
    frame(to.mac, GATEWAY_MAC, packet::ARP, &answer.bytes())
}

#[test]
fn the_gateway_answers_whoever_asks_for_it() {
    let padded = |mut frame: Vec<u8>| {
        frame.resize(60, 0);
        frame
    };
    let unicast = A.sends(packet::ARP, &ask().bytes());
    let of_v4 = Arp::ask(ONLY_V4.mac, ONLY_V4.v4, GATEWAY_IPV4);
    let rows = [
        Row::answered("asked by broadcast", A, sends(A, &ask()), answer(A)),
        Row::answered("asked by unicast, as when an entry is renewed", A, unicast, answer(A)),
        Row::answered(
            "asked in the shortest frame of a wire",
            A,
            padded(sends(A, &ask())),
            padded(answer(A)),
        ),
        Row::answered("asked by a pod with IPv4 only", ONLY_V4, sends(ONLY_V4, &of_v4), answer(ONLY_V4)),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn a_pod_does_not_tell_of_others() {
    let claims = |about, sender_ip| {
        [ask(), reply()].map(|arp| {
            Row::dropped(about, A.ifindex, sends(A, &Arp { sender_ip, ..arp }), DropReason::SpoofedArp)
        })
    };
    let spoofed = |about, arp: Arp| Row::dropped(about, A.ifindex, sends(A, &arp), DropReason::SpoofedArp);
    let claims = [
        claims("claims the sibling's address", B.v4),
        claims("claims the gateway's", GATEWAY_IPV4),
        claims("claims the node's", NODE_V4),
        claims("claims one that is far away", FAR_V4),
        claims("claims loopback", [127, 0, 0, 1]),
        claims("claims broadcast", [255; 4]),
        claims("claims multicast", [224, 0, 0, 1]),
    ];
    let others = [
        spoofed("announces the sibling's address", Arp { sender_ip: B.v4, target_ip: B.v4, ..ask() }),
        spoofed("its own address, at the sibling's MAC", Arp { sender_mac: B.mac, ..ask() }),
        spoofed("its own address, at nobody's MAC", Arp { sender_mac: OTHER_MAC, ..reply() }),
        spoofed("its own address, at the gateway's MAC", Arp { sender_mac: GATEWAY_MAC, ..reply() }),
        spoofed("a probe with the sibling's MAC", Arp { sender_mac: B.mac, ..probe(A.v4) }),
        spoofed("a reply that tells of no address", Arp { operation: Arp::REPLY, ..probe(A.v4) }),
        Row::dropped(
            "a pod without IPv4 claims an address",
            ONLY_V6.ifindex,
            sends(ONLY_V6, &Arp::ask(ONLY_V6.mac, A.v4, GATEWAY_IPV4)),
            DropReason::SpoofedArp,
        ),
        Row::dropped(
            "a pod without IPv4 replies for none",
            ONLY_V6.ifindex,
            sends(ONLY_V6, &Arp { operation: Arp::REPLY, ..Arp::ask(ONLY_V6.mac, [0; 4], GATEWAY_IPV4) }),
            DropReason::SpoofedArp,
        ),
    ];
    check(Program::FromPod, &claims.into_iter().flatten().chain(others).collect::<Vec<_>>()).unwrap();
}

#[test]
fn arp_is_about_ipv4_over_ethernet() {
    let odd = |about, arp: Arp| Row::dropped(about, A.ifindex, sends(A, &arp), DropReason::SpoofedArp);
    let rows = [
        odd("other hardware", Arp { hardware: 6, ..ask() }),
        odd("hardware in the wrong byte order", Arp { hardware: 0x0100, ..ask() }),
        odd("other protocol", Arp { protocol: packet::IPV6, ..ask() }),
        odd("hardware address of 8 bytes", Arp { hardware_len: 8, ..ask() }),
        odd("hardware address of no bytes", Arp { hardware_len: 0, ..ask() }),
        odd("protocol address of 16 bytes", Arp { protocol_len: 16, ..ask() }),
        odd("protocol address of no bytes", Arp { protocol_len: 0, ..ask() }),
        odd("lengths the wrong way round", Arp { hardware_len: 4, protocol_len: 6, ..ask() }),
        odd("reverse ARP", Arp { operation: 3, ..ask() }),
        odd("inverse ARP", Arp { operation: 8, ..ask() }),
        odd("no operation", Arp { operation: 0, ..ask() }),
    ];
    check(Program::FromPod, &rows).unwrap();
}
