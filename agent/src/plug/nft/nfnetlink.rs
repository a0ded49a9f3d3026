//! nfnetlink: dumps of netfilter's objects, and transactions of nftables.
//!
//! rtnetlink's crates do not encode nftables, and those that do start `nft`, link C libraries, or lack
//! `masquerade`. An object is a tree of attributes; the same tree is sent, and compared with the kernel's.

use std::{io, time::Duration};

use nix::sys::{
    socket::{
        setsockopt,
        sockopt::{ReceiveTimeout, SndBufForce},
    },
    time::{TimeVal, TimeValLike as _},
};
use rtnetlink::{
    packet_core::NlasIterator,
    sys::{Socket as Raw, SocketAddr, protocols::NETLINK_NETFILTER},
};

use super::{
    super::netlink::{NetlinkError, borrow, hint},
    numbers::{APPEND, CREATE, INET, NEW_RULE},
    own_port,
};
use crate::crash::{self, Step};

/// `NFNL_SUBSYS_NFTABLES` in `linux/netfilter/nfnetlink.h`.
const NFTABLES: u16 = 10;
/// `NFNL_SUBSYS_CTNETLINK`.
pub(super) const CONNTRACK: u16 = 1;
/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`: what is between them is one transaction.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// `NLM_F_REQUEST`, and the same with `NLM_F_ACK` or `NLM_F_DUMP`, in `linux/netlink.h`.
const REQUEST: u16 = 1;
const ACKNOWLEDGED: u16 = 5;
const DUMP: u16 = 0x301;
/// `NLM_F_DUMP_INTR`: a transaction came between the parts of a dump.
const INTERRUPTED: u16 = 0x10;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLA_F_NESTED` in `linux/netlink.h`.
pub(super) const NESTED: u16 = 1 << 15;
/// Bytes of `struct nlmsghdr`, and of `struct nfgenmsg` behind it.
const HEADER: usize = 16;
const GENERIC: usize = 4;
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
/// For the answer to a transaction. The kernel commits within the send, which waits without a bound for the
/// commit lock, as route changes do for RTNL.
const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes: larger than any datagram of a dump, and than any transaction of the agent.
const RECEIVE_BUFFER: usize = 64 * 1024;
const SEND_BUFFER: usize = 4 << 20;
/// Bounds a dump.
const DATAGRAMS: usize = 1024;
/// How often an interrupted dump is repeated.
const DUMPS: usize = 10;

/// An attribute with a value, or with further attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attribute {
    Value(u16, Vec<u8>),
    Nest(u16, Vec<Attribute>),
}

/// One change of a transaction.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// For an error: "add the set pods4".
    pub what: String,
    /// `NFT_MSG_…`.
    pub kind: u16,
    /// Beside those of every change.
    pub flags: u16,
    pub family: u8,
    pub attributes: Vec<Attribute>,
}

/// The family of an object, and its attributes.
pub(super) type Object = (u8, Vec<u8>);

/// The head of a message, and its whole length.
struct Head {
    length: usize,
    kind: u16,
    flags: u16,
    sequence: u32,
}

// === impl Change ===

impl Change {
    /// Creates an object in a table of the family `inet`.
    pub(super) fn create(what: String, kind: u16, attributes: Vec<Attribute>) -> Self {
        let flags = if kind == NEW_RULE { CREATE | APPEND } else { CREATE };
        Self { what, kind, flags, family: INET, attributes }
    }
}

// === impl Attribute ===

impl Attribute {
    /// nftables' numbers have network byte order.
    pub fn number(kind: u16, value: u32) -> Self {
        Self::Value(kind, value.to_be_bytes().to_vec())
    }

    pub fn text(kind: u16, value: &str) -> Self {
        Self::Value(kind, [value.as_bytes(), &[0]].concat())
    }

