//! Route netlink in batches: many requests, one system call.
//!
//! The kernel processes a batch before `send` returns, so a blocking socket on a blocking thread is the
//! fastest way: a future per request would cost a wake-up each.

use std::{
    io::{self, IoSliceMut},
    os::fd::{AsRawFd, BorrowedFd},
    sync::Once,
    time::{Duration, Instant},
};

use ferrule_proto::names::IfName;
use nix::sys::{
    socket::{MsgFlags, MultiHeaders, recvmmsg, setsockopt, sockopt::ReceiveTimeout},
    time::{TimeVal, TimeValLike},
};
use rtnetlink::{
    packet_core::{
        DecodeError, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ECHO, NLM_F_EXCL,
        NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
    },
    packet_route::RouteNetlinkMessage,
    sys::{Socket as Raw, SocketAddr, protocols::NETLINK_ROUTE},
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    carrier,
    message::{FIRST_OBJECT, HEADER, Message, cut_off, find, messages},
};
use crate::{
    chain::chain,
    crash::{self, Step},
};

/// A route netlink socket. It stays in the network namespace of the thread that opened it.
pub struct Socket {
    raw: Raw,
    sequence: u32,
    /// Objects changed during a dump (`NLM_F_DUMP_INTR`), so the result may be incomplete.
    interrupted: bool,
    /// The most answers to one batch.
    limit: usize,
    /// Messages from the kernel.
    received: u64,
    /// Room for the answers to look-ups.
    room: Vec<u8>,
}

/// One request of a batch.
pub struct Request {
    /// For an error: "add the route to 10.0.0.2".
    what: String,
    message: RouteNetlinkMessage,
    flags: u16,
}

/// A batch that the kernel has processed.
struct Sent {
    /// The sequence number of the first request.
    first: u32,
    /// Of each request.
    what: Vec<String>,
    /// Whether any request may have changed something.
    changes: bool,
}

/// A failed request.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}{}", hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default())]
pub struct NetlinkError {
    what: String,
    /// The kernel's explanation (`NLMSGERR_ATTR_MSG`), or the agent's.
    hint: Option<String>,
    #[source]
    source: io::Error,
}

/// Deadline of the answers, which are ready when the request is sent. Only sending waits, for the kernel's
/// global network lock (RTNL), and that wait cannot be cancelled.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// How often an interrupted dump is restarted.
const DUMPS: usize = 10;
/// Look-ups in one system call. An answer counts as a page, or as 8 KiB where pages are larger
/// (`NLMSG_GOODSIZE` in `linux/netlink.h`), so that the socket's 208 KiB take 25 or more.
const LOOK_UPS: usize = 16;
/// Bytes: larger than any answer of the kernel.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Bytes of one object, the answer to a look-up: the kernel allocates a page for it.
const ONE_OBJECT: usize = 8 * 1024;
/// `NLM_F_ACK_TLVS` and `NLMSGERR_ATTR_MSG` in `linux/netlink.h`.
const ACK_HAS_ATTRIBUTES: u16 = 0x200;
const ATTRIBUTE_MESSAGE: u16 = 1;
/// The verb in a message type: `linux/rtnetlink.h` gives each kind of object four types in a row.
const KIND: u16 = 3;
const KIND_GET: u16 = 2;

// === impl Request ===

