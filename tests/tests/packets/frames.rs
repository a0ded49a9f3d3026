//! Ethernet frames from a pod: source MAC, Ethertype, VLAN tags, destination MAC.

use agent_common::{DropReason, GATEWAY_MAC};
use ferrule_tests::{
    packet::{self, Arp, BROADCAST, IPV4, IPV6, Ipv4, Ipv6, QINQ, UDP, VLAN, cut, frame, tagged, udp},
    program::Program,
};

use crate::table::{A, B, FAR_V4, FAR_V6, OTHER_MAC, Row, STRANGER, UNKNOWN, check};

fn own_v4() -> Vec<u8> {
    Ipv4::new(A.v4, FAR_V4, UDP).with(&udp(1, 2, b"own"))
}

fn own_v6() -> Vec<u8> {
    Ipv6::new(A.v6, FAR_V6, UDP).with(&udp(1, 2, b"own"))
}

fn own_arp() -> Vec<u8> {
    Arp::ask(A.mac, A.v4, B.v4).bytes()
}

#[test]
fn interface_without_entry_passes_nothing() {
    let unknown =
        |about, packet| Row::dropped(about, STRANGER, packet, DropReason::NoVif).counted_for(UNKNOWN);
    let rows = [
        unknown("IPv4 that a pod could send", A.sends_v4(&own_v4())),
        unknown("IPv6 likewise", A.sends_v6(&own_v6())),
        unknown("ARP likewise", A.sends(packet::ARP, &own_arp())),
        unknown("a frame of zeros", vec![0; 60]),
        unknown("the shortest frame", vec![0; 14]),
    ];
    check(Program::FromPod, &rows).unwrap();
    check(Program::ToPod, &rows).unwrap();
}

#[test]
fn frames_with_another_source_mac_are_dropped() {
    let spoofed = |about, packet| Row::dropped(about, A.ifindex, packet, DropReason::SpoofedMac);
    let rows = [
        spoofed("IPv4 from an unknown MAC", frame(GATEWAY_MAC, OTHER_MAC, IPV4, &own_v4())),
        spoofed("IPv4 from the sibling's MAC", frame(GATEWAY_MAC, B.mac, IPV4, &own_v4())),
        spoofed("IPv4 from the gateway's MAC", frame(GATEWAY_MAC, GATEWAY_MAC, IPV4, &own_v4())),
        spoofed("IPv4 from the broadcast MAC", frame(GATEWAY_MAC, BROADCAST, IPV4, &own_v4())),
        spoofed("IPv4 from no MAC", frame(GATEWAY_MAC, [0; 6], IPV4, &own_v4())),
        spoofed("IPv6 from the sibling's MAC", frame(GATEWAY_MAC, B.mac, IPV6, &own_v6())),
        spoofed("ARP from the sibling's MAC", frame(BROADCAST, B.mac, packet::ARP, &own_arp())),
        spoofed(
            "MAC and IPv4 both the sibling's",
            B.sends_v4(&Ipv4::new(B.v4, FAR_V4, UDP).with(&udp(1, 2, b""))),
        ),
        spoofed(
            "MAC and IPv6 both the sibling's",
            B.sends_v6(&Ipv6::new(B.v6, FAR_V6, UDP).with(&udp(1, 2, b""))),
        ),
        spoofed("sibling's MAC, tagged", tagged(&B.sends_v4(&own_v4()), &[(VLAN, 5)])),
    ];
    // Every single bit counts.
    let bits = (0..48).map(|bit| {
        let mut mac = A.mac;
        if let Some(byte) = mac.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        spoofed("MAC with one wrong bit", frame(GATEWAY_MAC, mac, IPV4, &own_v4()))
    });
    check(Program::FromPod, &rows.into_iter().chain(bits).collect::<Vec<_>>()).unwrap();
}

