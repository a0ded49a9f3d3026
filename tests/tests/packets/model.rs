//! A model of `from_pod`, written for clarity instead of speed.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use agent_common::DropReason;
use ferrule_tests::packet::checksum;

use crate::{
    oracle::{GATEWAY_IPV6, GATEWAY_MAC},
    table::{NEW, PODS, Pod},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// For one of these reasons.
    Dropped(HashSet<DropReason>),
    Stack,
    Delivered {
        to: u32,
        packet: Vec<u8>,
    },
    Answered {
        packet: Vec<u8>,
    },
}

/// A flow: protocol, and both ends in order. The ports of an echo are its identifier.
pub type Flow = (u8, [(IpAddr, u16); 2]);

/// Reads a frame front to back.
struct Reader<'a>(&'a [u8]);

/// All that is wrong with a frame.
#[derive(Default)]
struct Faults(HashSet<DropReason>);

/// The outcome for a frame without GSO, with entries in `STACK_FLOWS`. The order of checks is the program's
/// own business: a frame with several faults may be dropped for any of them.
pub fn from_pod(from: Option<Pod>, frame: &[u8], flows: &HashSet<Flow>) -> Outcome {
    let Some(pod) = from else { return Outcome::Dropped(HashSet::from([DropReason::NoVif])) };
    if pod.ifindex == NEW.ifindex {
        return Outcome::Dropped(HashSet::from([DropReason::PolicyUnknown]));
    }
    let mut faults = Faults::default();
    let otherwise = judge(pod, frame, &mut faults).unwrap_or(Outcome::Stack);
    match otherwise {
        _ if !faults.0.is_empty() => Outcome::Dropped(faults.0),
        Outcome::Delivered { .. } if belongs_to_stack(frame, flows) => Outcome::Stack,
        Outcome::Delivered { to, .. } if to == NEW.ifindex => {
            Outcome::Dropped(HashSet::from([DropReason::PolicyUnknown]))
        }
        otherwise => otherwise,
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
        (1, Some(([3 | 4 | 5 | 11 | 12, ..], quote))) if !six => {
            Packet::read(quote, false).and_then(|it| it.plain_flow())
        }
        (58, Some(([..128, ..], quote))) if six => Packet::read(quote, true).and_then(|it| it.plain_flow()),
        _ => packet.flow(),
    };
    // A SYN from a port that the host gives to translated flows.
    if let (6, Some([high, low, .., flags])) = (packet.protocol, packet.payload.first_chunk::<14>())
        && (1024..32768).contains(&u16::from_be_bytes([*high, *low]))
        && flags & 0x12 == 2
    {
        return true;
    }
    flow.is_some_and(|flow| flows.contains(&flow))
}

/// `None` if the frame ends too early to judge the rest.
fn judge(pod: Pod, frame: &[u8], faults: &mut Faults) -> Option<Outcome> {
    let mut reader = Reader(frame);
    let (to, source) = (reader.take::<6>(faults)?, reader.take::<6>(faults)?);
    faults.add(source != pod.mac, DropReason::SpoofedMac);
    match reader.number(faults)? {
        0x8100 | 0x88a8 => faults.fatal(DropReason::Vlan),
        0x0806 => arp(pod, frame, reader, faults),
        0x0800 => ipv4(pod, to, frame, reader, faults),
        0x86dd => ipv6(pod, to, frame, reader, faults),
        _ => faults.fatal(DropReason::Ethertype),
    }
}

fn arp(pod: Pod, frame: &[u8], mut reader: Reader<'_>, faults: &mut Faults) -> Option<Outcome> {
    let fixed: [u8; 6] = reader.take(faults)?;
    let operation = reader.number(faults)?;
    let (mac, sender) = (reader.take::<6>(faults)?, Ipv4Addr::from(reader.take::<4>(faults)?));
    reader.take::<6>(faults)?;
    let target = reader.take::<4>(faults)?;
    let claims_own = addresses(pod).contains(&sender.into());
    let allowed = match operation {
        1 => claims_own || sender.is_unspecified(),
        2 => claims_own,
        _ => false,
    };
    faults.add(fixed != [0, 1, 8, 0, 6, 4] || mac != pod.mac || !allowed, DropReason::SpoofedArp);
    if operation != 1 || !claims_own || target == sender.octets() {
        return Some(Outcome::Stack);
    }
    let mut packet = rewritten(frame, pod);
    set(&mut packet, 20, &[&[0, 2], &GATEWAY_MAC[..], &target, &mac, &sender.octets()].concat());
    Some(Outcome::Answered { packet })
}

