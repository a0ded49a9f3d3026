//! The host's policies of IPsec (`linux/xfrm.h`): packets that pass the stack by would evade them.

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

/// `XFRM_MSG_NEWPOLICY` and `XFRM_MSG_GETPOLICY`.
const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;
/// `NLMSG_ERROR` and `NLMSG_DONE` in `linux/netlink.h`, and its `NLM_F_DUMP_INTR`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const INTERRUPTED: u16 = 0x10;
/// The group `XFRMNLGRP_POLICY`, as a mask.
const GROUP: u32 = 1 << (4 - 1);
/// Bytes of `struct nlmsghdr` and of `struct xfrm_userpolicy_id`, which is zero for a dump.
const HEADER: usize = 16;
const REQUEST: usize = 64;
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

/// Whether the host has policies for packets that it sends or forwards. A kernel without IPsec has none.
///
/// # Errors
/// If the kernel refuses a dump, or changes of others interrupt every attempt.
pub fn has_policies() -> io::Result<bool> {
    let deadline = TimeVal::milliseconds(i64::try_from(DEADLINE.as_millis()).unwrap_or(i64::MAX));
    for _ in 0..DUMPS {
        // Each attempt has its own: an interrupted dump goes on.
        let socket = match Raw::new(NETLINK_XFRM) {
            Err(error) if is_missing(&error) => return Ok(false),
            socket => socket?,
        };
        setsockopt(&borrow(&socket), ReceiveTimeout, &deadline)?;
        socket.send(&request(), 0)?;
        match read(&socket)? {
            Part::Policy => return Ok(true),
            Part::Interrupted => {}
            Part::More | Part::End => return Ok(false),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Subscribes to changes of policies; `None` on a kernel without IPsec.
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

fn error(body: &[u8]) -> Option<i32> {
    body.first_chunk::<4>().map(|it| i32::from_ne_bytes(*it))
}

fn request() -> Vec<u8> {
    let mut request = vec![0; HEADER + REQUEST];
    let length = u32::try_from(request.len()).unwrap_or(u32::MAX).to_ne_bytes();
    let flags = (NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes();
    let head = length.into_iter().chain(GET_POLICY.to_ne_bytes()).chain(flags);
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
    fn the_request_is_as_long_as_its_header_says() {
        let request = request();
        assert_eq!(NetlinkBuffer::new_checked(&request[..]).unwrap().length() as usize, request.len());
    }
}