    /// Whether attributes of the kernel contain this one. The kernel adds attributes of its own.
    pub fn is_in(&self, found: &[u8]) -> bool {
        let (Self::Value(kind, _) | Self::Nest(kind, _)) = self;
        let mut same = NlasIterator::new(found).flatten().filter(|it| it.kind() == *kind);
        same.any(|it| match self {
            Self::Value(_, value) => it.value() == value.as_slice(),
            Self::Nest(_, inner) => inner.iter().all(|inner| inner.is_in(it.value())),
        })
    }

    pub fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend([0; 4]);
        let kind = match self {
            Self::Value(kind, value) => {
                into.extend(value);
                *kind
            }
            Self::Nest(kind, inner) => {
                inner.iter().for_each(|it| it.encode(into));
                kind | NESTED
            }
        };
        // The caller divides what may be longer; the kernel refuses a wrong length.
        let length = u16::try_from(into.len() - start).unwrap_or(u16::MAX);
        let head = length.to_ne_bytes().into_iter().chain(kind.to_ne_bytes());
        into.iter_mut().skip(start).zip(head).for_each(|(to, from)| *to = from);
        into.resize(into.len().next_multiple_of(4), 0);
    }
}

// === impl Head ===

impl Head {
    fn of(rest: &[u8]) -> Option<Self> {
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *rest.first_chunk::<HEADER>()?;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let (kind, flags) = (u16::from_ne_bytes([k0, k1]), u16::from_ne_bytes([f0, f1]));
        let sequence = u32::from_ne_bytes([s0, s1, s2, s3]);
        (length >= HEADER).then_some(Self { length, kind, flags, sequence })
    }
}

/// The value of a nested attribute.
pub(super) fn find(attributes: &[u8], path: &[u16]) -> Option<Vec<u8>> {
    let (first, rest) = path.split_first()?;
    let found = NlasIterator::new(attributes).flatten().find(|it| it.kind() == *first)?;
    if rest.is_empty() { Some(found.value().to_vec()) } else { find(found.value(), rest) }
}

