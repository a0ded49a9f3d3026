//! Whether other nodes answer packets to their ranges.
//!
//! A datagram as large as pods' packets may be goes their way, by the tunnel or directly, to the first
//! address of a range. No pod has that address. The other node answers with ICMP "unreachable", because its
//! range has an unreachable route. The answer comes past the tunnel, so that it proves this direction of the
//! way. If only an empty datagram is answered, a link on the way has a smaller MTU.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _},
    time::{Duration, Instant},
};

use ferrule_proto::agent::{ListNodesResponse, NodeRange, node_range::Way};
use ipnet::IpNet;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt},
};

/// A datagram on its way.
struct Asked {
    socket: UdpSocket,
    /// Index of the range.
    index: usize,
}

/// What has answered.
struct Answer {
    from: IpAddr,
    /// The MTU, in bytes, if the packet is too large for a link behind `from`.
    too_large_for: Option<u32>,
}

/// Ranges that are asked at once, and in all.
const AT_ONCE: usize = 384;
const MOST: usize = 768;
/// The longest wait.
const LIMIT: Duration = Duration::from_millis(4500);
/// When the first turn of asking ends.
const AGAIN: Duration = Duration::from_millis(2100);
/// When each turn ends, and whether its datagrams are empty. A kernel answers an address a few times at once,
/// and then every other second (`ip_error` and `icmp_ratelimit`).
const TURNS: [(Duration, bool); 3] = [(AGAIN, false), (Duration::from_millis(4200), false), (LIMIT, true)];
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
            match open(range).and_then(|socket| send(&socket, payload(range)).map(|()| socket)) {
                Ok(socket) => asked.push(Asked { socket, index }),
                Err(error) => range.no_answer_because = format!("cannot send: {error}"),
            }
        }
        for (until, is_empty) in TURNS {
            if start.elapsed() >= AGAIN {
                for Asked { socket, index } in &asked {
                    let full = some.get(*index).map_or(0, |(_, _, range)| payload(range));
                    // A socket whose error is read sends again; a failure is silence.
                    let _ = send(socket, if is_empty { 0 } else { full });
                }
            }
            while !asked.is_empty() && start.elapsed() < until {
                let Ok(ready) = wait(&asked, until.saturating_sub(start.elapsed())) else { break };
                let mut silent = Vec::new();
                for (it, is_ready) in asked.into_iter().zip(ready) {
                    let answer = if is_ready { answer(&it.socket) } else { None };
                    match (answer, some.get_mut(it.index)) {
                        (Some(answer), Some((name, of, range))) => {
                            note(name, of, range, &answer, (!is_empty).then(|| start.elapsed()));
                        }
                        _ => silent.push(it),
                    }
                }
                asked = silent;
            }
        }
        for Asked { index, .. } in asked {
            if let Some((name, _, range)) = some.get_mut(index) {
                range.no_answer_because = silent(name, range);
            }
        }
    }
}

/// `after`: `None` if the answer is to an empty datagram.
fn note(name: &str, of: &[IpAddr], range: &mut NodeRange, answer: &Answer, after: Option<Duration>) {
    let Answer { from, too_large_for } = answer;
    let (mtu, is_of_node) = (range.mtu, of.contains(from));
    let remedy = "compare the MTUs of both nodes' uplinks and of the network between them, and give the uplinks the \
                  smallest (ip link set dev … mtu …): the agents follow";
    match (too_large_for, after) {
        (Some(fits), _) => {
            range.no_answer_because =
                format!("{from} refuses a packet of {mtu} bytes as larger than {fits}: {remedy}");
        }
        (None, _) if !is_of_node => {
            range.no_answer_because = format!("{from}, which is no address of {name}, refuses the packet");
        }
        (None, Some(after)) => {
            range.answered_us = Some(u64::try_from(after.as_micros()).unwrap_or(u64::MAX));
        }
        (None, None) => {
            range.no_answer_because =
                format!("small packets get through, packets of {mtu} bytes do not: {remedy}");
        }
    }
}

/// A socket that will tell the errors of its datagrams.
fn open(range: &NodeRange) -> io::Result<UdpSocket> {
    let to = network(range).ok_or_else(|| io::Error::other("the range cannot be read"))?;
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
    Ok(socket)
}

fn send(socket: &UdpSocket, bytes: usize) -> io::Result<()> {
    socket.send(&vec![0; bytes]).map(drop)
}

fn network(range: &NodeRange) -> Option<IpAddr> {
    range.range.parse().ok().map(|range: IpNet| range.network())
}

/// Bytes of a datagram whose packet has the MTU of the way. The kernel forbids routers to fragment what fits.
fn payload(range: &NodeRange) -> usize {
    let headers = if network(range).is_some_and(|it| it.is_ipv6()) { 40 + 8 } else { 20 + 8 };
    usize::try_from(range.mtu).unwrap_or_default().saturating_sub(headers)
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

/// What the ICMP error says that a socket has received.
fn answer(socket: &UdpSocket) -> Option<Answer> {
    let (mut data, mut control) = ([0; 64], vec![0; CONTROL]);
    let mut parts = [IoSliceMut::new(&mut data)];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
    let (error, from): (_, IpAddr) = message.cmsgs().ok()?.find_map(|it| match it {
        ControlMessageOwned::Ipv4RecvErr(error, Some(from)) => {
            Some((error, Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes()).into()))
        }
        ControlMessageOwned::Ipv6RecvErr(error, Some(from)) => {
            Some((error, Ipv6Addr::from(from.sin6_addr.s6_addr).into()))
        }
        _ => None,
    })?;
    let is_too_large = i32::try_from(error.ee_errno).is_ok_and(|it| it == Errno::EMSGSIZE as i32);
    Some(Answer { from, too_large_for: is_too_large.then_some(error.ee_info) })
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
    fn an_answer_that_only_small_packets_get_names_the_size_that_does_not_pass() {
        let from: IpAddr = "192.0.2.2".parse().unwrap();
        let noted = |too_large_for, after| {
            let mut range = NodeRange { mtu: 1450, ..NodeRange::default() };
            note("b", &[from], &mut range, &Answer { from, too_large_for }, after);
            (range.answered_us, range.no_answer_because)
        };
        assert_eq!(noted(None, Some(Duration::from_micros(7))), (Some(7), String::new()));
        let (after, text) = noted(None, None);
        assert!(after.is_none() && text.starts_with("small packets get through, packets of 1450"), "{text}");
        let (after, text) = noted(Some(1400), Some(Duration::from_micros(7)));
        assert!(
            after.is_none() && text.contains("refuses a packet of 1450 bytes as larger than 1400"),
            "{text}"
        );
    }

    #[test]
    fn datagrams_fill_the_mtu() {
        let of =
            |range: &str, mtu| payload(&NodeRange { range: range.to_owned(), mtu, ..NodeRange::default() });
        assert_eq!((of("10.0.0.0/24", 1500), of("fd00::/64", 1500), of("fd00::/64", 0)), (1472, 1452, 0));
    }

    #[test]
    fn silence_names_what_may_be_in_the_way() {
        let range =
            |way: Way| NodeRange { way: way.into(), to: "192.0.2.7".to_owned(), ..NodeRange::default() };
        let text = silent("b", &range(Way::Vxlan));
        assert!(text.starts_with("none within 4.5s: ") && text.contains("UDP port (tunnel_port)"), "{text}");
        assert!(silent("b", &range(Way::Direct)).contains("ping 192.0.2.7"));
    }
}
