//! The filter of a VXLAN device that receives for one network identifier only (Linux 5.18). Without the
//! filter, `from_tunnel` drops foreign identifiers.

use std::io;

use agent_common::TUNNEL_VNI as VNI;
use nix::errno::Errno;
use rtnetlink::{
    packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST},
    sys::{Socket as Raw, SocketAddr, protocols::NETLINK_ROUTE},
};

use super::super::netlink::NetlinkError;
use crate::crash::{self, Step};

/// `RTM_NEWTUNNEL` in `linux/rtnetlink.h`.
const NEW_TUNNEL: u16 = 120;
/// `NLMSG_ERROR` in `linux/netlink.h`.
const ERROR: u16 = 2;
/// `PF_BRIDGE` in `linux/socket.h`.
const BRIDGE: u8 = 7;
/// `VXLAN_VNIFILTER_ENTRY` and `VXLAN_VNIFILTER_ENTRY_START` in `linux/if_link.h`.
const ENTRY: u16 = 1;
const ENTRY_START: u16 = 1;
/// `NLA_F_NESTED` in `linux/netlink.h`.
const NESTED: u16 = 1 << 15;
/// Bytes: header, `struct tunnel_msg`, a nested attribute of one number.
const LENGTH: u32 = 16 + 8 + 4 + 8;

/// Lets a device receive the tunnel's packets. A kernel without the filter needs no permission.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn permit(ifindex: u32) -> Result<(), NetlinkError> {
    let what = format!("let the tunnel device receive the network {VNI}");
    match send(&message(ifindex)) {
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(()),
        result => result.map_err(|source| NetlinkError::new(what, source)),
    }
}

fn send(message: &[u8]) -> io::Result<()> {
    let socket = Raw::new(NETLINK_ROUTE)?;
    socket.send_to(message, &SocketAddr::new(0, 0), 0)?;
    crash::point(Step::NetlinkChanged);
    // The kernel has answered before the message was sent.
    let (answer, _) = socket.recv_from_full()?;
    let kind = answer.get(4..6).and_then(|it| it.first_chunk::<2>()).map(|it| u16::from_ne_bytes(*it));
    let code = answer.get(16..20).and_then(|it| it.first_chunk::<4>()).map(|it| i32::from_ne_bytes(*it));
    match (kind, code) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.saturating_abs())),
        _ => Err(io::Error::other("the kernel's answer is no acknowledgement")),
    }
}

fn message(ifindex: u32) -> Vec<u8> {
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
    let header =
        [&LENGTH.to_ne_bytes()[..], &NEW_TUNNEL.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
    let device = [&[BRIDGE, 0, 0, 0][..], &ifindex.to_ne_bytes()].concat();
    let start = [&8_u16.to_ne_bytes()[..], &ENTRY_START.to_ne_bytes(), &VNI.to_ne_bytes()].concat();
    let entry = [&12_u16.to_ne_bytes()[..], &(ENTRY | NESTED).to_ne_bytes(), &start].concat();
    [header, device, entry].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_as_long_as_its_header_says() {
        assert_eq!(message(7).len(), LENGTH as usize);
    }
}
