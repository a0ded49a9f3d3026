//! Whether other nodes answer packets to their ranges.
//!
//! A datagram goes the way of pods' packets, by the tunnel or directly, to the first address of a range. No
//! pod has that address. The other node answers with ICMP "unreachable", because its range has an unreachable
//! route. The answer comes past the tunnel, so that it proves this direction of the way.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _},
    time::{Duration, Instant},
};

use ferrule_proto::agent::{ListNodesResponse, NodeRange, node_range::Way};
use ipnet::IpNet;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt},
};

/// A datagram on its way.
struct Asked {
    socket: UdpSocket,
    /// Index of the range.
    index: usize,
}

/// Ranges that are asked at once, and in all.
const AT_ONCE: usize = 256;
const MOST: usize = 768;
/// The longest wait, and when silent nodes are asked again: a kernel answers an address a few times at once,
/// and then every other second (`ip_error` and `icmp_ratelimit`).
const LIMIT: Duration = Duration::from_millis(2500);
const AGAIN: Duration = Duration::from_millis(2100);
/// tcpmux (RFC 1078), as [`super::probe`].
const PORT: u16 = 1;
/// Bytes: two control messages of the kernel.
const CONTROL: usize = 256;

/// Asks the ranges of other nodes to which there is a way. Blocks for [`LIMIT`] for each [`AT_ONCE`] of them.
/// `only`: the node that is asked; empty: all.
pub(super) fn ask(shown: &mut ListNodesResponse, only: &str) {
    let nodes = shown.nodes.iter_mut().filter(|it| !it.own && (only.is_empty() || it.name == only));
    let mut ranges: Vec<_> = nodes
        .flat_map(|node| {
            let of: Vec<IpAddr> = node.internal_ips.iter().filter_map(|it| it.parse().ok()).collect();
            let name = node.name.clone();
            node.ranges.iter_mut().map(move |range| (name.clone(), of.clone(), range))
        })
        .filter(|(_, _, range)| matches!(range.way(), Way::Direct | Way::Vxlan))
        .collect();
    for (_, _, range) in ranges.iter_mut().skip(MOST) {
        range.no_answer_because = format!("not asked: only {MOST} ranges are; name the node");
    }
    for some in ranges.iter_mut().take(MOST).collect::<Vec<_>>().chunks_mut(AT_ONCE) {
        let start = Instant::now();
        let mut asked = Vec::new();
        for (index, (_, _, range)) in some.iter_mut().enumerate() {
            match send(&range.range) {
                Ok(socket) => asked.push(Asked { socket, index }),
                Err(error) => range.no_answer_because = format!("cannot send: {error}"),
            }
        }
        let mut is_repeated = false;
        while !asked.is_empty() && start.elapsed() < LIMIT {
            if !is_repeated && start.elapsed() >= AGAIN {
                is_repeated = true;
                // A socket whose error is read sends again; a failure is silence.
                asked.iter().for_each(|it| drop(it.socket.send(&[])));
            }
            let until = if is_repeated { LIMIT } else { AGAIN };
            let Ok(ready) = wait(&asked, until.saturating_sub(start.elapsed())) else { break };
            let mut silent = Vec::new();
            for (it, is_ready) in asked.into_iter().zip(ready) {
                let from = if is_ready { answer(&it.socket) } else { None };
                match (from, some.get_mut(it.index)) {
                    (Some(from), Some((name, of, range))) => note(name, of, range, from, start.elapsed()),
                    _ => silent.push(it),
                }
            }
            asked = silent;
        }
        for Asked { index, .. } in asked {
            if let Some((name, _, range)) = some.get_mut(index) {
                range.no_answer_because = silent(name, range);
            }
        }
    }
}

fn note(name: &str, of: &[IpAddr], range: &mut NodeRange, from: IpAddr, after: Duration) {
    if of.contains(&from) {
        range.answered_us = Some(u64::try_from(after.as_micros()).unwrap_or(u64::MAX));
    } else {
        range.no_answer_because = format!("{from}, which is no address of {name}, refuses the packet");
    }
}

/// Sends a datagram, whose errors the socket will tell.
fn send(range: &str) -> io::Result<UdpSocket> {
    let range: IpNet = range.parse().map_err(io::Error::other)?;
    let to = range.network();
    let socket = match to {
        IpAddr::V4(_) => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
            socket
        }
        IpAddr::V6(_) => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
            socket
        }
    };
    socket.connect((to, PORT))?;
    socket.send(&[])?;
    Ok(socket)
}

