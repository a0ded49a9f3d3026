//! The packet that an ICMP error quotes.

use crate::{
    address::Address,
    extensions,
    headers::{Ipv4, Ipv6, L3, Transport},
    meta::Family,
    packet::Packet,
    skip,
};

pub struct Quote {
    pub source: Address,
    pub destination: Address,
    pub protocol: u8,
    /// Offset of the transport header.
    payload: usize,
}

/// Where the transport header of a quoted packet is, and of which protocol.
struct Place {
    protocol: u8,
    payload: usize,
}

/// The packet quoted at an offset; `None` for a later fragment, and for a quote that is cut off.
#[inline(always)]
pub fn find(packet: &Packet, family: Family, at: usize) -> Option<Quote> {
    match family {
        Family::Ipv4 => {
            let ip = packet.copy::<Ipv4>(at).filter(|ip| !ip.is_later_fragment())?;
            let (source, destination) = (Address::v4(ip.source), Address::v4(ip.destination));
            Some(Quote { source, destination, protocol: ip.protocol, payload: at + ip.header_len() })
        }
        Family::Ipv6 => {
            let ip = packet.copy::<Ipv6>(at)?;
            let Place { protocol, payload } = behind_ipv6(packet, at, ip.next_header)?;
            let (source, destination) = (Address::v6(ip.source), Address::v6(ip.destination));
            Some(Quote { source, destination, protocol, payload })
        }
    }
}

/// A pod that knows the MTU of a way fragments what it sends, and a router with a smaller one quotes a
/// fragment.
#[inline(always)]
fn behind_ipv6(packet: &Packet, at: usize, next_header: u8) -> Option<Place> {
    if !extensions::is_extension(next_header) {
        return Some(Place { protocol: next_header, payload: at + size_of::<Ipv6>() });
    }
    let frame = at - L3;
    let skipped = skip::extensions(&packet.inside(frame), next_header);
    let is_whole = skipped.extensions != extensions::UNKNOWN && skipped.fragment & Ipv4::OFFSET == 0;
    is_whole.then(|| Place { protocol: skipped.protocol, payload: frame + usize::from(skipped.payload) })
}

// === impl Quote ===

impl Quote {
    /// `None` if the quote ends before.
    #[inline(always)]
    pub fn transport(&self, packet: &Packet) -> Option<Transport> {
        packet.copy(self.payload).map(Transport::new)
    }
}
