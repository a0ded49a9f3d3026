//! nfnetlink: dumps of netfilter's objects, and transactions of nftables.
//!
//! rtnetlink's crates do not encode nftables, and those that do start `nft`, link C libraries, or lack
//! `masquerade`. An object is a tree of attributes; the same tree is sent, and compared with the kernel's.

use std::{io, ops::ControlFlow, time::Duration};

use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt::SndBufForce},
};
use rtnetlink::{
    packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST},
    sys::{SocketAddr, protocols::NETLINK_NETFILTER},
};

use super::{
    super::{
        message::{Attribute, ERROR, Message, encode, encode_all, messages},
        netlink::{NetlinkError, borrow, hint, set_receive_timeout},
        raw,
    },
    numbers::{INET, NEW_RULE},
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
/// Bytes of `struct nfgenmsg`, which precedes the attributes.
const GENERIC: usize = 4;
/// For the answer to a transaction. The kernel commits within the send, which waits without a bound for the
/// commit lock, as route changes do for RTNL.
const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes: larger than any transaction of the agent.
const SEND_BUFFER: usize = 4 << 20;
/// Bounds a dump.
const DATAGRAMS: usize = 1024;

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

// === impl Change ===

impl Change {
    /// Creates an object in a table of the family `inet`.
    pub(super) fn create(what: String, kind: u16, attributes: Vec<Attribute>) -> Self {
        let flags = if kind == NEW_RULE { NLM_F_CREATE | NLM_F_APPEND } else { NLM_F_CREATE };
        Self { what, kind, flags, family: INET, attributes }
    }
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
    let request = message(NFTABLES << 8 | kind, NLM_F_DUMP, 0, family, attributes);
    let found = raw::dump(&raw::open(NETLINK_NETFILTER)?, &request, DATAGRAMS, |all: &mut Vec<_>, it| {
        all.extend(object(it).map(|(family, object)| (family, object.to_vec())));
        ControlFlow::Continue(())
    });
    or_nothing(found)
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
    let request = message(subsystem << 8 | kind, NLM_F_DUMP, 0, family, attributes);
    let visited = raw::visit(&raw::open(NETLINK_NETFILTER)?, &request, datagrams, |it| {
        object(it).into_iter().for_each(|(_, object)| each(object));
        ControlFlow::Continue(())
    });
    or_nothing(visited.map(drop))
}

/// Without the subsystem the kernel answers EINVAL, and without the object ENOENT.
fn or_nothing<T: Default>(found: io::Result<T>) -> io::Result<T> {
    let is_missing = |error: &io::Error| {
        [Errno::EINVAL, Errno::ENOENT].iter().any(|it| error.raw_os_error() == Some(*it as i32))
    };
    found.or_else(|error| if is_missing(&error) { Ok(T::default()) } else { Err(error) })
}

/// Makes one change of another subsystem.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn change((subsystem, kind, family): (u16, u16, u8), attributes: &[Attribute]) -> io::Result<()> {
    let request = message(subsystem << 8 | kind, NLM_F_ACK, 0, family, attributes);
    raw::change(&raw::open(NETLINK_NETFILTER)?, &request)
}

/// Makes all changes in one transaction, or none.
///
/// # Errors
/// The first change that the kernel refuses.
pub(super) fn commit(changes: &[Change]) -> Result<(), NetlinkError> {
    let whole = |source| NetlinkError::new("change nftables", source);
    let mut socket = raw::open(NETLINK_NETFILTER).map_err(whole)?;
    own_port::bind(&mut socket).map_err(whole)?;
    set_receive_timeout(&socket, COMMIT_DEADLINE).map_err(whole)?;
    setsockopt(&borrow(&socket), SndBufForce, &SEND_BUFFER).map_err(|errno| whole(errno.into()))?;
    socket.send_to(&batch(changes), &SocketAddr::new(0, 0), 0).map_err(whole)?;
    let (mut pending, mut failure) = (changes.len(), None);
    while pending > 0 {
        let datagram = raw::receive(&socket).map_err(whole)?;
        for message in messages(&datagram).filter(|it| it.kind == ERROR) {
            pending = pending.saturating_sub(1);
            if let Some(Err(source)) = message.end().filter(|_| failure.is_none()) {
                // An error of the transaction as a whole has the number of its beginning.
                let number = (message.sequence as usize).checked_sub(1);
                let of = number.and_then(|index| changes.get(index));
                pending = if of.is_some() { pending } else { 0 };
                let failed = NetlinkError::new(of.map_or("change nftables", |it| it.what.as_str()), source);
                let hint = message.body().get(4..).and_then(|header| hint(message.flags, header));
                failure = Some(hint.into_iter().fold(failed, NetlinkError::with_hint));
            }
        }
    }
    if failure.is_none() {
        crash::point(Step::NetlinkChanged);
    }
    failure.map_or(Ok(()), Err)
}

fn batch(changes: &[Change]) -> Vec<u8> {
    // `res_id` in `struct nfgenmsg` names the subsystem, in network byte order.
    let [high, low] = NFTABLES.to_be_bytes();
    let edge = |kind, sequence| encode((kind, NLM_F_REQUEST, sequence), &[0, 0, high, low]);
    let mut bytes = edge(BATCH_BEGIN, 0);
    let mut sequence = 0;
    for Change { kind, flags, family, attributes, .. } in changes {
        sequence += 1;
        bytes.extend(message(NFTABLES << 8 | kind, NLM_F_ACK | flags, sequence, *family, attributes));
    }
    bytes.extend(edge(BATCH_END, sequence + 1));
    bytes
}

fn message(kind: u16, flags: u16, sequence: u32, family: u8, attributes: &[Attribute]) -> Vec<u8> {
    // Family, version and resource of `struct nfgenmsg`.
    let body = [&[family, 0, 0, 0][..], &encode_all(attributes)].concat();
    encode((kind, NLM_F_REQUEST | flags, sequence), &body)
}

fn object<'a>(message: &Message<'a>) -> Option<(u8, &'a [u8])> {
    message.body().split_first_chunk::<GENERIC>().map(|([family, ..], attributes)| (*family, attributes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_begins_and_ends_with_nftables_as_its_subsystem() {
        let change = Change { what: String::new(), kind: 3, flags: 0x400, family: 1, attributes: Vec::new() };
        let bytes = batch(&[change]);
        let kinds: Vec<_> = messages(&bytes).map(|it| (it.kind, it.flags, it.sequence)).collect();
        assert_eq!(kinds, [(16, 1, 0), (10 << 8 | 3, 0x405, 1), (17, 1, 2)]);
        for edge in [0, 40] {
            assert_eq!(bytes[edge + 16..edge + 20], [0, 0, 0, 10]);
        }
        assert_eq!(bytes.len(), 60);
    }
}