/// Whether each socket has an error to tell.
fn wait(asked: &[Asked], limit: Duration) -> nix::Result<Vec<bool>> {
    // POLLERR is reported without being asked for.
    let mut polled: Vec<_> =
        asked.iter().map(|it| PollFd::new(it.socket.as_fd(), PollFlags::empty())).collect();
    let millis = u16::try_from(limit.as_millis()).unwrap_or(u16::MAX);
    poll(&mut polled, PollTimeout::from(millis.max(1)))?;
    Ok(polled.iter().map(|it| it.any().unwrap_or_default()).collect())
}

/// Who answers with ICMP.
fn answer(socket: &UdpSocket) -> Option<IpAddr> {
    let (mut data, mut control) = ([0; 64], vec![0; CONTROL]);
    let mut parts = [IoSliceMut::new(&mut data)];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
    message.cmsgs().ok()?.find_map(|it| match it {
        ControlMessageOwned::Ipv4RecvErr(_, Some(from)) => {
            Some(Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes()).into())
        }
        ControlMessageOwned::Ipv6RecvErr(_, Some(from)) => {
            Some(Ipv6Addr::from(from.sin6_addr.s6_addr).into())
        }
        _ => None,
    })
}

/// Why a node may be silent, and what to do.
fn silent(name: &str, range: &NodeRange) -> String {
    let to = &range.to;
    let remedy = match range.way() {
        Way::Vxlan => format!(
            "firewalls on both nodes and between them must accept the tunnel's UDP port (tunnel_port); see: ping {to}, \
             and tcpdump on {name}"
        ),
        _ => {
            format!("see: ping {to}, the firewalls of both nodes, and what the network between them refuses")
        }
    };
    format!("none within {LIMIT:?}: {remedy}")
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::Node;

    use super::*;

    fn shown(range: &str, address: &str) -> ListNodesResponse {
        let range = NodeRange { range: range.to_owned(), way: Way::Vxlan.into(), ..NodeRange::default() };
        let internal_ips = vec![address.to_owned()];
        let node = Node { name: "b".to_owned(), internal_ips, ranges: vec![range], ..Node::default() };
        let own = Node { own: true, name: "a".to_owned(), ..node.clone() };
        ListNodesResponse { nodes: vec![own, node], ..ListNodesResponse::default() }
    }

    fn asked(range: &str, address: &str, only: &str) -> [NodeRange; 2] {
        let mut shown = shown(range, address);
        ask(&mut shown, only);
        [shown.nodes[0].ranges[0].clone(), shown.nodes[1].ranges[0].clone()]
    }

    /// The loopback's address answers itself: port unreachable.
    #[test]
    fn a_node_answers_by_an_icmp_of_its_own_and_only_others_are_asked() {
        let [own, other] = asked("127.0.0.1/32", "127.0.0.1", "");
        assert_eq!((own.answered_us, own.no_answer_because.as_str()), (None, ""));
        assert!(other.answered_us.is_some_and(|it| it < 1_000_000), "{other:?}");
        let [_, other] = asked("127.0.0.1/32", "127.0.0.1", "b");
        assert!(other.answered_us.is_some(), "{other:?}");
        let [_, other] = asked("127.0.0.1/32", "127.0.0.1", "c");
        assert_eq!((other.answered_us, other.no_answer_because.as_str()), (None, ""));
    }

    #[test]
    fn an_answer_of_another_address_is_none_of_the_node() {
        let [_, other] = asked("127.0.0.1/32", "192.0.2.7", "");
        assert_eq!(other.answered_us, None);
        assert_eq!(other.no_answer_because, "127.0.0.1, which is no address of b, refuses the packet");
    }

    #[test]
    fn silence_names_what_may_be_in_the_way() {
        let range =
            |way: Way| NodeRange { way: way.into(), to: "192.0.2.7".to_owned(), ..NodeRange::default() };
        let text = silent("b", &range(Way::Vxlan));
        assert!(text.starts_with("none within 2.5s: ") && text.contains("UDP port (tunnel_port)"), "{text}");
        assert!(silent("b", &range(Way::Direct)).contains("ping 192.0.2.7"));
    }
}
