//! Checks rewritten packets with `etherparse`, which shares no code and no number with the programs.

use anyhow::{Context as _, bail, ensure};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, ArpPacket, EtherType, Ethernet2Header, Icmpv6Slice, Icmpv6Type,
    Ipv4Header, Ipv6Header,
    icmpv6::{Icmpv6PayloadSlice, NeighborAdvertisementHeader},
};
use ferrule_tests::packet::{TARGET_MAC, checksum, mac_option};

use crate::table::Pod;

/// Of every pod: `ferrul` in ASCII, and `fe80::1`.
pub const GATEWAY_MAC: [u8; 6] = [0x66, 0x65, 0x72, 0x72, 0x75, 0x6c];
pub const GATEWAY_IPV6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// A pod receives `out`, which a router would make of `packet`: from the gateway's MAC, with a hop less, with
/// a correct IPv4 checksum, and otherwise unchanged.
pub fn check_delivered(packet: &[u8], out: &[u8], to: Pod) -> anyhow::Result<()> {
    let (before, packet) = Ethernet2Header::from_slice(packet)?;
    let (after, out) = Ethernet2Header::from_slice(out)?;
    ensure!(after == Ethernet2Header { source: GATEWAY_MAC, destination: to.mac, ..before });
    match after.ether_type {
        EtherType::IPV4 => {
            let (before, payload) = Ipv4Header::from_slice(packet)?;
            let (after, out_payload) = Ipv4Header::from_slice(out)?;
            let (time_to_live, header_checksum) = (before.time_to_live - 1, after.header_checksum);
            ensure!(after == Ipv4Header { time_to_live, header_checksum, ..before });
            ensure!(after.destination == to.v4 && payload == out_payload);
            // Over the bytes: etherparse's header has no place for the reserved flag.
            ensure!(checksum(&[out.get(..after.header_len()).unwrap_or_default()]) == 0, "wrong checksum");
        }
        EtherType::IPV6 => {
            let (before, payload) = Ipv6Header::from_slice(packet)?;
            let (after, out_payload) = Ipv6Header::from_slice(out)?;
            ensure!(after == Ipv6Header { hop_limit: before.hop_limit - 1, ..before });
            ensure!(after.destination == to.v6 && payload == out_payload);
        }
        other => bail!("delivered Ethertype {other:?}"),
    }
    Ok(())
}

/// A pod receives `out`, the gateway's answer to `packet`.
pub fn check_answered(packet: &[u8], out: &[u8], to: Pod) -> anyhow::Result<()> {
    let (_, packet) = Ethernet2Header::from_slice(packet)?;
    let (ethernet, out) = Ethernet2Header::from_slice(out)?;
    ensure!((ethernet.source, ethernet.destination) == (GATEWAY_MAC, to.mac));
    match ethernet.ether_type {
        EtherType::ARP => {
            let request = ArpPacket::from_slice(packet)?.try_eth_ipv4()?;
            let expected = ArpEthIpv4Packet {
                operation: ArpOperation::REPLY,
                sender_mac: GATEWAY_MAC,
                sender_ipv4: request.target_ipv4,
                target_mac: request.sender_mac,
                target_ipv4: request.sender_ipv4,
            };
            ensure!(ArpPacket::from_slice(out)?.try_eth_ipv4()? == expected);
        }
        EtherType::IPV6 => {
            let (request, solicitation) = Ipv6Header::from_slice(packet)?;
            let (ip, rest) = Ipv6Header::from_slice(out)?;
            let message = rest.get(..usize::from(ip.payload_length)).context("longer than the frame")?;
            ensure!(ip.source == GATEWAY_IPV6 && ip.destination == request.source && ip.hop_limit == 255);
            let icmp = Icmpv6Slice::from_slice(message)?;
            ensure!(icmp.is_checksum_valid(ip.source, ip.destination), "wrong checksum");
            let flags = NeighborAdvertisementHeader { router: true, solicited: true, r#override: true };
            ensure!(icmp.icmp_type() == Icmpv6Type::NeighborAdvertisement(flags));
            let Icmpv6PayloadSlice::NeighborAdvertisement(advertisement) = icmp.payload_slice()? else {
                bail!("not a neighbour advertisement");
            };
            // Behind type, code, checksum and four reserved bytes (RFC 4861, 4.3).
            ensure!(Some(&advertisement.target_address().octets()[..]) == solicitation.get(8..24));
            ensure!(
                [vec![], mac_option(TARGET_MAC, GATEWAY_MAC)].iter().any(|it| it == advertisement.options())
            );
        }
        other => bail!("answered Ethertype {other:?}"),
    }
    Ok(())
}
