//! A model of `from_pod`, written for clarity instead of speed.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use agent_common::{DropReason, GATEWAY_IPV4, GATEWAY_IPV6, GATEWAY_MAC, VifEntry};
use ferrule_tests::packet::checksum;

use crate::table::{PODS, Pod};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Dropped(DropReason),
    Stack,
    Delivered { to: u32, packet: Vec<u8> },
    Answered { packet: Vec<u8> },
}

/// A flow: protocol, and both ends in order. The ports of an echo are its identifier.
pub type Flow = (u8, [(IpAddr, u16); 2]);

/// Reads a frame front to back.
struct Reader<'a>(&'a [u8]);

type Judged<T> = Result<T, DropReason>;

/// The outcome for a frame without GSO, with entries in `STACK_FLOWS`.
pub fn from_pod(from: Option<Pod>, frame: &[u8], flows: &HashSet<Flow>) -> Outcome {
    match judge(from, frame) {
        Ok(Outcome::Delivered { .. }) if belongs_to_stack(frame, flows) => Outcome::Stack,
        judged => judged.unwrap_or_else(Outcome::Dropped),
    }
}

/// The flow that `to_pod` records for a frame, if any.
pub fn recorded(frame: &[u8]) -> Option<Flow> {
    let packet = Packet::read(frame.get(14..)?, frame.get(12) == Some(&0x86))?;
    // A mapped IPv6 source matches the IPv4 endpoint in the map; harmless, since no pod can send from it.
    let local = endpoints().contains_key(&packet.ends[0].to_canonical());
    packet.flow().filter(|_| local)
}

/// For a packet that would be delivered otherwise, which has no options and is no fragment.
fn belongs_to_stack(frame: &[u8], flows: &HashSet<Flow>) -> bool {
    let six = frame.get(12) == Some(&0x86);
    let Some(packet) = Packet::read(frame.get(14..).unwrap_or_default(), six) else { return false };
    let flow = match (packet.protocol, packet.payload.split_at_checked(8)) {
        (1, Some(([3 | 4 | 5 | 11 | 12, ..], quote))) => {
            Packet::read(quote, false).and_then(|it| it.plain_flow())
        }
        (58, Some(([..128, ..], quote))) => Packet::read(quote, true).and_then(|it| it.plain_flow()),
        _ => packet.flow(),
    };
    flow.is_some_and(|flow| flows.contains(&flow))
}

fn judge(from: Option<Pod>, frame: &[u8]) -> Judged<Outcome> {
    let pod = from.ok_or(DropReason::NoVif)?;
    let mut reader = Reader(frame);
    let (to, source) = (reader.take::<6>()?, reader.take::<6>()?);
    refuse(source != pod.mac, DropReason::SpoofedMac)?;
    match reader.number()? {
        0x8100 | 0x88a8 => Err(DropReason::Vlan),
        0x0806 => arp(pod, frame, reader),
        0x0800 => ipv4(pod, to, frame, reader),
        0x86dd => ipv6(pod, to, frame, reader),
        _ => Err(DropReason::Ethertype),
    }
}

fn arp(pod: Pod, frame: &[u8], mut reader: Reader<'_>) -> Judged<Outcome> {
    let fixed: [u8; 6] = reader.take()?;
    let operation = reader.number()?;
    let (mac, sender) = (reader.take::<6>()?, Ipv4Addr::from(reader.take::<4>()?));
    reader.take::<6>()?;
    let target = reader.take::<4>()?;
    let claims_own = addresses(pod).contains(&sender.into());
    let allowed = match operation {
        1 => claims_own || sender.is_unspecified(),
        2 => claims_own,
        _ => false,
    };
    refuse(fixed != [0, 1, 8, 0, 6, 4] || mac != pod.mac || !allowed, DropReason::SpoofedArp)?;
    if operation != 1 || !claims_own || target != GATEWAY_IPV4 {
        return Ok(Outcome::Stack);
    }
    let mut packet = rewritten(frame, pod);
    set(&mut packet, 20, &[&[0, 2], &GATEWAY_MAC[..], &GATEWAY_IPV4, &mac, &sender.octets()].concat());
    Ok(Outcome::Answered { packet })
}

