//! The host's policies of IPsec (`linux/xfrm.h`): packets that bypass the stack would evade them.

use std::{io, time::Duration};

use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt::ReceiveTimeout},
        time::{TimeVal, TimeValLike as _},
    },
};
use rtnetlink::{
    packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer},
    sys::{Socket as Raw, protocols::NETLINK_XFRM},
};

use super::super::{monitor::Monitor, netlink::borrow};

/// `XFRM_MSG_NEWPOLICY`, `XFRM_MSG_GETPOLICY` and `XFRM_MSG_GETDEFAULT` (Linux 5.15).
const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;
const GET_DEFAULT: u16 = 0x28;
/// `NLMSG_ERROR` and `NLMSG_DONE` in `linux/netlink.h`, and its `NLM_F_DUMP_INTR`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const INTERRUPTED: u16 = 0x10;
/// The group `XFRMNLGRP_POLICY`, as a mask.
const GROUP: u32 = 1 << (4 - 1);
/// Bytes of `struct nlmsghdr`, of `struct xfrm_userpolicy_id` and of `struct xfrm_userpolicy_default`, which
/// are zero in requests.
const HEADER: usize = 16;
const ID: usize = 64;
const DEFAULT: usize = 3;
/// `XFRM_USERPOLICY_BLOCK`.
const BLOCK: u8 = 1;
/// The offset of `dir` in `struct xfrm_userpolicy_info`: behind the selector (56), the lifetimes (64 and 32),
/// priority and index.
const DIRECTION: usize = 56 + 64 + 32 + 4 + 4;
/// `XFRM_POLICY_OUT` and `XFRM_POLICY_FWD`. Policies of single sockets have numbers above.
const OUT: u8 = 1;
const FORWARD: u8 = 2;
const DEADLINE: Duration = Duration::from_secs(2);
/// Bytes: larger than any datagram of a dump.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Bound a dump without a policy of the host, and its repetitions.
const DATAGRAMS: usize = 1024;
const DUMPS: usize = 10;

/// What the host has for packets that it sends or forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    Policies,
    /// Packets without a policy are dropped.
    BlockingDefault,
}

/// What a datagram of a dump says.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// The host has a policy.
    Policy,
    /// More follows.
    More,
    End,
    /// A policy came or went between the parts.
    Interrupted,
}

/// What judges packets that the host sends or forwards; `None` on a kernel without IPsec, too.
///
/// # Errors
/// If the kernel refuses an answer, or changes of others interrupt every attempt.
pub fn find() -> io::Result<Option<Judge>> {
    if has_policies()? {
        return Ok(Some(Judge::Policies));
    }
    Ok(blocks_by_default()?.then_some(Judge::BlockingDefault))
}