impl Request {
    /// Creates an object; `EEXIST` if it exists.
    pub fn create(what: impl Into<String>, message: RouteNetlinkMessage) -> Self {
        Self::new(what, message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Creates an object, or replaces the existing one.
    pub fn replace(what: impl Into<String>, message: RouteNetlinkMessage) -> Self {
        Self::new(what, message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Replaces an existing object; `ENOENT` if there is none.
    pub fn exchange(what: impl Into<String>, message: RouteNetlinkMessage) -> Self {
        Self::new(what, message, NLM_F_REPLACE)
    }

    /// Creates an object in front of equal ones, which stay.
    pub fn put_first(what: impl Into<String>, message: RouteNetlinkMessage) -> Self {
        Self::new(what, message, NLM_F_CREATE)
    }

    /// Changes, deletes or reads an existing object.
    pub fn change(what: impl Into<String>, message: RouteNetlinkMessage) -> Self {
        Self::new(what, message, 0)
    }

    fn dump(what: &str, message: RouteNetlinkMessage) -> Self {
        Self { what: what.to_owned(), message, flags: NLM_F_REQUEST | NLM_F_DUMP }
    }

    /// Requests an echo of the result: the kernel answers a request for a qdisc only by a notification.
    pub fn echoed(self) -> Self {
        Self { flags: self.flags | NLM_F_ECHO, ..self }
    }

    fn new(what: impl Into<String>, message: RouteNetlinkMessage, flags: u16) -> Self {
        Self { what: what.into(), message, flags: flags | NLM_F_REQUEST | NLM_F_ACK }
    }
}

// === impl NetlinkError ===

impl NetlinkError {
    /// Whether the kernel answered with this error.
    pub fn is(&self, errno: nix::errno::Errno) -> bool {
        self.source.raw_os_error() == Some(errno as i32)
    }

    /// Replaces the kernel's explanation.
    pub(super) fn with_hint(self, hint: String) -> Self {
        Self { hint: Some(hint), ..self }
    }

    pub(super) fn new(what: impl Into<String>, source: io::Error) -> Self {
        Self { what: what.into(), hint: None, source }
    }
}

// === impl Socket ===

impl Socket {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel refuses the socket, for lack of descriptors or memory.
    pub fn open() -> Result<Self, NetlinkError> {
        let failed = |source| NetlinkError::new("open a netlink socket", source);
        let raw = Raw::new(NETLINK_ROUTE).map_err(failed)?;
        raw.set_cap_ack(true).map_err(failed)?;
        raw.set_ext_ack(true).map_err(failed)?;
        raw.set_netlink_get_strict_chk(true).map_err(failed)?;
        set_receive_timeout(&raw, ANSWER_DEADLINE).map_err(failed)?;
        Ok(Self { raw, sequence: 0, interrupted: false, limit: usize::MAX, received: 0, room: Vec::new() })
    }

    /// Fails dumps with more objects than this: what a pod can create must not use up the agent's memory. The
    /// socket is useless after such a failure.
    pub(super) fn with_limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Sends a batch and returns the kernel's answers without the acknowledgements.
    ///
    /// The kernel processes all requests in order, also those after a failed one: a batch may hold only
    /// requests that are harmless then. A dump is alone in its batch: the kernel answers later requests
    /// before the dump ends.
    ///
    /// # Errors
    /// The first failed request.
    pub fn batch(&mut self, requests: Vec<Request>) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        let mut answers = Vec::new();
        let mut failure = None;
        self.exchange(requests, |_, answer| match answer {
            Ok(answer) => answers.push(answer),
            Err(error) => failure = failure.take().or(Some(error)),
        })?;
        failure.map_or(Ok(answers), Err)
    }

    /// Looks objects up: the kernel's first answer to each request, `None` to a refused one. As many requests
    /// in one system call as the kernel's answers fit into the socket's buffer.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn look_up(
        &mut self,
        mut requests: Vec<Request>,
    ) -> Result<Vec<Option<RouteNetlinkMessage>>, NetlinkError> {
        let mut found = Vec::with_capacity(requests.len());
        while !requests.is_empty() {
            let rest = requests.split_off(requests.len().min(LOOK_UPS));
            let first = found.len();
            found.resize_with(first + requests.len(), || None);
            self.exchange(requests, |index, answer| {
                if let (Some(place @ None), Ok(answer)) = (found.get_mut(first + index), answer) {
                    *place = Some(answer);
                }
            })?;
            requests = rest;
        }
        Ok(found)
    }

    /// Sends a batch, and passes each answer and each refusal to `each`, with its request's index. Look-ups
    /// have an answer each, and all of them are ready.
    fn exchange(
        &mut self,
        requests: Vec<Request>,
        mut each: impl FnMut(usize, Result<RouteNetlinkMessage, NetlinkError>),
    ) -> Result<(), NetlinkError> {
        let Sent { first, what: pending, changes } = self.send(requests)?;
        let last = pending.len().saturating_sub(1);
        let all = || pending.join(", ");
        let mut answers = 0;
        let mut is_complete = pending.is_empty();
        while !is_complete {
            let received = if last == 0 || changes { self.receive() } else { self.receive_many(last + 1) };
            let received = received.map_err(|source| NetlinkError::new(all(), source))?;
            if answers > self.limit {
                let source = io::Error::other(format!("there are more than {}", self.limit));
                return Err(NetlinkError::new(all(), source));
            }
            for message in received {
                self.interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                let index = message.header.sequence_number.wrapping_sub(first) as usize;
                // A late answer to an earlier batch, which passed its deadline.
                let Some(what) = pending.get(index) else { continue };
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => {
                        answers += 1;
                        each(index, Ok(answer));
                    }
                    payload => {
                        let end = end(message.header.flags, payload, what);
                        is_complete |= index == last && end.is_some();
                        if let Some(Err(error)) = end {
                            each(index, Err(error));
                        }
                    }
                }
            }
        }
        if changes {
            crash::point(Step::NetlinkChanged);
        }
        Ok(())
    }

    fn send(&mut self, requests: Vec<Request>) -> Result<Sent, NetlinkError> {
        let first = self.sequence.wrapping_add(1);
        let mut buffer = Vec::new();
        let mut pending = Vec::with_capacity(requests.len());
        let mut changes = false;
        let last = requests.len().saturating_sub(1);
        for (index, Request { what, message, flags }) in requests.into_iter().enumerate() {
            self.sequence = self.sequence.wrapping_add(1);
            let mut message = NetlinkMessage::from(message);
            // The last acknowledgement stands for all: the kernel answers in order, and reports each failure.
            message.header.flags = if index == last { flags } else { flags & !NLM_F_ACK };
            message.header.sequence_number = self.sequence;
            message.finalize();
            changes |= message.header.message_type & KIND != KIND_GET;
            let start = buffer.len();
            buffer.resize(start + message.buffer_len().next_multiple_of(4), 0);
            if let Some(room) = buffer.get_mut(start..) {
                message.serialize(room);
            }
            pending.push(what);
        }
        self.raw
            .send_to(&buffer, &SocketAddr::new(0, 0), 0)
            .map_err(|source| NetlinkError::new(pending.join(", "), source))?;
        Ok(Sent { first, what: pending, changes })
    }

    /// Reads all objects of a kind.
    ///
    /// # Errors
    /// If the kernel refuses, sends a malformed answer, or concurrent changes interrupt every attempt.
    pub fn dump(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        for _ in 0..DUMPS {
            self.interrupted = false;
            let answers = self.batch(vec![Request::dump(what, message.clone())])?;
            if !self.interrupted {
                return Ok(answers);
            }
        }
        // Changes interrupted each attempt, so every result may be incomplete.
        Err(NetlinkError::new(what, io::ErrorKind::ResourceBusy.into()))
    }

    /// Reads all objects of a kind, and passes each to `each`, undecoded, with what this attempt has found: a
    /// node may have a million.
    ///
    /// # Errors
    /// As [`Self::dump`].
    pub(super) fn scan<T: Default>(
        &mut self,
        what: &str,
        message: &RouteNetlinkMessage,
        each: impl Fn(&mut T, &[u8]),
    ) -> Result<T, NetlinkError> {
        for _ in 0..DUMPS {
            self.interrupted = false;
            let mut found = T::default();
            self.scan_once(Request::dump(what, message.clone()), |body| each(&mut found, body))?;
            if !self.interrupted {
                return Ok(found);
            }
        }
        Err(NetlinkError::new(what, io::ErrorKind::ResourceBusy.into()))
    }

    fn scan_once(&mut self, request: Request, mut each: impl FnMut(&[u8])) -> Result<(), NetlinkError> {
        let Sent { first, what, .. } = self.send(vec![request])?;
        let what = what.concat();
        let failed = |source| NetlinkError::new(what.clone(), source);
        let mut datagram = Vec::with_capacity(RECEIVE_BUFFER);
        loop {
            datagram.clear();
            self.receive_into(&mut datagram).map_err(failed)?;
            for message in messages(&datagram) {
                if !message.is_whole {
                    return Err(failed(cut_off()));
                }
                self.interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                if message.sequence != first {
                    continue;
                }
                if message.kind >= FIRST_OBJECT {
                    self.received += 1;
                    each(message.body());
                    continue;
                }
                let message = decode_one(message.bytes).map_err(malformed).map_err(failed)?;
                if let Some(result) = end(message.header.flags, message.payload, &what) {
                    return result;
                }
            }
        }
    }

    /// How many messages the kernel has sent so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Subscribes to a multicast group (`RTNLGRP_…`), for [`Self::wait`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn subscribe(&mut self, group: u32) -> Result<(), NetlinkError> {
        let failed = |source| NetlinkError::new("subscribe to notifications", source);
        self.raw.bind_auto().map_err(failed)?;
        self.raw.add_membership(group).map_err(failed)
    }

