//! `RTM_NEWNETCONF` notifications: changes of the forwarding settings.

use super::message::find;

/// Multicast masks of `RTNLGRP_IPV4_NETCONF` and `RTNLGRP_IPV6_NETCONF` in `linux/rtnetlink.h`.
pub(super) const GROUP_IPV4: u32 = 1 << 23;
pub(super) const GROUP_IPV6: u32 = 1 << 24;
pub(super) const RTM_NEWNETCONF: u16 = 80;
/// Attributes in `linux/netconf.h`.
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
/// `NETCONFA_IFINDEX_ALL`, in the place of an interface's index.
pub(super) const ALL: i32 = -1;
/// `AF_INET` in `sys/socket.h`.
const IPV4: u8 = 2;

/// A new value of a forwarding setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarding {
    pub is_ipv4: bool,
    pub scope: Scope,
    pub on: bool,
}

/// The range of a forwarding setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Node,
    Interface(u32),
}

// === impl Forwarding ===

impl Forwarding {
    /// Parses the body of [`RTM_NEWNETCONF`]; `None` for another setting, and for the default of new
    /// interfaces.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        // `struct netconfmsg` has one byte, the family, and attributes begin at multiples of 4.
        let (family, attributes) = (*body.first()?, body.get(4..)?);
        let number = |kind| Some(i32::from_ne_bytes(find(attributes, &[kind])?.try_into().ok()?));
        let scope = match number(NETCONFA_IFINDEX)? {
            ALL => Scope::Node,
            index => Scope::Interface(u32::try_from(index).ok()?),
        };
        Some(Self { is_ipv4: family == IPV4, scope, on: number(NETCONFA_FORWARDING)? != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::message::{Attribute, encode_all},
        *,
    };

    fn body(family: u8, attributes: &[(u16, i32)]) -> Vec<u8> {
        let attribute = |(kind, value): &(u16, i32)| Attribute::Value(*kind, value.to_ne_bytes().to_vec());
        let attributes: Vec<_> = attributes.iter().map(attribute).collect();
        [&[family, 0, 0, 0][..], &encode_all(&attributes)].concat()
    }

    #[test]
    fn forwarding_names_the_node_or_an_interface() {
        let parsed = |family, index, on| {
            Forwarding::parse(&body(family, &[(NETCONFA_IFINDEX, index), (NETCONFA_FORWARDING, on)]))
        };
        assert_eq!(parsed(2, ALL, 0), Some(Forwarding { is_ipv4: true, scope: Scope::Node, on: false }));
        assert_eq!(
            parsed(10, 7, 1),
            Some(Forwarding { is_ipv4: false, scope: Scope::Interface(7), on: true })
        );
        assert_eq!(parsed(2, -2, 0), None, "the default of new interfaces");
    }

    #[test]
    fn truncated_messages_and_other_settings_are_ignored() {
        let of_other = body(2, &[(NETCONFA_IFINDEX, 7), (3, 1)]);
        assert_eq!(Forwarding::parse(&of_other), None);
        let whole = body(2, &[(NETCONFA_IFINDEX, 7), (NETCONFA_FORWARDING, 1)]);
        for length in 0..whole.len() {
            assert_eq!(Forwarding::parse(&whole[..length]), None);
        }
    }
}
