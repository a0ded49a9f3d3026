//! What the kernel tells when somebody sets whether an interface forwards.

use rtnetlink::packet_core::NlasIterator;

/// `RTMGRP_…` of `RTNLGRP_IPV4_NETCONF` and `RTNLGRP_IPV6_NETCONF` in `linux/rtnetlink.h`, which have none of their own.
pub(super) const GROUP_IPV4: u32 = 1 << 23;
pub(super) const GROUP_IPV6: u32 = 1 << 24;
pub(super) const RTM_NEWNETCONF: u16 = 80;
/// In `linux/netconf.h`.
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
const ALL: i32 = -1;
/// `AF_INET` in `sys/socket.h`.
const IPV4: u8 = 2;

/// Whether something forwards from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forwards {
    pub is_ipv4: bool,
    pub of: Of,
    pub on: bool,
}

/// What does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Node,
    Interface(u32),
}

// === impl Forwards ===

impl Forwards {
    /// Reads the body of an [`RTM_NEWNETCONF`]; `None` if it is about something else, or what new interfaces get.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        // `struct netconfmsg` has one byte, the family, and attributes begin at multiples of 4.
        let (family, attributes) = (*body.first()?, body.get(4..)?);
        let number = |kind| {
            let attribute = NlasIterator::new(attributes).flatten().find(|it| it.kind() == kind)?;
            Some(i32::from_ne_bytes(attribute.value().try_into().ok()?))
        };
        let of = match number(NETCONFA_IFINDEX)? {
            ALL => Of::Node,
            index => Of::Interface(u32::try_from(index).ok()?),
        };
        Some(Self { is_ipv4: family == IPV4, of, on: number(NETCONFA_FORWARDING)? != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(family: u8, attributes: &[(u16, i32)]) -> Vec<u8> {
        let attribute = |(kind, value): &(u16, i32)| {
            [&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value.to_ne_bytes()].concat()
        };
        [family, 0, 0, 0].into_iter().chain(attributes.iter().flat_map(attribute)).collect()
    }

    #[test]
    fn it_is_about_the_node_or_an_interface() {
        let parsed = |family, index, on| {
            Forwards::parse(&body(family, &[(NETCONFA_IFINDEX, index), (NETCONFA_FORWARDING, on)]))
        };
        assert_eq!(parsed(2, ALL, 0), Some(Forwards { is_ipv4: true, of: Of::Node, on: false }));
        assert_eq!(parsed(10, 7, 1), Some(Forwards { is_ipv4: false, of: Of::Interface(7), on: true }));
        assert_eq!(parsed(2, -2, 0), None, "what new interfaces get");
    }

    #[test]
    fn what_is_cut_off_or_about_something_else_is_nothing() {
        let of_filter = body(2, &[(NETCONFA_IFINDEX, 7), (3, 1)]);
        assert_eq!(Forwards::parse(&of_filter), None);
        let whole = body(2, &[(NETCONFA_IFINDEX, 7), (NETCONFA_FORWARDING, 1)]);
        for length in 0..whole.len() {
            assert_eq!(Forwards::parse(&whole[..length]), None);
        }
    }
}
