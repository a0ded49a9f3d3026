//! Random frames, mostly well-formed: every field is now and then wrong, and so is every length.

use fastrand::Rng;

/// Addresses end in one of few numbers, so that quoted packets often are about the sender.
const HOSTS: u8 = 3;
const PROTOCOLS: [u8; 12] = [1, 1, 6, 6, 17, 17, 58, 58, 132, 4, 51, 59];
const EXTENSIONS: [u8; 5] = [0, 43, 44, 44, 60];
/// Of ICMP and ICMPv6: errors, echoes, and others.
const KINDS: [u8; 16] = [0, 1, 2, 3, 4, 5, 8, 11, 12, 13, 127, 128, 129, 134, 135, 255];

pub fn any(rng: &mut Rng) -> Vec<u8> {
    let six = rng.bool();
    let mut frame = bytes(rng, 12);
    frame.extend(if six { [0x86, 0xdd] } else { [8, 0] });
    frame.extend(packet(rng, six, true));
    if rng.u8(..4) == 0 {
        let padding = rng.usize(..60);
        frame.resize(frame.len() + padding, 0);
    }
    match rng.u8(..12) {
        0 => frame.truncate(rng.usize(14..=frame.len())),
        1 => {
            let at = rng.usize(14..frame.len());
            frame[at] = rng.u8(..);
        }
        2 => {
            let at = rng.usize(14..frame.len());
            frame[at] ^= 1 << rng.u8(..8);
        }
        _ => {}
    }
    frame
}

fn packet(rng: &mut Rng, six: bool, may_quote: bool) -> Vec<u8> {
    if six { ipv6(rng, may_quote) } else { ipv4(rng, may_quote) }
}

fn ipv4(rng: &mut Rng, may_quote: bool) -> Vec<u8> {
    let protocol = protocol(rng);
    let payload = payload(rng, protocol, false, may_quote);
    let options = usually(rng, 0, |rng| rng.usize(..11)) * 4;
    let length = u16::try_from(20 + options + payload.len()).unwrap();
    let ihl = usually(rng, 5 + u8::try_from(options / 4).unwrap(), |rng| rng.u8(..16));
    let version = usually(rng, 4, |rng| rng.u8(..16));
    let length = usually(rng, length, |rng| length.wrapping_add_signed(rng.i16(-40..40)));
    let fragment = usually(rng, 0x4000, |rng| if rng.bool() { rng.u16(..) } else { rng.u16(..4) << 13 });
    let length = if rng.u8(..30) == 0 { 0 } else { length };
    let mut packet = vec![version << 4 | ihl & 15, rng.u8(..)];
    packet.extend([length, rng.u16(..), fragment].into_iter().flat_map(u16::to_be_bytes));
    packet.extend([rng.u8(..), protocol, 0, 0]);
    for _ in 0..2 {
        packet.extend([10, 0, 0, rng.u8(..HOSTS)]);
    }
    packet.resize(20 + options, 1);
    packet.extend(payload);
    packet
}

fn ipv6(rng: &mut Rng, may_quote: bool) -> Vec<u8> {
    let chain: Vec<u8> =
        (0..usually(rng, 0, |rng| rng.usize(1..7))).map(|_| *pick(rng, &EXTENSIONS)).collect();
    let is_long = rng.u8(..8) == 0;
    let protocol = protocol(rng);
    let mut rest = payload(rng, protocol, true, may_quote);
    let mut next = protocol;
    for kind in chain.into_iter().rev() {
        let mut header = vec![next, 0];
        if kind == 44 {
            header[1] = rng.u8(..);
            let first = rng.u16(..8);
            let offset = usually(rng, first, |rng| rng.u16(..));
            header.extend(offset.to_be_bytes());
            header.extend(bytes(rng, 4));
        } else {
            let units = if is_long { rng.u8(150..) } else { usually(rng, 0, |rng| rng.u8(..5)) };
            header[1] = units;
            header.extend(bytes(rng, usize::from(units) * 8 + 6));
        }
        header.extend(rest);
        (next, rest) = (kind, header);
    }
    let length = u16::try_from(rest.len()).unwrap();
    let length = usually(rng, length, |rng| length.wrapping_add_signed(rng.i16(-60..60)));
    let version = usually(rng, 6, |rng| rng.u8(..16));
    let mut packet = vec![version << 4, rng.u8(..), rng.u8(..), rng.u8(..)];
    packet.extend(length.to_be_bytes());
    packet.extend([next, rng.u8(..)]);
    for _ in 0..2 {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, rng.u8(..HOSTS)]);
    }
    packet.extend(rest);
    packet
}

/// Ports and more, or an ICMP message that often quotes a packet.
fn payload(rng: &mut Rng, protocol: u8, six: bool, may_quote: bool) -> Vec<u8> {
    let mut payload = match protocol {
        1 | 58 => {
            let mut message = vec![*pick(rng, &KINDS), 0];
            message.extend(bytes(rng, 6));
            if may_quote {
                message.extend(packet(rng, six, false));
            }
            message
        }
        _ => {
            let ports = [rng.u16(..3), rng.u16(..3)];
            ports.into_iter().flat_map(u16::to_be_bytes).collect()
        }
    };
    let more = rng.usize(..40);
    payload.extend(bytes(rng, more));
    payload
}

fn protocol(rng: &mut Rng) -> u8 {
    let known = *pick(rng, &PROTOCOLS);
    usually(rng, known, |rng| rng.u8(..))
}

/// The usual value, so that the checks behind it are reached, or another.
fn usually<T>(rng: &mut Rng, usual: T, other: impl FnOnce(&mut Rng) -> T) -> T {
    if rng.u8(..6) == 0 { other(rng) } else { usual }
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}

fn bytes(rng: &mut Rng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    rng.fill(&mut bytes);
    bytes
}
