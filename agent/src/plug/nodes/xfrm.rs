//! The host's policies of IPsec (`linux/xfrm.h`): packets that bypass the stack would evade them.

use std::{io, ops::ControlFlow};

use nix::errno::Errno;
use rtnetlink::{
    packet_core::{NLM_F_DUMP, NLM_F_REQUEST},
    sys::{Socket, protocols::NETLINK_XFRM},
};

use super::super::{
    message::{Message, cut_off, encode, messages},
    monitor::Monitor,
    raw,
};

/// `XFRM_MSG_NEWPOLICY`, `XFRM_MSG_GETPOLICY` and `XFRM_MSG_GETDEFAULT` (Linux 5.15).
const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;
const GET_DEFAULT: u16 = 0x28;
/// The group `XFRMNLGRP_POLICY`, as a mask.
const GROUP: u32 = 1 << (4 - 1);
/// Bytes of `struct xfrm_userpolicy_id` and of `struct xfrm_userpolicy_default`, which are zero in requests.
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
/// Bounds a dump without a policy of the host.
const DATAGRAMS: usize = 1024;

/// What the host has for packets that it sends or forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    Policies,
    /// Packets without a policy are dropped.
    BlockingDefault,
}

/// What judges packets that the host sends or forwards; `None` on a kernel without IPsec, too.
///
/// # Errors
/// If the kernel refuses an answer, or changes of others interrupt every attempt.
pub fn find() -> io::Result<Option<Judge>> {
    let Some(socket) = unless_missing(raw::open(NETLINK_XFRM))? else { return Ok(None) };
    if has_policies(&socket)? {
        return Ok(Some(Judge::Policies));
    }
    Ok(blocks_by_default(&socket)?.then_some(Judge::BlockingDefault))
}

fn has_policies(socket: &Socket) -> io::Result<bool> {
    raw::dump(socket, &request(GET_POLICY, NLM_F_DUMP, ID), DATAGRAMS, |has_one, message| {
        *has_one = counts(message);
        if *has_one { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// Whether packets without a policy are dropped.
fn blocks_by_default(socket: &Socket) -> io::Result<bool> {
    socket.send(&request(GET_DEFAULT, 0, DEFAULT), 0)?;
    is_blocked(&raw::receive(socket)?)
}

/// Subscribes to changes of policies, default ones included; `None` on a kernel without IPsec.
///
/// # Errors
/// If the kernel refuses the socket.
pub fn changes() -> io::Result<Option<Monitor>> {
    unless_missing(Monitor::of(NETLINK_XFRM, GROUP))
}

/// `None` on a kernel without IPsec.
fn unless_missing<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if error.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Whether a message is about a policy for packets that leave or are forwarded.
fn counts(message: &Message<'_>) -> bool {
    message.kind == NEW_POLICY && matches!(message.body().get(DIRECTION), Some(&OUT | &FORWARD))
}

/// `struct xfrm_userpolicy_default`: for packets that arrive, are forwarded, leave.
fn is_blocked(datagram: &[u8]) -> io::Result<bool> {
    let message = messages(datagram).next().ok_or_else(cut_off)?;
    match (message.kind, message.body(), message.end()) {
        (GET_DEFAULT, [_, forwarded, sent, ..], _) => Ok([forwarded, sent].contains(&&BLOCK)),
        // Before Linux 5.15, there are none.
        (_, _, Some(Err(error))) if error.raw_os_error() == Some(Errno::EINVAL as i32) => Ok(false),
        (_, _, Some(Err(error))) => Err(error),
        _ => Err(cut_off()),
    }
}

fn request(kind: u16, flags: u16, body: usize) -> Vec<u8> {
    encode((kind, NLM_F_REQUEST | flags, 0), &vec![0; body])
}

#[cfg(test)]
mod tests {
    use super::{super::super::message::ERROR, *};

    #[test]
    fn policies_of_packets_that_leave_or_are_forwarded_count_and_others_do_not() {
        for (direction, expected) in [(0, false), (1, true), (2, true), (4, false)] {
            // As the kernel sends one: `struct xfrm_userpolicy_info` (168 bytes) and an attribute.
            let mut body = vec![0; 168];
            body[160] = direction;
            body.extend([8, 0, 16, 0, 0, 0, 0, 0]);
            let message = encode((NEW_POLICY, 2, 0), &body);
            assert_eq!(messages(&message).any(|it| counts(&it)), expected, "{direction}");
        }
        assert!(!messages(&encode((NEW_POLICY, 2, 0), &[1; 160])).any(|it| counts(&it)), "too short");
    }

    #[test]
    fn default_policies_count_if_they_block_what_leaves_or_is_forwarded() {
        for (values, expected) in
            [([2, 2, 2], false), ([1, 2, 2], false), ([2, 1, 2], true), ([2, 2, 1], true), ([0; 3], false)]
        {
            let answer = encode((GET_DEFAULT, 0, 0), &values);
            assert_eq!(is_blocked(&answer).unwrap(), expected, "{values:?}");
        }
        let refused = |code: i32| is_blocked(&encode((ERROR, 0, 0), &code.to_ne_bytes()));
        assert!(!refused(-22).unwrap(), "a kernel without default policies");
        assert_eq!(refused(-1).unwrap_err().raw_os_error(), Some(1));
        assert!(is_blocked(&[]).is_err());
    }
}