    /// Waits for the next notification, or until the deadline.
    ///
    /// # Errors
    /// If the socket fails.
    pub(super) fn wait(&mut self, deadline: Instant) -> Result<(), NetlinkError> {
        let failed = |source| NetlinkError::new("wait for a notification", source);
        set_receive_timeout(&self.raw, deadline.saturating_duration_since(Instant::now())).map_err(failed)?;
        match self.receive() {
            Err(error) if error.kind() != io::ErrorKind::TimedOut => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Activates the queue of an interface that has just got its carrier. The kernel would leave that to a
    /// worker, and drop packets until then. (`ETHTOOL_GLINK` calls `linkwatch_sync_dev`.)
    ///
    /// # Errors
    /// If the socket's namespace has no interface of that name.
    pub fn sync_carrier(&self, ifname: &IfName) -> Result<(), NetlinkError> {
        carrier::sync(borrow(&self.raw), ifname)
            .map_err(|errno| NetlinkError::new(format!("activate the queue of {ifname}"), errno.into()))
    }

    fn receive(&mut self) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
        let mut datagram = Vec::with_capacity(RECEIVE_BUFFER);
        self.receive_into(&mut datagram)?;
        let messages = decode(&datagram)?;
        self.received += messages.len() as u64;
        Ok(messages)
    }

    /// As [`Self::receive`], by one system call for several datagrams of an object each.
    fn receive_many(&mut self, most: usize) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
        self.room.resize(self.room.len().max(most * ONE_OBJECT), 0);
        let rooms = self.room.chunks_mut(ONE_OBJECT).take(most);
        let mut slices: Vec<_> = rooms.map(|it| [IoSliceMut::new(it)]).collect();
        let mut headers = MultiHeaders::<()>::preallocate(most, None);
        let flags = MsgFlags::MSG_WAITFORONE;
        let received = recvmmsg(self.raw.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None);
        let received = received.map_err(|errno| without_answer(errno.into()))?;
        let lengths: Vec<_> =
            received.map(|it| (!it.flags.contains(MsgFlags::MSG_TRUNC)).then_some(it.bytes)).collect();
        let mut messages = Vec::new();
        for (length, datagram) in lengths.into_iter().zip(self.room.chunks(ONE_OBJECT)) {
            let datagram = length.and_then(|length| datagram.get(..length)).ok_or_else(cut_off)?;
            messages.extend(decode(datagram)?);
        }
        self.received += messages.len() as u64;
        Ok(messages)
    }