pub(super) fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// The objects of a kind (`NFT_MSG_GET…`) that match. Nothing without nftables
/// or without the object that is asked for.
///
/// # Errors
/// If the kernel refuses, or transactions of others interrupt every attempt.
pub(super) fn dump(kind: u16, family: u8, attributes: &[Attribute]) -> io::Result<Vec<Object>> {
    let socket = open(ANSWER_DEADLINE)?;
    for _ in 0..DUMPS {
        socket.send(&message(NFTABLES << 8 | kind, DUMP, 0, family, attributes), 0)?;
        let mut found = Vec::new();
        if read_dump(&socket, DATAGRAMS, |family, object| found.push((family, object.to_vec())))? {
            return Ok(found);
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Shows each object of a kind that matches, of another subsystem. The answer has at most `datagrams`.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn visit(
    (subsystem, kind, family): (u16, u16, u8),
    attributes: &[Attribute],
    datagrams: usize,
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    let socket = open(ANSWER_DEADLINE)?;
    socket.send(&message(subsystem << 8 | kind, DUMP, 0, family, attributes), 0)?;
    read_dump(&socket, datagrams, |_, object| each(object)).map(drop)
}

/// Makes one change of another subsystem.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn change((subsystem, kind, family): (u16, u16, u8), attributes: &[Attribute]) -> io::Result<()> {
    let socket = open(ANSWER_DEADLINE)?;
    socket.send(&message(subsystem << 8 | kind, ACKNOWLEDGED, 0, family, attributes), 0)?;
    let answer = receive(&socket)?;
    match Head::of(&answer).and_then(|_| error(answer.get(HEADER..)?)) {
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => {
            crash::point(Step::NetlinkChanged);
            Ok(())
        }
    }
}

/// Returns whether the dump was whole.
fn read_dump(socket: &Raw, datagrams: usize, mut each: impl FnMut(u8, &[u8])) -> io::Result<bool> {
    let mut is_interrupted = false;
    for _ in 0..datagrams {
        let datagram = receive(socket)?;
        let mut rest = datagram.as_slice();
        while let Some(head) = Head::of(rest) {
            let body = rest.get(HEADER..head.length).ok_or(io::ErrorKind::InvalidData)?;
            is_interrupted |= head.flags & INTERRUPTED != 0;
            match (head.kind, error(body)) {
                (DONE, _) => return Ok(!is_interrupted),
                // Without nftables EINVAL, without the object ENOENT.
                (ERROR, None | Some(libc_error::EINVAL | libc_error::ENOENT)) => return Ok(true),
                (ERROR, Some(code)) => return Err(io::Error::from_raw_os_error(code)),
                _ => {
                    let (family, attributes) = (body.first().copied(), body.get(GENERIC..));
                    family.zip(attributes).into_iter().for_each(|(family, object)| each(family, object));
                }
            }
            rest = rest.get(head.length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

/// Makes all changes in one transaction, or none.
///
/// # Errors
/// The first change that the kernel refuses.
pub(super) fn commit(changes: &[Change]) -> Result<(), NetlinkError> {
    let whole = |source| NetlinkError::new("change nftables", source);
    let socket = open_with(COMMIT_DEADLINE, own_port::bind).map_err(whole)?;
    setsockopt(&borrow(&socket), SndBufForce, &SEND_BUFFER).map_err(|errno| whole(errno.into()))?;
    socket.send_to(&batch(changes), &SocketAddr::new(0, 0), 0).map_err(whole)?;
    let (mut pending, mut failure) = (changes.len(), None);
    while pending > 0 {
        let datagram = receive(&socket).map_err(whole)?;
        let mut rest = datagram.as_slice();
        while let Some(head) = Head::of(rest) {
            let body = rest.get(HEADER..head.length).unwrap_or_default();
            if head.kind == ERROR {
                pending = pending.saturating_sub(1);
                if let Some(code) = error(body).filter(|_| failure.is_none()) {
                    // An error of the transaction as a whole has the number of its beginning.
                    let number = (head.sequence as usize).checked_sub(1);
                    let of = number.and_then(|index| changes.get(index));
                    pending = if of.is_some() { pending } else { 0 };
                    let what = of.map_or("change nftables", |it| it.what.as_str());
                    let failed = NetlinkError::new(what, io::Error::from_raw_os_error(code));
                    let hint = body.get(4..).and_then(|header| hint(head.flags, header));
                    failure = Some(hint.into_iter().fold(failed, NetlinkError::with_hint));
                }
            }
            rest = rest.get(head.length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    if failure.is_none() {
        crash::point(Step::NetlinkChanged);
    }
    failure.map_or(Ok(()), Err)
}

fn batch(changes: &[Change]) -> Vec<u8> {
    // `res_id` in `struct nfgenmsg` names the subsystem, in network byte order.
    let edge = |kind, sequence| {
        let mut bytes = message(kind, REQUEST, sequence, 0, &[]);
        bytes.truncate(HEADER + 2);
        bytes.extend(NFTABLES.to_be_bytes());
        bytes
    };
    let mut bytes = edge(BATCH_BEGIN, 0);
    let mut sequence = 0;
    for Change { kind, flags, family, attributes, .. } in changes {
        sequence += 1;
        bytes.extend(message(NFTABLES << 8 | kind, ACKNOWLEDGED | flags, sequence, *family, attributes));
    }
    bytes.extend(edge(BATCH_END, sequence + 1));
    bytes
}

fn message(kind: u16, flags: u16, sequence: u32, family: u8, attributes: &[Attribute]) -> Vec<u8> {
    let mut body = Vec::new();
    attributes.iter().for_each(|it| it.encode(&mut body));
    let length = u32::try_from(HEADER + GENERIC + body.len()).unwrap_or(u32::MAX);
    let mut message = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()].concat();
    message.extend(sequence.to_ne_bytes());
    // The port; family, version and resource of `struct nfgenmsg`.
    message.extend([0, 0, 0, 0, family, 0, 0, 0]);
    message.extend(body);
    message
}

fn open(deadline: Duration) -> io::Result<Raw> {
    open_with(deadline, |socket| socket.bind_auto().map(drop))
}

fn open_with(deadline: Duration, bind: impl FnOnce(&mut Raw) -> io::Result<()>) -> io::Result<Raw> {
    let mut socket = Raw::new(NETLINK_NETFILTER)?;
    bind(&mut socket)?;
    socket.set_cap_ack(true)?;
    socket.set_ext_ack(true)?;
    let deadline = TimeVal::milliseconds(i64::try_from(deadline.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&borrow(&socket), ReceiveTimeout, &deadline)?;
    Ok(socket)
}

fn receive(socket: &Raw) -> io::Result<Vec<u8>> {
    let mut datagram = Vec::with_capacity(RECEIVE_BUFFER);
    socket.recv(&mut datagram, 0)?;
    Ok(datagram)
}

/// The error number of `NLMSG_ERROR`; `None` for an acknowledgement.
fn error(body: &[u8]) -> Option<i32> {
    let code = i32::from_ne_bytes(*body.first_chunk::<4>()?);
    (code != 0).then_some(code.wrapping_neg())
}

mod libc_error {
    use nix::errno::Errno;

    pub const EINVAL: i32 = Errno::EINVAL as i32;
    pub const ENOENT: i32 = Errno::ENOENT as i32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_nested_padded_and_in_network_byte_order() {
        let nest = Attribute::Nest(4, vec![Attribute::number(1, 4), Attribute::text(2, "ab")]);
        let mut bytes = Vec::new();
        nest.encode(&mut bytes);
        // Little-endian lengths and kinds.
        let expected: &[u8] = &[20, 0, 4, 0x80, 8, 0, 1, 0, 0, 0, 0, 4, 7, 0, 2, 0, b'a', b'b', 0, 0];
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, expected);
        }
        assert!(nest.is_in(&bytes));
    }

    #[test]
    fn an_attribute_is_found_among_others_and_only_with_its_value() {
        let mut found = Vec::new();
        let inner = vec![Attribute::number(9, 9), Attribute::number(1, 4)];
        Attribute::Nest(4, inner).encode(&mut found);
        Attribute::text(1, "other").encode(&mut found);
        assert!(Attribute::Nest(4, vec![Attribute::number(1, 4)]).is_in(&found));
        assert!(!Attribute::Nest(4, vec![Attribute::number(1, 5)]).is_in(&found), "another value");
        assert!(!Attribute::Nest(3, vec![]).is_in(&found), "another kind");
        assert!(!Attribute::number(1, 4).is_in(&found), "at another depth");
    }

    #[test]
    fn a_transaction_begins_and_ends_with_nftables_as_its_subsystem() {
        let change = Change { what: String::new(), kind: 3, flags: 0x400, family: 1, attributes: Vec::new() };
        let bytes = batch(&[change]);
        let heads: Vec<_> = (0..3).filter_map(|it| Head::of(&bytes[it * 20..])).collect();
        let kinds: Vec<_> = heads.iter().map(|it| (it.kind, it.flags, it.sequence)).collect();
        assert_eq!(kinds, [(16, 1, 0), (10 << 8 | 3, 0x405, 1), (17, 1, 2)]);
        for edge in [0, 40] {
            assert_eq!(bytes[edge + 16..edge + 20], [0, 0, 0, 10]);
        }
        assert_eq!(bytes.len(), 60);
    }

    #[test]
    fn truncated_messages_are_no_messages() {
        let whole = message(1, 1, 0, 0, &[]);
        (0..HEADER).for_each(|length| assert!(Head::of(&whole[..length]).is_none()));
        assert!(Head::of(&[0; HEADER]).is_none(), "a length of zero");
        assert_eq!((error(&[0; 4]), error(&(-2_i32).to_ne_bytes()), error(&[1])), (None, Some(2), None));
    }
}