fn ipv4(pod: Pod, to: [u8; 6], frame: &[u8], mut reader: Reader<'_>, faults: &mut Faults) -> Option<Outcome> {
    let (whole, available) = (reader.0, reader.0.len());
    let [version_ihl, _]: [u8; 2] = reader.take(faults)?;
    let total = usize::from(reader.number(faults)?);
    let [_, fragment] = [reader.number(faults)?, reader.number(faults)?];
    let [ttl, protocol]: [u8; 2] = reader.take(faults)?;
    reader.take::<2>(faults)?;
    let source = Ipv4Addr::from(reader.take::<4>(faults)?);
    let destination = Ipv4Addr::from(reader.take::<4>(faults)?);

    let header = usize::from(version_ihl % 16) * 4;
    let right = version_ihl / 16 == 4 && header >= 20 && header <= total && total <= available;
    faults.add(!right, DropReason::Malformed);
    faults.add(!addresses(pod).contains(&source.into()), DropReason::SpoofedIpv4);
    let [first, ..] = destination.octets();
    faults.add(first == 0 || destination.is_loopback(), DropReason::Martian);
    faults.add(first >= 224, DropReason::Multicast);
    to_gateway(to, faults);
    // Neither "more fragments" nor an offset.
    let is_fragment = fragment % 0x4000 != 0;
    let transport = whole.get(header..).filter(|_| fragment % 0x2000 == 0).unwrap_or_default();
    let endpoint = endpoints().get(&destination.into()).copied();
    payload(
        &Payload { ends: [source.into(), destination.into()], protocol, transport, is_fragment },
        endpoint.is_some(),
        faults,
    );
    let Some(endpoint) = endpoint.filter(|_| header == 20 && ttl > 1 && !is_fragment) else {
        return Some(Outcome::Stack);
    };
    let sum = |frame: &[u8]| checksum(&[frame.get(14..34).unwrap_or_default()]);
    faults.add(sum(frame) != 0, DropReason::Malformed);
    let mut packet = rewritten(frame, endpoint);
    set(&mut packet, 22, &[ttl.wrapping_sub(1)]);
    set(&mut packet, 24, &[0, 0]);
    let sum = sum(&packet);
    set(&mut packet, 24, &sum.to_be_bytes());
    Some(Outcome::Delivered { to: endpoint.ifindex, packet })
}

fn ipv6(pod: Pod, to: [u8; 6], frame: &[u8], mut reader: Reader<'_>, faults: &mut Faults) -> Option<Outcome> {
    let [version_class, ..]: [u8; 4] = reader.take(faults)?;
    let len = usize::from(reader.number(faults)?);
    let [next_header, hop_limit]: [u8; 2] = reader.take(faults)?;
    let source = Ipv6Addr::from(reader.take::<16>(faults)?);
    let destination = Ipv6Addr::from(reader.take::<16>(faults)?);
    faults.add(version_class / 16 != 6 || len > reader.0.len(), DropReason::Malformed);
    // Packets of the test are no GSO.
    faults.add([0, 43, 44, 60].contains(&next_header) && len < reader.0.len(), DropReason::Malformed);
    faults.add(embeds_ipv4(destination), DropReason::Martian);

    if next_header == 58 {
        let [kind, _] = Reader(reader.0).take(faults)?;
        if (133..=137).contains(&kind) {
            // Its destination may be multicast, but not off the link.
            let is_on_link = destination.is_unicast_link_local() || destination.segments()[0] == 0xff02;
            faults.add(kind != 133 && !is_on_link, DropReason::SpoofedNd);
            return neighbour(pod, kind, source, hop_limit, len, frame, reader, faults);
        }
    }
    faults.add(destination.is_multicast(), DropReason::Multicast);
    if !addresses(pod).contains(&source.into()) {
        let on_link = source == Ipv6Addr::from(pod.link_local()) && destination.is_unicast_link_local();
        faults.add(!on_link, DropReason::SpoofedIpv6);
        faults.add(on_link && ![6, 17, 58].contains(&next_header), DropReason::SpoofedNd);
    }
    to_gateway(to, faults);
    let behind = Behind::skip(next_header, reader.0);
    faults.add(!behind.is_known, DropReason::Malformed);
    let endpoint = endpoints().get(&destination.into()).copied();
    payload(
        &Payload {
            ends: [source.into(), destination.into()],
            protocol: behind.protocol,
            transport: behind.transport,
            is_fragment: behind.is_fragment,
        },
        endpoint.is_some(),
        faults,
    );
    let Some(endpoint) = endpoint.filter(|_| hop_limit > 1 && !behind.is_fragment) else {
        return Some(Outcome::Stack);
    };
    let mut packet = rewritten(frame, endpoint);
    set(&mut packet, 21, &[hop_limit.wrapping_sub(1)]);
    Some(Outcome::Delivered { to: endpoint.ifindex, packet })
}