    fn receive_into(&self, datagram: &mut Vec<u8>) -> io::Result<()> {
        self.raw.recv(datagram, 0).map(drop).map_err(without_answer)
    }
}

fn without_answer(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "no answer from the kernel before the deadline")
        }
        _ => error,
    }
}

/// The messages of a datagram. An object with an unknown form, of other software or a newer kernel, is
/// skipped: the agent must not fail to see its own objects because of that one.
fn decode(datagram: &[u8]) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
    let mut decoded = Vec::new();
    for Message { kind, bytes, is_whole, .. } in messages(datagram) {
        match decode_one(bytes) {
            Ok(message) => decoded.push(message),
            // Framing, and answers that end a request.
            Err(error) if kind < FIRST_OBJECT || !is_whole => return Err(malformed(error)),
            Err(error) => {
                static SKIPPED: Once = Once::new();
                SKIPPED.call_once(|| {
                    let error = chain(&error);
                    tracing::warn!(
                        kind,
                        error,
                        "skipping network objects that cannot be decoded; logged once"
                    );
                });
            }
        }
    }
    Ok(decoded)
}

fn decode_one(bytes: &[u8]) -> Result<NetlinkMessage<RouteNetlinkMessage>, DecodeError> {
    NetlinkMessage::deserialize(bytes)
}

