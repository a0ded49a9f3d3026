//! ARP from a pod: requests, claims of its own address, and the gateway's answers.

use agent_common::{DropReason, GATEWAY_IPV4, GATEWAY_MAC};
use ferrule_tests::{
    packet::{self, Arp, BROADCAST, Ipv4Address, frame},
    program::Program,
};

use crate::table::{A, B, FAR_V4, NODE_V4, ONLY_V4, ONLY_V6, OTHER_MAC, Pod, Row, check};

fn sends(from: Pod, arp: &Arp) -> Vec<u8> {
    frame(BROADCAST, from.mac, packet::ARP, &arp.bytes())
}

fn request() -> Arp {
    Arp::ask(A.mac, A.v4, GATEWAY_IPV4)
}

fn reply() -> Arp {
    Arp { operation: Arp::REPLY, target_mac: GATEWAY_MAC, ..request() }
}

/// Address probe (RFC 5227).
fn probe(target_ip: Ipv4Address) -> Arp {
    Arp { sender_ip: [0; 4], target_ip, ..request() }
}

#[test]
fn requests_and_claims_of_the_own_address_pass() {
    let passes = |about, arp: Arp| Row::stack(about, A, sends(A, &arp));
    let rows = [
        passes("reply to the gateway", reply()),
        passes("probe for its own address", probe(A.v4)),
        // Unanswered: an answer would mean that the address is in use on the link.
        passes("probe for the gateway's address", probe(GATEWAY_IPV4)),
        passes("announcement of its own address", Arp { target_ip: A.v4, ..request() }),
        passes("announcement as a reply", Arp { target_ip: A.v4, operation: Arp::REPLY, ..request() }),
    ];
    check(Program::FromPod, &rows).unwrap();
}

/// The gateway's answer to a pod.
fn answer(to: Pod) -> Vec<u8> {
    answer_about(GATEWAY_IPV4, to)
}

fn answer_about(address: Ipv4Address, to: Pod) -> Vec<u8> {
    let answer = Arp { operation: Arp::REPLY, target_mac: to.mac, ..Arp::ask(GATEWAY_MAC, address, to.v4) };
    frame(to.mac, GATEWAY_MAC, packet::ARP, &answer.bytes())
}

#[test]
fn the_gateway_answers_for_every_other_address() {
    let addresses = [B.v4, NODE_V4, FAR_V4, [10, 244, 0, 1], [169, 254, 1, 2]];
    let rows = addresses.map(|target_ip| {
        let request = sends(A, &Arp { target_ip, ..request() });
        Row::answered("request for an address of no gateway", A, request, answer_about(target_ip, A))
    });
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn requests_for_the_gateway_are_answered() {
    let padded = |mut frame: Vec<u8>| {
        frame.resize(60, 0);
        frame
    };
    let unicast = A.sends(packet::ARP, &request().bytes());
    let of_v4 = Arp::ask(ONLY_V4.mac, ONLY_V4.v4, GATEWAY_IPV4);
    let rows = [
        Row::answered("broadcast request", A, sends(A, &request()), answer(A)),
        Row::answered("unicast request, as for a neighbour entry in state PROBE", A, unicast, answer(A)),
        Row::answered(
            "request padded to the minimum frame length",
            A,
            padded(sends(A, &request())),
            padded(answer(A)),
        ),
        Row::answered("request from a pod without IPv6", ONLY_V4, sends(ONLY_V4, &of_v4), answer(ONLY_V4)),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn claims_of_other_addresses_are_dropped() {
    let claims = |about, sender_ip| {
        [request(), reply()].map(|arp| {
            Row::dropped(about, A.ifindex, sends(A, &Arp { sender_ip, ..arp }), DropReason::SpoofedArp)
        })
    };
    let spoofed = |about, arp: Arp| Row::dropped(about, A.ifindex, sends(A, &arp), DropReason::SpoofedArp);
    let claims = [
        claims("claims the sibling's address", B.v4),
        claims("claims the gateway's", GATEWAY_IPV4),
        claims("claims the node's", NODE_V4),
        claims("claims an address outside the cluster", FAR_V4),
        claims("claims loopback", [127, 0, 0, 1]),
        claims("claims broadcast", [255; 4]),
        claims("claims multicast", [224, 0, 0, 1]),
    ];
    let others = [
        spoofed("announces the sibling's address", Arp { sender_ip: B.v4, target_ip: B.v4, ..request() }),
        spoofed("its own address, at the sibling's MAC", Arp { sender_mac: B.mac, ..request() }),
        spoofed("its own address, at an unknown MAC", Arp { sender_mac: OTHER_MAC, ..reply() }),
        spoofed("its own address, at the gateway's MAC", Arp { sender_mac: GATEWAY_MAC, ..reply() }),
        spoofed("a probe with the sibling's MAC", Arp { sender_mac: B.mac, ..probe(A.v4) }),
        spoofed("a reply without a sender address", Arp { operation: Arp::REPLY, ..probe(A.v4) }),
        Row::dropped(
            "a pod without IPv4 claims an address",
            ONLY_V6.ifindex,
            sends(ONLY_V6, &Arp::ask(ONLY_V6.mac, A.v4, GATEWAY_IPV4)),
            DropReason::SpoofedArp,
        ),
        Row::dropped(
            "a pod without IPv4 replies for 0.0.0.0",
            ONLY_V6.ifindex,
            sends(ONLY_V6, &Arp { operation: Arp::REPLY, ..Arp::ask(ONLY_V6.mac, [0; 4], GATEWAY_IPV4) }),
            DropReason::SpoofedArp,
        ),
    ];
    check(Program::FromPod, &claims.into_iter().flatten().chain(others).collect::<Vec<_>>()).unwrap();
}

#[test]
fn arp_other_than_ipv4_over_ethernet_is_dropped() {
    let odd = |about, arp: Arp| Row::dropped(about, A.ifindex, sends(A, &arp), DropReason::SpoofedArp);
    let rows = [
        odd("other hardware", Arp { hardware: 6, ..request() }),
        odd("hardware in the wrong byte order", Arp { hardware: 0x0100, ..request() }),
        odd("other protocol", Arp { protocol: packet::IPV6, ..request() }),
        odd("hardware address of 8 bytes", Arp { hardware_len: 8, ..request() }),
        odd("hardware address of no bytes", Arp { hardware_len: 0, ..request() }),
        odd("protocol address of 16 bytes", Arp { protocol_len: 16, ..request() }),
        odd("protocol address of no bytes", Arp { protocol_len: 0, ..request() }),
        odd("lengths swapped", Arp { hardware_len: 4, protocol_len: 6, ..request() }),
        odd("reverse ARP", Arp { operation: 3, ..request() }),
        odd("inverse ARP", Arp { operation: 8, ..request() }),
        odd("no operation", Arp { operation: 0, ..request() }),
    ];
    check(Program::FromPod, &rows).unwrap();
}
