//! Messages of netlink and their attributes, as bytes.
//!
//! rtnetlink's crates encode and decode what they know; this is for the rest: netfilter, IPsec, the tunnel's
//! filter of networks, and what is read before, or instead of, a decoder.

use std::{io, iter};

use rtnetlink::packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE, NlaBuffer, NlasIterator};

/// One message of a datagram.
pub(super) struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// Of the socket that has sent the request, or caused the notification.
    pub port: u32,
    /// With the header.
    pub bytes: &'a [u8],
    /// Whether the message is as long as its header says.
    pub is_whole: bool,
}

/// An attribute with a value, or with further attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attribute {
    Value(u16, Vec<u8>),
    Nest(u16, Vec<Attribute>),
}

/// `NLMSG_ERROR` and `NLMSG_DONE` in `linux/netlink.h`.
pub(super) const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLMSG_MIN_TYPE` in `linux/netlink.h`: smaller types are not about objects.
pub(super) const FIRST_OBJECT: u16 = 16;
/// Length of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;

// === impl Message ===

impl<'a> Message<'a> {
    /// What follows the header.
    pub(super) fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER..).unwrap_or_default()
    }

    /// The result of a request, if this is its end: an acknowledgement, a refusal, or the end of a dump, also
    /// of one that failed half way.
    pub(super) fn end(&self) -> Option<io::Result<()>> {
        matches!(self.kind, ERROR | DONE).then(|| {
            let code = self.body().first_chunk().ok_or_else(cut_off)?;
            match i32::from_ne_bytes(*code) {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(code.saturating_abs())),
            }
        })
    }
}

// === impl Attribute ===

impl Attribute {
    /// A number of netfilter, in network byte order.
    pub(super) fn number(kind: u16, value: u32) -> Self {
        Self::Value(kind, value.to_be_bytes().to_vec())
    }

    pub(super) fn text(kind: u16, value: &str) -> Self {
        Self::Value(kind, [value.as_bytes(), &[0]].concat())
    }

    /// Whether attributes of the kernel contain this one. The kernel adds attributes of its own.
    pub(super) fn is_in(&self, found: &[u8]) -> bool {
        let (Self::Value(kind, _) | Self::Nest(kind, _)) = self;
        attributes_of(found).filter(|it| it.kind() == *kind).any(|it| match self {
            Self::Value(_, value) => it.value() == value.as_slice(),
            Self::Nest(_, inner) => inner.iter().all(|inner| inner.is_in(it.value())),
        })
    }

    fn encode_into(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend([0; 4]);
        let kind = match self {
            Self::Value(kind, value) => {
                bytes.extend(value);
                *kind
            }
            Self::Nest(kind, inner) => {
                inner.iter().for_each(|it| it.encode_into(bytes));
                kind | NLA_F_NESTED
            }
        };
        // The caller divides what may be longer; the kernel refuses a wrong length.
        let length = u16::try_from(bytes.len() - start).unwrap_or(u16::MAX);
        let head = length.to_ne_bytes().into_iter().chain(kind.to_ne_bytes());
        bytes.iter_mut().skip(start).zip(head).for_each(|(to, from)| *to = from);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

/// Cuts a datagram into messages. The last one may be cut off.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    iter::from_fn(move || {
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] =
            *rest.first_chunk::<HEADER>()?;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let bytes = rest.get(..length).filter(|it| it.len() >= HEADER).unwrap_or(rest);
        rest = rest.get(length.next_multiple_of(4).max(HEADER)..).unwrap_or_default();
        Some(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            port: u32::from_ne_bytes([p0, p1, p2, p3]),
            bytes,
            is_whole: bytes.len() == length,
        })
    })
}

/// A message without a port, which the kernel takes from the socket.
pub(super) fn encode((kind, flags, sequence): (u16, u16, u32), body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut message = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()].concat();
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(body);
    message.resize(message.len().next_multiple_of(4), 0);
    message
}

/// Attributes behind each other.
pub(super) fn encode_all(attributes: &[Attribute]) -> Vec<u8> {
    let mut bytes = Vec::new();
    attributes.iter().for_each(|it| it.encode_into(&mut bytes));
    bytes
}

/// Attributes behind each other, without what is malformed.
pub(super) fn attributes_of(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).flatten()
}

/// The value of a nested attribute.
pub(super) fn find<'a>(bytes: &'a [u8], path: &[u16]) -> Option<&'a [u8]> {
    path.iter().try_fold(bytes, |bytes, kind| {
        let found = attributes_of(bytes).find(|it| it.kind() == *kind)?;
        let length = found.value_length();
        found.into_inner().get(NLA_HEADER_SIZE..)?.get(..length)
    })
}

pub(super) fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message is cut off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_nested_padded_and_in_network_byte_order() {
        let nest = Attribute::Nest(4, vec![Attribute::number(1, 4), Attribute::text(2, "ab")]);
        let bytes = encode_all(std::slice::from_ref(&nest));
        // Little-endian lengths and kinds.
        let expected: &[u8] = &[20, 0, 4, 0x80, 8, 0, 1, 0, 0, 0, 0, 4, 7, 0, 2, 0, b'a', b'b', 0, 0];
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, expected);
        }
        assert!(nest.is_in(&bytes));
        assert_eq!((find(&bytes, &[4, 2]), find(&bytes, &[4, 3])), (Some(&b"ab\0"[..]), None));
    }

    #[test]
    fn an_attribute_is_found_among_others_and_only_with_its_value() {
        let inner = vec![Attribute::number(9, 9), Attribute::number(1, 4)];
        let found = encode_all(&[Attribute::Nest(4, inner), Attribute::text(1, "other")]);
        assert!(Attribute::Nest(4, vec![Attribute::number(1, 4)]).is_in(&found));
        assert!(!Attribute::Nest(4, vec![Attribute::number(1, 5)]).is_in(&found), "another value");
        assert!(!Attribute::Nest(3, vec![]).is_in(&found), "another kind");
        assert!(!Attribute::number(1, 4).is_in(&found), "at another depth");
    }

    #[test]
    fn a_datagram_has_the_messages_that_were_encoded_and_shows_what_is_cut_off() {
        let datagram = [encode((20, 5, 7), &[1, 2, 3]), encode((21, 0, 8), &[4; 4])].concat();
        let all = |datagram: &[u8]| -> Vec<_> {
            messages(datagram).map(|it| (it.kind, it.sequence, it.body().to_vec(), it.is_whole)).collect()
        };
        let first = (20, 7, vec![1, 2, 3], true);
        assert_eq!(all(&datagram), [first.clone(), (21, 8, vec![4; 4], true)]);
        assert_eq!(all(&datagram[..38]), [first.clone(), (21, 8, vec![4; 2], false)]);
        assert_eq!(all(&datagram[..35]), [first], "no whole header");
        assert_eq!(all(&[0; HEADER]), [(0, 0, Vec::new(), false)], "a length of zero");
    }

    #[test]
    fn an_acknowledgement_and_the_end_of_a_dump_end_a_request_with_or_without_an_error() {
        let end = |kind, body: &[u8]| messages(&encode((kind, 0, 0), body)).next().unwrap().end();
        for kind in [ERROR, DONE] {
            end(kind, &[0; 4]).unwrap().unwrap();
            let refused = end(kind, &(-95_i32).to_ne_bytes()).unwrap().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(95));
            assert_eq!(end(kind, &[1]).unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert!(end(FIRST_OBJECT, &[0; 4]).is_none());
    }
}