/// `::/96` and `::ffff:0:0/96`, among them `::` and `::1`.
fn embeds_ipv4(address: Ipv6Addr) -> bool {
    [0, 0xffff].contains(&(address.to_bits() >> 32))
}

/// What a packet carries, of either family.
struct Payload<'a> {
    ends: [IpAddr; 2],
    protocol: u8,
    /// Empty in a later fragment.
    transport: &'a [u8],
    is_fragment: bool,
}

/// The test's node has no routes: all that does not go to a pod ends at the node.
fn payload(packet: &Payload<'_>, is_local: bool, faults: &mut Faults) {
    let Payload { ends: [source, destination], protocol, transport, is_fragment } = *packet;
    let six = source.is_ipv6();
    if let Some([a, _, c, d, ..]) = transport.first_chunk::<8>() {
        let port = u16::from_be_bytes([*c, *d]);
        let client = if six { 546 } else { 68 };
        faults.add(protocol == 17 && port == client, DropReason::DhcpServer);
        faults.add(protocol == 17 && !is_local && [4789, 8472].contains(&port), DropReason::Tunnel);
        let is_error =
            if six { protocol == 58 && *a < 128 } else { protocol == 1 && [3, 4, 5, 11, 12].contains(a) };
        let quoted = quoted_ends(transport.get(8..).unwrap_or_default(), six);
        let is_genuine = !is_fragment && quoted == Some([destination, source]);
        faults.add(is_local && is_error && !is_genuine, DropReason::ForgedIcmp);
    }
    faults.add(!is_local && [4, 41, 47].contains(&protocol), DropReason::Tunnel);
}

fn quoted_ends(quote: &[u8], six: bool) -> Option<[IpAddr; 2]> {
    if six {
        let (source, destination) = quote.get(8..40)?.split_at(16);
        let address = |bytes: &[u8]| Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?));
        return Some([address(source)?, address(destination)?]);
    }
    let (source, destination) = quote.get(12..20)?.split_at(4);
    let address = |bytes: &[u8]| Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?));
    Some([address(source)?, address(destination)?])
}

/// What is behind the extension headers.
struct Behind<'a> {
    protocol: u8,
    transport: &'a [u8],
    is_fragment: bool,
    /// Whether the transport header was found.
    is_known: bool,
}

// === impl Behind ===