fn malformed(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The result of a request, if this is its end: an acknowledgement, a refusal, or the end of a dump, also of
/// one that failed half way.
fn end(
    flags: u16,
    payload: NetlinkPayload<RouteNetlinkMessage>,
    what: &str,
) -> Option<Result<(), NetlinkError>> {
    match payload {
        NetlinkPayload::Error(error) if error.code.is_some() => {
            let hint = hint(flags, &error.header);
            Some(Err(NetlinkError { what: what.to_owned(), hint, source: error.to_io() }))
        }
        NetlinkPayload::Done(done) if done.code != 0 => {
            Some(Err(NetlinkError::new(what, io::Error::from_raw_os_error(done.code.abs()))))
        }
        NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => Some(Ok(())),
        _ => None,
    }
}

/// The kernel's explanation of a failure.
pub(super) fn hint(flags: u16, header: &[u8]) -> Option<String> {
    if flags & ACK_HAS_ATTRIBUTES == 0 {
        return None;
    }
    // An acknowledgement repeats the header of the request.
    let text = String::from_utf8_lossy(find(header.get(HEADER..)?, &[ATTRIBUTE_MESSAGE])?);
    Some(text.trim_end_matches('\0').to_owned())
}

/// Bounds the wait for each answer.
pub(super) fn set_receive_timeout(raw: &Raw, timeout: Duration) -> io::Result<()> {
    // A timeout of zero would wait without a limit.
    let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1);
    Ok(setsockopt(&borrow(raw), ReceiveTimeout, &TimeVal::milliseconds(millis))?)
}

#[expect(unsafe_code, reason = "netlink-sys exposes only the number of its descriptor")]
pub(super) fn borrow(raw: &Raw) -> BorrowedFd<'_> {
    // SAFETY: the socket owns the descriptor, and the result borrows the socket.
    unsafe { BorrowedFd::borrow_raw(raw.as_raw_fd()) }
}

/// Waits until a socket has something to read. The runtime polls the socket during this wait only.
#[expect(unsafe_code, reason = "tokio cannot check that the descriptor stays open")]
pub(super) async fn readable(raw: &Raw) -> io::Result<()> {
    // SAFETY: the socket owns the descriptor, and outlives the registration, which ends with this call.
    let polled = unsafe { AsyncFd::register_with_interest(borrow(raw), Interest::READABLE) }?;
    polled.readable().await?.retain_ready();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        super::message::{Attribute, ERROR, encode, encode_all},
        *,
    };

    /// `RTM_NEWLINK` with `struct ifinfomsg` of the interface 7, and an `IFLA_MTU` of a length.
    fn link(mtu: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 16];
        body[4] = 7;
        body.extend(encode_all(&[Attribute::Value(4, mtu.to_vec())]));
        encode((16, 0, 0), &body)
    }

    #[test]
    fn an_object_that_cannot_be_decoded_does_not_hide_the_others() {
        let (good, bad) = (link(&[0xdc, 5, 0, 0]), link(&[1]));
        assert!(NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bad).is_err());
        assert_eq!(decode(&[good.clone(), bad, good.clone()].concat()).unwrap().len(), 2);
        // With a truncated code: the request would seem to go on.
        decode(&[good.clone(), encode((ERROR, 0, 0), &[0])].concat()).unwrap_err();
        // A message that claims to be longer than its datagram.
        decode(&good[..good.len() - 4]).unwrap_err();
    }
}