fn ipv4(pod: Pod, to: [u8; 6], frame: &[u8], mut reader: Reader<'_>) -> Judged<Outcome> {
    let available = reader.0.len();
    let [version_ihl, _]: [u8; 2] = reader.take()?;
    let total = usize::from(reader.number()?);
    let [_, fragment] = [reader.number()?, reader.number()?];
    let [ttl, _]: [u8; 2] = reader.take()?;
    reader.take::<2>()?;
    let (source, destination) = (Ipv4Addr::from(reader.take::<4>()?), Ipv4Addr::from(reader.take::<4>()?));

    let header = usize::from(version_ihl % 16) * 4;
    let right = version_ihl / 16 == 4 && header >= 20 && header <= total && total <= available;
    refuse(!right, DropReason::Malformed)?;
    refuse(!addresses(pod).contains(&source.into()), DropReason::SpoofedIpv4)?;
    let [first, ..] = destination.octets();
    refuse(first == 0 || destination.is_loopback(), DropReason::Martian)?;
    refuse(first >= 224, DropReason::Multicast)?;
    to_gateway(to)?;
    let endpoints = endpoints();
    // Neither "more fragments" nor an offset.
    let whole = fragment % 0x4000 == 0;
    let Some(endpoint) = endpoints.get(&destination.into()).filter(|_| header == 20 && ttl > 1 && whole)
    else {
        return Ok(Outcome::Stack);
    };
    let sum = |frame: &[u8]| checksum(&[frame.get(14..34).unwrap_or_default()]);
    refuse(sum(frame) != 0, DropReason::Malformed)?;
    let mut packet = rewritten(frame, *endpoint);
    set(&mut packet, 22, &[ttl - 1]);
    set(&mut packet, 24, &[0, 0]);
    let sum = sum(&packet);
    set(&mut packet, 24, &sum.to_be_bytes());
    Ok(Outcome::Delivered { to: endpoint.ifindex, packet })
}

fn ipv6(pod: Pod, to: [u8; 6], frame: &[u8], mut reader: Reader<'_>) -> Judged<Outcome> {
    let [version_class, ..]: [u8; 4] = reader.take()?;
    let len = usize::from(reader.number()?);
    let [next_header, hop_limit]: [u8; 2] = reader.take()?;
    let (source, destination) = (Ipv6Addr::from(reader.take::<16>()?), Ipv6Addr::from(reader.take::<16>()?));
    refuse(version_class / 16 != 6 || len > reader.0.len(), DropReason::Malformed)?;

    if next_header == 58 {
        let [kind, _] = Reader(reader.0).take()?;
        if (133..=137).contains(&kind) {
            return neighbour(pod, kind, source, hop_limit, len, frame, reader);
        }
    }
    refuse(destination.is_multicast(), DropReason::Multicast)?;
    if !addresses(pod).contains(&source.into()) {
        let on_link = source == Ipv6Addr::from(pod.link_local()) && destination.is_unicast_link_local();
        refuse(!on_link, DropReason::SpoofedIpv6)?;
        refuse(![6, 17, 58].contains(&next_header), DropReason::SpoofedNd)?;
    }
    // Includes `::` and `::1`.
    let embeds_ipv4 = [0, 0xffff].contains(&(destination.to_bits() >> 32));
    refuse(embeds_ipv4, DropReason::Martian)?;
    to_gateway(to)?;
    let endpoints = endpoints();
    let plain = ![0, 43, 44, 60].contains(&next_header);
    let Some(endpoint) = endpoints.get(&destination.into()).filter(|_| hop_limit > 1 && plain) else {
        return Ok(Outcome::Stack);
    };
    let mut packet = rewritten(frame, *endpoint);
    set(&mut packet, 21, &[hop_limit - 1]);
    Ok(Outcome::Delivered { to: endpoint.ifindex, packet })
}

fn neighbour(
    pod: Pod,
    kind: u8,
    source: Ipv6Addr,
    hop_limit: u8,
    len: usize,
    frame: &[u8],
    mut reader: Reader<'_>,
) -> Judged<Outcome> {
    let own = |address: Ipv6Addr| {
        addresses(pod).contains(&address.into()) || address == Ipv6Addr::from(pod.link_local())
    };
    refuse(kind == 133 && own(source), DropReason::Multicast)?;
    refuse(kind != 135 && kind != 136, DropReason::SpoofedNd)?;
    reader.take::<8>()?;
    let target = Ipv6Addr::from(reader.take::<16>()?);
    let allowed =
        if kind == 135 { own(source) || source.is_unspecified() } else { own(source) && own(target) };
    refuse(!allowed || hop_limit != 255, DropReason::SpoofedNd)?;
    // Padding behind the packet's end is ignored.
    let mut left = len.saturating_sub(24);
    let mut options = 0;
    while left > 0 {
        options += 1;
        refuse(options > 4, DropReason::SpoofedNd)?;
        let [kind, units, mac @ ..]: [u8; 8] = reader.take()?;
        refuse(units == 0, DropReason::Malformed)?;
        refuse((kind == 1 || kind == 2) && mac != pod.mac, DropReason::SpoofedNd)?;
        let whole = usize::from(units) * 8;
        left = left.saturating_sub(whole);
        reader.skip(whole - 8);
    }
    if kind != 135 || !own(source) || target.octets() != GATEWAY_IPV6 {
        return Ok(Outcome::Stack);
    }
    let mut message = [&[136, 0, 0, 0, 0xe0, 0, 0, 0], &GATEWAY_IPV6[..]].concat();
    if len >= 32 {
        message.extend([&[2, 1], &GATEWAY_MAC[..]].concat());
    }
    let len = (message.len() as u16).to_be_bytes();
    let sum = checksum(&[&GATEWAY_IPV6, &source.octets(), &len, &[0, 58], &message]);
    set(&mut message, 2, &sum.to_be_bytes());
    let mut packet = rewritten(frame, pod);
    set(&mut packet, 18, &len);
    set(&mut packet, 22, &[&GATEWAY_IPV6[..], &source.octets(), &message].concat());
    Ok(Outcome::Answered { packet })
}