impl<'a> Behind<'a> {
    fn skip(mut protocol: u8, mut rest: &'a [u8]) -> Self {
        let (mut is_fragment, mut headers) = (false, 0);
        while [0, 43, 44, 60].contains(&protocol) {
            headers += 1;
            let Some([next, len, high, low, ..]) = rest.first_chunk::<8>().filter(|_| headers <= 4) else {
                return Self { protocol, transport: rest, is_fragment, is_known: false };
            };
            let whole = if protocol == 44 { 8 } else { (usize::from(*len) + 1) * 8 };
            let is_later = protocol == 44 && u16::from_be_bytes([*high, *low]) >= 8;
            is_fragment |= protocol == 44;
            protocol = *next;
            rest = rest.get(whole..).unwrap_or_default();
            if is_later {
                return Self { protocol, transport: &[], is_fragment, is_known: true };
            }
        }
        Self { protocol, transport: rest, is_fragment, is_known: true }
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of one message")]
fn neighbour(
    pod: Pod,
    kind: u8,
    source: Ipv6Addr,
    hop_limit: u8,
    len: usize,
    frame: &[u8],
    mut reader: Reader<'_>,
    faults: &mut Faults,
) -> Option<Outcome> {
    let own = |address: Ipv6Addr| {
        addresses(pod).contains(&address.into()) || address == Ipv6Addr::from(pod.link_local())
    };
    if kind == 133 && own(source) {
        return faults.fatal(DropReason::Multicast);
    }
    if kind != 135 && kind != 136 {
        return faults.fatal(DropReason::SpoofedNd);
    }
    reader.take::<8>(faults)?;
    let target = Ipv6Addr::from(reader.take::<16>(faults)?);
    let allowed =
        if kind == 135 { own(source) || source.is_unspecified() } else { own(source) && own(target) };
    faults.add(!allowed || hop_limit != 255, DropReason::SpoofedNd);
    // Padding behind the packet's end is ignored.
    let mut left = len.saturating_sub(24);
    let mut options = 0;
    while left > 0 {
        options += 1;
        if options > 4 {
            return faults.fatal(DropReason::SpoofedNd);
        }
        let [kind, units, mac @ ..]: [u8; 8] = reader.take(faults)?;
        if units == 0 {
            return faults.fatal(DropReason::Malformed);
        }
        faults.add((kind == 1 || kind == 2) && mac != pod.mac, DropReason::SpoofedNd);
        let whole = usize::from(units) * 8;
        left = left.saturating_sub(whole);
        reader.skip(whole - 8);
    }
    if kind != 135 || !own(source) || own(target) || target.is_multicast() {
        return Some(Outcome::Stack);
    }
    let mut message = [&[136, 0, 0, 0, 0xe0, 0, 0, 0], &target.octets()[..]].concat();
    if len >= 32 {
        message.extend([&[2, 1], &GATEWAY_MAC[..]].concat());
    }
    let len = (message.len() as u16).to_be_bytes();
    let sum = checksum(&[&GATEWAY_IPV6, &source.octets(), &len, &[0, 58], &message]);
    set(&mut message, 2, &sum.to_be_bytes());
    let mut packet = rewritten(frame, pod);
    set(&mut packet, 18, &len);
    set(&mut packet, 22, &[&GATEWAY_IPV6[..], &source.octets(), &message].concat());
    Some(Outcome::Answered { packet })
}

fn to_gateway(to: [u8; 6], faults: &mut Faults) {
    let [first, ..] = to;
    faults.add(first % 2 == 1, DropReason::Multicast);
    faults.add(first % 2 == 0 && to != GATEWAY_MAC, DropReason::NotToGateway);
}

// === impl Faults ===

impl Faults {
    fn add(&mut self, is_wrong: bool, reason: DropReason) {
        if is_wrong {
            self.0.insert(reason);
        }
    }

    /// The rest cannot be judged.
    fn fatal(&mut self, reason: DropReason) -> Option<Outcome> {
        self.0.insert(reason);
        None
    }
}

fn addresses(pod: Pod) -> Vec<IpAddr> {
    let v4 = (pod.v4 != [0; 4]).then(|| IpAddr::from(pod.v4));
    let v6 = (pod.v6 != [0; 16]).then(|| IpAddr::from(pod.v6));
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
    /// Behind extension headers.
    payload: &'a [u8],
    /// Without extension headers.
    plain: bool,
}

// === impl Packet ===

impl<'a> Packet<'a> {
    /// `None` if the header is incomplete, or if the packet is a later fragment.
    fn read(bytes: &'a [u8], six: bool) -> Option<Self> {
        let address = |at: usize| -> Option<IpAddr> {
            Some(if six {
                <[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?.into()
            } else {
                <[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?.into()
            })
        };
        if six {
            let ends = [address(8)?, address(24)?];
            let behind = Behind::skip(*bytes.get(6)?, bytes.get(40..)?);
            let plain = ![0, 43, 44, 60].contains(bytes.get(6)?);
            let (protocol, payload) = (behind.protocol, behind.transport);
            return behind.is_known.then_some(Self { ends, protocol, payload, plain });
        }
        let ends = [address(12)?, address(16)?];
        let payload = bytes.get(usize::from(bytes.first()? % 16) * 4..)?;
        let offset = u16::from_be_bytes([*bytes.get(6)?, *bytes.get(7)?]) % 0x2000;
        (offset == 0).then_some(Self { ends, protocol: *bytes.get(9)?, payload, plain: true })
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

    /// The flow of a quoted packet, which is not parsed behind extension headers.
    fn plain_flow(&self) -> Option<Flow> {
        self.flow().filter(|_| self.plain)
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn take<const N: usize>(&mut self, faults: &mut Faults) -> Option<[u8; N]> {
        let Some((taken, rest)) = self.0.split_first_chunk::<N>() else {
            return faults.fatal(DropReason::Malformed).and(None);
        };
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self, faults: &mut Faults) -> Option<u16> {
        self.take(faults).map(u16::from_be_bytes)
    }

    fn skip(&mut self, len: usize) {
        self.0 = self.0.get(len..).unwrap_or_default();
    }
}