#[test]
fn vlan_tags_and_other_ethertypes_are_dropped() {
    let dropped = |about, packet, reason| Row::dropped(about, A.ifindex, packet, reason);
    let other = |about, ethertype| dropped(about, A.sends(ethertype, &own_v4()), DropReason::Ethertype);
    let rows = [
        dropped("VLAN around IPv4", tagged(&A.sends_v4(&own_v4()), &[(VLAN, 5)]), DropReason::Vlan),
        dropped("VLAN around IPv6", tagged(&A.sends_v6(&own_v6()), &[(VLAN, 5)]), DropReason::Vlan),
        dropped(
            "VLAN 0, which is a priority only",
            tagged(&A.sends_v4(&own_v4()), &[(VLAN, 0x6000)]),
            DropReason::Vlan,
        ),
        dropped("802.1ad", tagged(&A.sends_v4(&own_v4()), &[(QINQ, 5)]), DropReason::Vlan),
        dropped("QinQ", tagged(&A.sends_v4(&own_v4()), &[(QINQ, 5), (VLAN, 6)]), DropReason::Vlan),
        dropped(
            "VLAN in VLAN, IPv6",
            tagged(&A.sends_v6(&own_v6()), &[(VLAN, 5), (VLAN, 6)]),
            DropReason::Vlan,
        ),
        dropped("VLAN around ARP", tagged(&A.sends(packet::ARP, &own_arp()), &[(VLAN, 5)]), DropReason::Vlan),
        dropped(
            "VLAN around a sibling's IPv4",
            tagged(&A.sends_v4(&Ipv4::new(B.v4, FAR_V4, UDP).with(&udp(1, 2, b""))), &[(VLAN, 5)]),
            DropReason::Vlan,
        ),
        dropped("a tag and nothing after", A.sends(VLAN, &[]), DropReason::Vlan),
        // 802.3: a length instead of an Ethertype; then LLC, here with SNAP and IPv4.
        dropped(
            "LLC",
            A.sends(0x0026, &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], own_v4().as_slice()].concat()),
            DropReason::Ethertype,
        ),
        dropped(
            "LLC, spanning tree",
            frame([1, 0x80, 0xc2, 0, 0, 0], A.mac, 0x0026, &[0x42; 38]),
            DropReason::Ethertype,
        ),
        dropped("LLDP without payload, the shortest frame", A.sends(0x88cc, &[]), DropReason::Ethertype),
        other("the old QinQ type", 0x9100),
        other("RARP", 0x8035),
        other("MPLS", 0x8847),
        other("PPPoE", 0x8864),
        other("LLDP", 0x88cc),
        other("PROFINET", 0x8892),
        other("MACsec", 0x88e5),
        other("IPX", 0x8137),
        other("type 0", 0),
        other("type ffff", 0xffff),
        other("IPv4's type, bytes swapped", 0x0008),
    ];
    check(Program::FromPod, &rows).unwrap();
}

#[test]
fn ip_packets_not_addressed_to_the_gateway_are_dropped() {
    let to = |about, mac, reason| {
        [
            Row::dropped(about, A.ifindex, frame(mac, A.mac, IPV4, &own_v4()), reason),
            Row::dropped(about, A.ifindex, frame(mac, A.mac, IPV6, &own_v6()), reason),
        ]
    };
    let rows = [
        to("to an unknown MAC", OTHER_MAC, DropReason::NotToGateway),
        to("to the sibling's MAC", B.mac, DropReason::NotToGateway),
        to("to its own MAC", A.mac, DropReason::NotToGateway),
        to("to the zero MAC", [0; 6], DropReason::NotToGateway),
        to("to the broadcast MAC", BROADCAST, DropReason::Multicast),
        to("to a multicast MAC", [1, 0, 0x5e, 0, 0, 1], DropReason::Multicast),
        to(
            "to the gateway's MAC with the multicast bit",
            [b'f' | 1, b'e', b'r', b'r', b'u', b'l'],
            DropReason::Multicast,
        ),
    ];
    check(Program::FromPod, &rows.into_iter().flatten().collect::<Vec<_>>()).unwrap();
}

#[test]
fn truncated_arp_is_malformed() {
    let whole = A.sends(packet::ARP, &own_arp());
    let cut_off = (14..whole.len())
        .map(|len| Row::dropped("cut off", A.ifindex, cut(&whole, len), DropReason::Malformed));
    check(Program::FromPod, &cut_off.collect::<Vec<_>>()).unwrap();
}
