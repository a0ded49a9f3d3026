//! Routes of any program, chosen before they are decoded: a node may have a million.

use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::{
    packet_core::Parseable as _,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        route::{RouteHeader, RouteMessage},
    },
};

use super::{
    message::find,
    netlink::{NetlinkError, Socket},
};

/// `linux/rtnetlink.h`: the node's own addresses.
pub(super) const RT_TABLE_LOCAL: u8 = 255;
pub(super) const RT_TABLE_MAIN: u8 = RouteHeader::RT_TABLE_MAIN;

/// `AF_INET` and `AF_INET6`.
const INET: u8 = 2;
const INET6: u8 = 10;
/// Of `struct rtmsg`, before the attributes; and an attribute's type.
const HEADER: usize = 12;
const RTA_DST: u16 = 1;

/// Passes the routes of a table to `each` whose destination is wanted, with what has been found.
///
/// # Errors
/// If the kernel refuses the dump.
pub(super) fn scan<T: Default>(
    host: &mut Socket,
    (family, table): (AddressFamily, u8),
    is_wanted: impl Fn(IpNet) -> bool,
    each: impl Fn(&mut T, &RouteMessage),
) -> Result<T, NetlinkError> {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    // The kernel filters by it.
    message.header.table = table;
    let scanned = host.scan("list the routes", &RouteNetlinkMessage::GetRoute(message), |found, body| {
        if destination(body).is_some_and(&is_wanted)
            && let Ok(route) = RouteMessage::parse(body)
        {
            each(found, &route);
        }
    });
    match scanned {
        // The table has never had a route.
        Err(error) if error.is(Errno::ENOENT) => Ok(T::default()),
        scanned => scanned,
    }
}

/// The destination in a `struct rtmsg` with its attributes. The kernel sends a default route without one.
pub(super) fn destination(body: &[u8]) -> Option<IpNet> {
    let [family, length, ..] = *body.first_chunk::<HEADER>()?;
    let value = find(body.get(HEADER..)?, &[RTA_DST]);
    let address = match family {
        INET => value.map_or(Some([0; 4]), |it| it.try_into().ok())?.into(),
        INET6 => value.map_or(Some([0; 16]), |it| it.try_into().ok())?.into(),
        _ => return None,
    };
    IpNet::new(address, length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(family: u8, length: u8, to: &[u8]) -> Vec<u8> {
        let table = [8, 0, 15, 0, 254, 0, 0, 0];
        let size = u8::try_from(to.len() + 4).unwrap();
        let to = if to.is_empty() { Vec::new() } else { [&[size, 0, 1, 0], to].concat() };
        [&[family, length, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0][..], &table, &to].concat()
    }

    #[test]
    fn the_destination_is_that_of_the_attribute_or_everything() {
        let of = |body: &[u8]| destination(body).map(|it| it.to_string());
        assert_eq!(of(&route(2, 24, &[10, 1, 2, 0])).as_deref(), Some("10.1.2.0/24"));
        assert_eq!(
            of(&route(10, 64, &[0xfd; 16])).as_deref(),
            Some("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd/64")
        );
        assert_eq!(of(&route(2, 0, &[])).as_deref(), Some("0.0.0.0/0"));
        assert_eq!(of(&route(10, 0, &[])).as_deref(), Some("::/0"));
        assert_eq!(of(&route(2, 24, &[10, 1])), None);
        assert_eq!(of(&route(28, 0, &[])), None, "MPLS");
        assert_eq!(of(&[2, 24]), None);
    }
}
