//! Reading links: the request for one, and single facts of the answer.

use nix::errno::Errno;
use rtnetlink::{
    packet_core::DefaultNla,
    packet_route::{
        RouteNetlinkMessage,
        link::{
            AfSpecInet, AfSpecInet6, AfSpecUnspec, InetDevConf, LinkAttribute, LinkExtentMask, LinkLayerType,
            LinkMessage,
        },
    },
};

use super::{
    netlink::{NetlinkError, Request, Socket},
    requests::link_of,
};

/// `IPV4_DEVCONF_…` in `linux/ip.h`.
pub(super) const FORWARDING: u16 = 1;
pub(super) const SEND_REDIRECTS: u16 = 6;
pub(super) const RP_FILTER: u16 = 8;
pub(super) const ROUTE_LOCALNET: u16 = 26;
/// `IFLA_INET_CONF` in `linux/if_link.h`, and `NLA_F_NESTED` in `linux/netlink.h`.
const IFLA_INET_CONF: u16 = 1;
const NESTED: u16 = 1 << 15;

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

/// Whether there is a link at an index whose frames have an Ethernet header.
pub(super) fn is_ethernet(socket: &mut Socket, ifindex: u32) -> Result<bool, NetlinkError> {
    Ok(by_index(socket, ifindex)?.is_some_and(|link| link.header.link_layer_type == LinkLayerType::Ether))
}

pub(super) fn alias(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfAlias(alias) => Some(alias.as_str()),
        _ => None,
    })
}

pub(super) fn name(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// Whether a link forwards received IPv4 packets. A link without IPv4 settings counts as forwarding.
pub(super) fn forwards_ipv4(link: &LinkMessage) -> bool {
    ipv4_settings(link).all(|setting| setting.forwarding != 0)
}

/// Whether the link itself permits IPv4 redirects; the node-wide setting does, too (`IN_DEV_TX_REDIRECTS` in
/// `linux/inetdevice.h`).
pub(super) fn sends_redirects(link: &LinkMessage) -> bool {
    ipv4_settings(link).any(|setting| setting.send_redirects != 0)
}

/// Whether the link takes packets from and to loopback addresses.
pub(super) fn routes_localnet(link: &LinkMessage) -> bool {
    ipv4_settings(link).any(|setting| setting.route_localnet != 0)
}

/// A change of a link's IPv4 settings. rtnetlink's encoder omits those of 0.
pub(super) fn set_ipv4(settings: &[(u16, u32)]) -> AfSpecUnspec {
    let mut value = Vec::new();
    for (setting, to) in settings {
        // A header of 4 bytes and the value: no padding.
        value.extend([8_u16.to_ne_bytes(), setting.to_ne_bytes()].concat());
        value.extend(to.to_ne_bytes());
    }
    AfSpecUnspec::Inet(vec![AfSpecInet::Other(DefaultNla::new(IFLA_INET_CONF | NESTED, value))])
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

fn ipv4_settings(link: &LinkMessage) -> impl Iterator<Item = &InetDevConf> {
    let settings = families(link).filter_map(|family| match family {
        AfSpecUnspec::Inet(settings) => Some(settings),
        _ => None,
    });
    settings.flatten().filter_map(|setting| match setting {
        AfSpecInet::DevConf(setting) => Some(setting),
        _ => None,
    })
}

fn families(link: &LinkMessage) -> impl Iterator<Item = &AfSpecUnspec> {
    let families = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::AfSpecUnspec(families) => Some(families),
        _ => None,
    });
    families.flatten()
}
