//! Packets that a stranger on the segment makes up, of the tunnel and of pods.

use std::net::IpAddr;

use anyhow::{Context as _, bail};
use etherparse::PacketBuilder;

use crate::{
    capture::TUNNEL_PORT,
    fabric::{Member, underlay},
    packet::{IPV4, IPV6, Mac, frame},
    wire::Wire,
};

const STRANGER: Mac = underlay::mac(66);
/// Of frames in the tunnel, whose addresses mean nothing.
const INNER: Mac = [2, 0, 0, 0, 1, 0];

/// A datagram with correct checksums.
///
/// # Errors
/// If the addresses are of two families.
pub fn datagram(source: IpAddr, destination: IpAddr, port: u16, data: &[u8]) -> anyhow::Result<Vec<u8>> {
    let builder = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            PacketBuilder::ipv4(source.octets(), destination.octets(), 64)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            PacketBuilder::ipv6(source.octets(), destination.octets(), 64)
        }
        _ => bail!("{source} and {destination} are of two families"),
    };
    let mut packet = Vec::new();
    builder.udp(40_000, port).write(&mut packet, data)?;
    Ok(packet)
}

/// A packet in VXLAN (RFC 7348, 5).
pub fn vxlan(vni: u32, inner: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = vni.to_be_bytes();
    [&[8, 0, 0, 0, high, middle, low, 0], ethernet(INNER, INNER, inner).as_slice()].concat()
}

/// Sends a packet to a node.
///
/// # Errors
/// If the kernel refuses.
pub fn send(wire: &Wire, node: &Member, packet: &[u8]) -> anyhow::Result<()> {
    wire.send(&ethernet(node.mac(), STRANGER, packet))
}

/// Sends a packet in the tunnel to a node, from any address.
///
/// # Errors
/// If the kernel refuses.
pub fn send_tunnelled(
    wire: &Wire,
    outer: IpAddr,
    node: &Member,
    vni: u32,
    inner: &[u8],
) -> anyhow::Result<()> {
    let to = node.addresses.iter().find(|it| it.is_ipv4() == outer.is_ipv4()).context("no address")?;
    send(wire, node, &datagram(outer, *to, TUNNEL_PORT, &vxlan(vni, inner))?)
}

fn ethernet(to: Mac, from: Mac, packet: &[u8]) -> Vec<u8> {
    let is_ipv4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
    frame(to, from, if is_ipv4 { IPV4 } else { IPV6 }, packet)
}
