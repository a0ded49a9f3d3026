//! Requests whose messages rtnetlink's crates do not know.
//!
//! The kernel answers within the send, and prepares each further part of a dump within the receive, so that a
//! blocking socket waits for nothing but the kernel's locks.

use std::{io, ops::ControlFlow, time::Duration};

use rtnetlink::{
    packet_core::NLM_F_DUMP_INTR,
    sys::{Socket, SocketAddr},
};

use super::{
    message::{Message, cut_off, messages},
    netlink::set_receive_timeout,
};
use crate::crash::{self, Step};

/// For the next part of an answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// Bytes: larger than any datagram of a dump.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// How often an interrupted dump is repeated.
const DUMPS: usize = 10;

/// Opens a socket of a protocol of netlink in the network namespace of the calling thread.
///
/// # Errors
/// If the kernel refuses the socket, or has no such protocol (`EPROTONOSUPPORT`).
pub(super) fn open(protocol: isize) -> io::Result<Socket> {
    let socket = Socket::new(protocol)?;
    socket.set_cap_ack(true)?;
    socket.set_ext_ack(true)?;
    set_receive_timeout(&socket, DEADLINE)?;
    Ok(socket)
}

/// Makes one change, by a request for an acknowledgement.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn change(socket: &Socket, request: &[u8]) -> io::Result<()> {
    socket.send_to(request, &SocketAddr::new(0, 0), 0)?;
    let answer = receive(socket)?;
    let end = messages(&answer).find_map(|it| it.end());
    end.unwrap_or_else(|| Err(io::Error::other("the kernel's answer is no acknowledgement")))?;
    crash::point(Step::NetlinkChanged);
    Ok(())
}

/// Shows each message of a dump of at most `datagrams` to `each`, until that breaks; with what this attempt
/// has found. Repeats a dump in which something came or went.
///
/// # Errors
/// If the kernel refuses, or changes of others interrupt every attempt.
pub(super) fn dump<T: Default>(
    socket: &Socket,
    request: &[u8],
    datagrams: usize,
    mut each: impl FnMut(&mut T, &Message<'_>) -> ControlFlow<()>,
) -> io::Result<T> {
    for _ in 0..DUMPS {
        let mut found = T::default();
        if visit(socket, request, datagrams, |message| each(&mut found, message))? {
            return Ok(found);
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Shows each message of a dump to `each`, until that breaks. Returns whether nothing came or went meanwhile.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn visit(
    socket: &Socket,
    request: &[u8],
    datagrams: usize,
    mut each: impl FnMut(&Message<'_>) -> ControlFlow<()>,
) -> io::Result<bool> {
    socket.send(request, 0)?;
    let mut is_interrupted = false;
    for _ in 0..datagrams {
        if let Some(is_whole) = part(&receive(socket)?, &mut is_interrupted, &mut each)? {
            return Ok(is_whole);
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

/// Receives one datagram.
///
/// # Errors
/// If the socket fails, or none comes before the deadline.
pub(super) fn receive(socket: &Socket) -> io::Result<Vec<u8>> {
    let mut datagram = Vec::with_capacity(RECEIVE_BUFFER);
    socket.recv(&mut datagram, 0)?;
    Ok(datagram)
}

/// What [`visit`] returns, if a dump ends with this datagram.
fn part(
    datagram: &[u8],
    is_interrupted: &mut bool,
    mut each: impl FnMut(&Message<'_>) -> ControlFlow<()>,
) -> io::Result<Option<bool>> {
    for message in messages(datagram) {
        if !message.is_whole {
            return Err(cut_off());
        }
        *is_interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
        if let Some(end) = message.end() {
            return end.map(|()| Some(!*is_interrupted));
        }
        if each(&message).is_break() {
            return Ok(Some(true));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::{
        super::message::{ERROR, encode},
        *,
    };

    const OBJECT: u16 = 20;
    /// `NLMSG_DONE` in `linux/netlink.h`.
    const DONE: u16 = 3;

    fn read(messages: &[Vec<u8>]) -> io::Result<(Option<bool>, usize)> {
        let mut seen = 0;
        let end = part(&messages.concat(), &mut false, |message| {
            seen += 1;
            if message.body() == [7; 4] { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        Ok((end?, seen))
    }

    #[test]
    fn a_dump_ends_with_its_last_message_or_when_enough_is_known() {
        let (object, wanted) = (encode((OBJECT, 2, 1), &[1; 4]), encode((OBJECT, 2, 1), &[7; 4]));
        let done = encode((DONE, 2, 1), &[0; 4]);
        assert_eq!(read(&[]).unwrap(), (None, 0));
        assert_eq!(read(&[object.clone(), object.clone()]).unwrap(), (None, 2));
        assert_eq!(read(&[object.clone(), done.clone()]).unwrap(), (Some(true), 1));
        assert_eq!(read(&[wanted, object, done]).unwrap(), (Some(true), 1));
    }

    #[test]
    fn an_interrupted_dump_proves_nothing_and_a_refused_or_cut_off_one_is_an_error() {
        let interrupted = encode((OBJECT, 2 | NLM_F_DUMP_INTR, 1), &[1; 4]);
        let done = encode((DONE, 2, 1), &[0; 4]);
        assert_eq!(read(&[interrupted.clone(), done]).unwrap(), (Some(false), 1));
        let refused = encode((ERROR, 0, 1), &(-1_i32).to_ne_bytes());
        assert_eq!(read(&[interrupted.clone(), refused]).unwrap_err().raw_os_error(), Some(1));
        let cut = interrupted[..18].to_vec();
        assert_eq!(read(&[cut]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
