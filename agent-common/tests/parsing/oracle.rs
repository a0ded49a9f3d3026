//! What a frame says, as `etherparse` decodes its headers.

use std::net::IpAddr;

use etherparse::{
    IpNumber, Ipv4HeaderSlice, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice, Ipv6RawExtHeaderSlice,
};

/// An IP packet. Offsets are in the frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    pub ends: [IpAddr; 2],
    pub protocol: u8,
    pub hops: u8,
    /// Offset of what follows the IP headers, which can be behind the frame's end.
    pub payload: usize,
    pub is_fragment: bool,
    /// In units of eight bytes.
    pub offset: u16,
    /// Identification, if a fragment header is the last header.
    pub id: Option<u32>,
    /// IPv4 options.
    pub has_options: bool,
    /// IPv6 extension headers other than a fragment header.
    pub is_extended: bool,
}

const ETHERNET: usize = 14;
/// RFC 8200, 4.1: of the kinds that a router may meet.
const MOST_EXTENSIONS: usize = 4;
/// The longest extension header.
const ZEROS: [u8; 2048] = [0; 2048];

/// `None`: no well-formed IPv4 packet.
pub fn ipv4(frame: &[u8], is_gso: bool) -> Option<Decoded> {
    let available = frame.len().checked_sub(ETHERNET)?;
    frame.get(..ETHERNET + 20)?;
    let padded = [&frame[ETHERNET..], &[0; 60]].concat();
    let ip = Ipv4HeaderSlice::from_slice(&padded).ok()?;
    let (header, total) = (ip.slice().len(), usize::from(ip.total_len()));
    // The kernel gives packets over 64 KiB a length of zero.
    let is_big = is_gso && total == 0;
    (is_big || header <= total && total <= available).then(|| Decoded {
        ends: [ip.source_addr().into(), ip.destination_addr().into()],
        protocol: ip.protocol().0,
        hops: ip.ttl(),
        payload: ETHERNET + header,
        is_fragment: ip.is_fragmenting_payload(),
        offset: ip.fragments_offset().value(),
        id: Some(ip.identification().into()),
        has_options: !ip.options().is_empty(),
        is_extended: false,
    })
}

/// `None`: no well-formed IPv6 packet, or one whose transport header is behind too many headers.
pub fn ipv6(frame: &[u8], is_gso: bool) -> Option<Decoded> {
    let packet = frame.get(ETHERNET..)?;
    let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
    let mut rest = packet.get(40..)?;
    let behind = rest.get(usize::from(ip.payload_length())..)?;
    let is_big = is_gso && ip.payload_length() == 0;
    // The kernel would not see an extension header that is behind the packet's end.
    let is_extended = matches!(
        ip.next_header(),
        IpNumber::IPV6_FRAGMENTATION_HEADER
            | IpNumber::IPV6_HEADER_HOP_BY_HOP
            | IpNumber::IPV6_ROUTE_HEADER
            | IpNumber::IPV6_DESTINATION_OPTIONS
    );
    if is_extended && !behind.is_empty() && !is_big {
        return None;
    }
    let mut decoded = Decoded {
        ends: [ip.source_addr().into(), ip.destination_addr().into()],
        protocol: ip.next_header().0,
        hops: ip.hop_limit(),
        payload: ETHERNET + 40,
        is_fragment: false,
        offset: 0,
        id: None,
        has_options: false,
        is_extended: false,
    };
    for headers in 0.. {
        let length = match IpNumber(decoded.protocol) {
            _ if decoded.offset != 0 => return Some(decoded),
            IpNumber::IPV6_FRAGMENTATION_HEADER => {
                let fragment = Ipv6FragmentHeaderSlice::from_slice(rest).ok()?;
                decoded.protocol = fragment.next_header().0;
                decoded.is_fragment = true;
                decoded.offset = fragment.fragment_offset().value();
                decoded.id = Some(fragment.identification());
                8
            }
            IpNumber::IPV6_HEADER_HOP_BY_HOP
            | IpNumber::IPV6_ROUTE_HEADER
            | IpNumber::IPV6_DESTINATION_OPTIONS => {
                // The first eight bytes suffice.
                rest.get(..8)?;
                let padded = [rest, &ZEROS].concat();
                let extension = Ipv6RawExtHeaderSlice::from_slice(&padded).ok()?;
                decoded.protocol = extension.next_header().0;
                decoded.is_extended = true;
                decoded.id = None;
                extension.slice().len()
            }
            _ => return Some(decoded),
        };
        if headers == MOST_EXTENSIONS {
            return None;
        }
        decoded.payload += length;
        rest = rest.get(length..).unwrap_or_default();
    }
    None
}