fn has_policies() -> io::Result<bool> {
    for _ in 0..DUMPS {
        // Each attempt has its own: an interrupted dump goes on.
        let Some(socket) = open()? else { return Ok(false) };
        socket.send(&request(GET_POLICY, NLM_F_DUMP, ID), 0)?;
        match read(&socket)? {
            Part::Policy => return Ok(true),
            Part::Interrupted => {}
            Part::More | Part::End => return Ok(false),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Whether packets without a policy are dropped.
fn blocks_by_default() -> io::Result<bool> {
    let Some(socket) = open()? else { return Ok(false) };
    socket.send(&request(GET_DEFAULT, 0, DEFAULT), 0)?;
    let mut datagram = Vec::with_capacity(RECEIVE_BUFFER);
    socket.recv(&mut datagram, 0)?;
    is_blocked(&datagram)
}

/// `None` on a kernel without IPsec.
fn open() -> io::Result<Option<Raw>> {
    let socket = match Raw::new(NETLINK_XFRM) {
        Err(error) if is_missing(&error) => return Ok(None),
        socket => socket?,
    };
    let deadline = TimeVal::milliseconds(i64::try_from(DEADLINE.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&borrow(&socket), ReceiveTimeout, &deadline)?;
    Ok(Some(socket))
}

/// Subscribes to changes of policies, default ones included; `None` on a kernel without IPsec.
///
/// # Errors
/// If the kernel refuses the socket.
pub fn changes() -> io::Result<Option<Monitor>> {
    match Monitor::of(NETLINK_XFRM, GROUP) {
        Err(error) if is_missing(&error) => Ok(None),
        monitor => monitor.map(Some),
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32)
}

fn read(socket: &Raw) -> io::Result<Part> {
    let mut datagram = Vec::with_capacity(RECEIVE_BUFFER);
    for _ in 0..DATAGRAMS {
        datagram.clear();
        socket.recv(&mut datagram, 0)?;
        match part(&datagram)? {
            Part::More => {}
            end => return Ok(end),
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

fn part(mut rest: &[u8]) -> io::Result<Part> {
    let mut is_interrupted = false;
    while let Ok(message) = NetlinkBuffer::new_checked(rest) {
        is_interrupted |= message.flags() & INTERRUPTED != 0;
        match (message.message_type(), error(message.payload())) {
            (ERROR, Some(code)) if code != 0 => {
                return Err(io::Error::from_raw_os_error(code.saturating_abs()));
            }
            (ERROR | DONE, _) => {
                return Ok(if is_interrupted { Part::Interrupted } else { Part::End });
            }
            (NEW_POLICY, _) if matches!(message.payload().get(DIRECTION), Some(&OUT | &FORWARD)) => {
                return Ok(Part::Policy);
            }
            _ => {}
        }
        rest = rest.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(if is_interrupted { Part::Interrupted } else { Part::More })
}

/// `struct xfrm_userpolicy_default`: for packets that arrive, are forwarded, leave.
fn is_blocked(datagram: &[u8]) -> io::Result<bool> {
    let cut_off = || io::Error::from(io::ErrorKind::InvalidData);
    let message = NetlinkBuffer::new_checked(datagram).map_err(|_| cut_off())?;
    match (message.message_type(), message.payload()) {
        (GET_DEFAULT, [_, forwarded, sent, ..]) => Ok([forwarded, sent].contains(&&BLOCK)),
        // Before Linux 5.15, there are none.
        (ERROR, body) if error(body) == Some(-(Errno::EINVAL as i32)) => Ok(false),
        (ERROR, body) => Err(error(body).map_or_else(cut_off, |it| io::Error::from_raw_os_error(-it))),
        _ => Err(cut_off()),
    }
}

fn error(body: &[u8]) -> Option<i32> {
    body.first_chunk::<4>().map(|it| i32::from_ne_bytes(*it))
}

fn request(kind: u16, flags: u16, body: usize) -> Vec<u8> {
    let mut request = vec![0; HEADER + body];
    let length = u32::try_from(request.len()).unwrap_or(u32::MAX).to_ne_bytes();
    let head = length.into_iter().chain(kind.to_ne_bytes()).chain((NLM_F_REQUEST | flags).to_ne_bytes());
    request.iter_mut().zip(head).for_each(|(to, from)| *to = from);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + body.len()).unwrap();
        let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
        [&head[..], body].concat()
    }

    /// As the kernel sends one: `struct xfrm_userpolicy_info` (168 bytes) and an attribute.
    fn policy(direction: u8) -> Vec<u8> {
        let mut body = vec![0; 168];
        body[160] = direction;
        body.extend([8, 0, 16, 0, 0, 0, 0, 0]);
        message(NEW_POLICY, 2, &body)
    }

    #[test]
    fn policies_of_packets_that_leave_or_are_forwarded_count_and_others_do_not() {
        let done = message(DONE, 2, &[0; 4]);
        for (direction, expected) in [(0, Part::End), (1, Part::Policy), (2, Part::Policy), (4, Part::End)] {
            let datagram = [policy(0), policy(direction), done.clone()].concat();
            assert_eq!(part(&datagram).unwrap(), expected, "{direction}");
        }
        assert_eq!(part(&policy(0)).unwrap(), Part::More);
        assert_eq!(part(&[]).unwrap(), Part::More);
    }

    #[test]
    fn an_interrupted_dump_proves_nothing_and_a_refused_one_is_an_error() {
        let interrupted = [policy(0), message(DONE, 2 | INTERRUPTED, &[0; 4])].concat();
        assert_eq!(part(&interrupted).unwrap(), Part::Interrupted);
        let refused = message(ERROR, 0, &(-1_i32).to_ne_bytes());
        assert_eq!(part(&refused).unwrap_err().raw_os_error(), Some(1));
        let cut = policy(1);
        assert_eq!(part(&cut[..100]).unwrap(), Part::More, "a message that is cut off is none");
    }

    #[test]
    fn a_request_is_as_long_as_its_header_says() {
        for request in [request(GET_POLICY, NLM_F_DUMP, ID), request(GET_DEFAULT, 0, DEFAULT)] {
            assert_eq!(NetlinkBuffer::new_checked(&request[..]).unwrap().length() as usize, request.len());
        }
    }

    #[test]
    fn default_policies_count_if_they_block_what_leaves_or_is_forwarded() {
        for (values, expected) in
            [([2, 2, 2], false), ([1, 2, 2], false), ([2, 1, 2], true), ([2, 2, 1], true), ([0; 3], false)]
        {
            let answer = message(GET_DEFAULT, 0, &values);
            assert_eq!(is_blocked(&answer).unwrap(), expected, "{values:?}");
        }
        let refused = |code: i32| is_blocked(&message(ERROR, 0, &code.to_ne_bytes()));
        assert!(!refused(-22).unwrap(), "a kernel without default policies");
        assert_eq!(refused(-1).unwrap_err().raw_os_error(), Some(1));
        assert!(is_blocked(&[]).is_err());
    }
}