fn refuse(wrong: bool, reason: DropReason) -> Judged<()> {
    if wrong { Err(reason) } else { Ok(()) }
}

fn to_gateway(to: [u8; 6]) -> Judged<()> {
    let [first, ..] = to;
    refuse(first % 2 == 1, DropReason::Multicast)?;
    refuse(to != GATEWAY_MAC, DropReason::NotToGateway)
}

fn addresses(pod: Pod) -> Vec<IpAddr> {
    let v4 = (pod.has & VifEntry::HAS_IPV4 != 0).then(|| IpAddr::from(pod.v4));
    let v6 = (pod.has & VifEntry::HAS_IPV6 != 0).then(|| IpAddr::from(pod.v6));
    v4.into_iter().chain(v6).collect()
}

fn endpoints() -> HashMap<IpAddr, Pod> {
    PODS.into_iter().flat_map(|pod| addresses(pod).into_iter().map(move |address| (address, pod))).collect()
}

fn rewritten(frame: &[u8], to: Pod) -> Vec<u8> {
    let mut packet = frame.to_vec();
    set(&mut packet, 0, &to.mac);
    set(&mut packet, 6, &GATEWAY_MAC);
    packet
}

fn set(packet: &mut [u8], at: usize, bytes: &[u8]) {
    packet.iter_mut().skip(at).zip(bytes).for_each(|(slot, byte)| *slot = *byte);
}

/// The fields of a packet that identify its flow.
struct Packet<'a> {
    ends: [IpAddr; 2],
    protocol: u8,
    /// Behind the fragment header, if there is one.
    payload: &'a [u8],
    fragment_of_ipv6: bool,
}

// === impl Packet ===

impl<'a> Packet<'a> {
    /// `None` if the header is incomplete, or if the packet is a later fragment.
    fn read(bytes: &'a [u8], six: bool) -> Option<Self> {
        let mut reader = Reader(bytes);
        if six {
            let fixed: [u8; 8] = reader.take().ok()?;
            let ends = [reader.take::<16>().ok()?.into(), reader.take::<16>().ok()?.into()];
            if fixed[6] != 44 {
                return Some(Self { ends, protocol: fixed[6], payload: reader.0, fragment_of_ipv6: false });
            }
            let [protocol, _, high, low, ..]: [u8; 8] = reader.take().ok()?;
            let offset = u16::from_be_bytes([high, low]) / 8;
            return (offset == 0).then_some(Self {
                ends,
                protocol,
                payload: reader.0,
                fragment_of_ipv6: true,
            });
        }
        let fixed: [u8; 12] = reader.take().ok()?;
        let ends = [reader.take::<4>().ok()?.into(), reader.take::<4>().ok()?.into()];
        let payload = bytes.get(usize::from(fixed[0] % 16) * 4..)?;
        let offset = u16::from_be_bytes([fixed[6], fixed[7]]) % 0x2000;
        (offset == 0).then_some(Self { ends, protocol: fixed[9], payload, fragment_of_ipv6: false })
    }

    fn flow(&self) -> Option<Flow> {
        let [a, b, c, d, e, f, _, _] = *self.payload.first_chunk::<8>()?;
        let [from, to] = match self.protocol {
            6 | 17 | 132 => [[a, b], [c, d]],
            1 if a == 0 || a == 8 => [[e, f]; 2],
            58 if a == 128 || a == 129 => [[e, f]; 2],
            _ => return None,
        };
        let [source, destination] = self.ends;
        let mut ends = [(source, u16::from_be_bytes(from)), (destination, u16::from_be_bytes(to))];
        ends.sort_unstable();
        Some((self.protocol, ends))
    }

    /// The flow of a quoted packet, which is not parsed behind a fragment header.
    fn plain_flow(&self) -> Option<Flow> {
        self.flow().filter(|_| !self.fragment_of_ipv6)
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Judged<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(DropReason::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Judged<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn skip(&mut self, len: usize) {
        self.0 = self.0.get(len..).unwrap_or_default();
    }
}
