//! Reading links: the request for one, and single facts of the answer.

use nix::errno::Errno;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{AfSpecInet, AfSpecInet6, AfSpecUnspec, LinkAttribute, LinkExtentMask, LinkMessage},
};

use super::{
    netlink::{NetlinkError, Request, Socket},
    requests::link_of,
};

/// A request for links, without the statistics, which are most of an answer.
pub(super) fn get() -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

/// The link at an index of the socket's namespace.
pub(super) fn by_index(socket: &mut Socket, ifindex: u32) -> Result<Option<LinkMessage>, NetlinkError> {
    let mut message = get();
    message.header.index = ifindex;
    one(socket, message)
}

/// The link of a name in the socket's namespace. The kernel also finds a link by an alternative name.
pub(super) fn by_name(socket: &mut Socket, ifname: &str) -> Result<Option<LinkMessage>, NetlinkError> {
    let mut message = get();
    message.attributes.push(LinkAttribute::IfName(ifname.to_owned()));
    one(socket, message)
}

pub(super) fn alias(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfAlias(alias) => Some(alias.as_str()),
        _ => None,
    })
}

/// Whether a link forwards received IPv4 packets. A link without IPv4 settings counts as forwarding.
pub(super) fn forwards_ipv4(link: &LinkMessage) -> bool {
    let settings = families(link).filter_map(|family| match family {
        AfSpecUnspec::Inet(settings) => Some(settings),
        _ => None,
    });
    settings.flatten().all(|setting| match setting {
        AfSpecInet::DevConf(setting) => setting.forwarding != 0,
        _ => true,
    })
}

pub(super) fn disables_ipv6(link: &LinkMessage) -> bool {
    let settings = families(link).filter_map(|family| match family {
        AfSpecUnspec::Inet6(settings) => Some(settings),
        _ => None,
    });
    settings.flatten().any(|it| matches!(it, AfSpecInet6::DevConf(conf) if conf.disable_ipv6 != 0))
}

fn one(socket: &mut Socket, message: LinkMessage) -> Result<Option<LinkMessage>, NetlinkError> {
    match socket.batch(vec![Request::change("read an interface", RouteNetlinkMessage::GetLink(message))]) {
        Err(error) if error.is(Errno::ENODEV) => Ok(None),
        answers => Ok(answers?.into_iter().find_map(link_of)),
    }
}

fn families(link: &LinkMessage) -> impl Iterator<Item = &AfSpecUnspec> {
    let families = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::AfSpecUnspec(families) => Some(families),
        _ => None,
    });
    families.flatten()
}
