//! Deletes the host interface of an attachment, found by its ownership stamp (alias).
//!
//! A kind of VIF without a stamped host link has nothing to delete here: its devices go with the pod's
//! namespace, and the agent removes the record when it applies the deferred DEL.
//!
//! Hand-written, because two rtnetlink(7) requests do not justify a library in a program that starts for
//! every pod. The kernel deletes the interface's routes, filters and peer along with it. The agent removes
//! the stale map entries when it starts.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt,
            socket, sockopt::ReceiveTimeout,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

/// A rtnetlink socket in this network namespace.
pub(super) struct Links(OwnedFd);

/// Iterates over the messages of a datagram.
struct Messages<'a>(&'a [u8]);

/// Fields of `struct nlmsghdr` in `linux/netlink.h`, and the payload.
struct Message<'a> {
    kind: u16,
    flags: u16,
    payload: &'a [u8],
}

/// Deleting an interface waits for the last reference to it.
const DEADLINE_SECONDS: i64 = 10;
/// Bytes. A datagram of a dump has at most 32 KiB (`NLMSG_GOODSIZE`).
const BUFFER_SIZE: usize = 64 * 1024;
/// Retry budget for dumps that a concurrent change interrupts.
const MAX_DUMPS: usize = 20;

/// Size of `struct nlmsghdr`.
const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// `linux/rtnetlink.h`.
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
/// Size of `struct ifinfomsg`; `ifi_index` is at offset 4.
const IFINFOMSG: usize = 16;
/// `linux/if_link.h`.
const IFLA_IFALIAS: u16 = 20;
const IFLA_EXT_MASK: u16 = 29;
/// Omits the statistics of IPv6, hundreds of bytes of each link.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

// === impl Links ===

impl Links {
    /// Opens the socket.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn open() -> io::Result<Self> {
        let (family, protocol) = (AddressFamily::Netlink, SockProtocol::NetlinkRoute);
        let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(DEADLINE_SECONDS))?;
        Ok(Self(socket))
    }

    /// Returns the indices of the interfaces with an alias.
    ///
    /// # Errors
    /// If the kernel refuses, or if concurrent changes interrupt every dump of the retry budget.
    pub(super) fn find(&mut self, alias: &str) -> io::Result<Vec<u32>> {
        for _ in 0..MAX_DUMPS {
            let mut found = Vec::new();
            let flags = request(&self.0, RTM_GETLINK, NLM_F_DUMP, 0, &skip_stats(), |link| {
                found.extend(index_of(link).filter(|_| has_alias(link, alias)));
            })?;
            if flags & NLM_F_DUMP_INTR == 0 {
                return Ok(found);
            }
        }
        let why = format!("listing interfaces: all {MAX_DUMPS} dumps interrupted by concurrent changes");
        Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
    }

    /// Deletes interfaces. Idempotent.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn delete(&mut self, indices: &[u32]) -> io::Result<()> {
        for index in indices {
            match request(&self.0, RTM_DELLINK, NLM_F_ACK, *index, &[], |_| {}) {
                // Deleted meanwhile, along with the pod's namespace.
                Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => {}
                result => result.map(drop)?,
            }
        }
        Ok(())
    }
}

/// Sends a request and passes each link of the response to `link`. Returns the flags of all messages,
/// combined.
fn request(
    socket: &OwnedFd,
    kind: u16,
    flags: u16,
    index: u32,
    attributes: &[u8],
    mut link: impl FnMut(&[u8]),
) -> io::Result<u16> {
    let length = HEADER + IFINFOMSG + attributes.len();
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number and port ID: not needed with one request at a time.
    message.extend([0; 8]);
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(attributes);
    sendto(socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;

    let mut buffer = vec![0; BUFFER_SIZE];
    let mut all_flags = 0;
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        for Message { kind, flags, payload } in Messages(buffer.get(..length).unwrap_or_default()) {
            all_flags |= flags;
            match kind {
                NLMSG_DONE => return Ok(all_flags),
                NLMSG_ERROR => {
                    let code = u32_at(payload, 0).map_or(0, u32::cast_signed);
                    return if code == 0 { Ok(all_flags) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                RTM_NEWLINK => link(payload),
                _ => {}
            }
        }
    }
}

// === impl Messages ===

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = usize::try_from(u32_at(self.0, 0)?).ok()?;
        let kind = u16_at(self.0, 4)?;
        let flags = u16_at(self.0, 6)?;
        let payload = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, flags, payload })
    }
}

fn index_of(link: &[u8]) -> Option<u32> {
    u32_at(link, 4)
}

fn has_alias(link: &[u8], alias: &str) -> bool {
    let mut attributes = link.get(IFINFOMSG..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        let Some(value) = attributes.get(4..length) else { return false };
        if kind == IFLA_IFALIAS {
            return value.strip_suffix(&[0]).unwrap_or(value) == alias.as_bytes();
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

fn skip_stats() -> [u8; 8] {
    let [a, b] = 8u16.to_ne_bytes();
    let [c, d] = IFLA_EXT_MASK.to_ne_bytes();
    let [e, f, g, h] = RTEXT_FILTER_SKIP_STATS.to_ne_bytes();
    [a, b, c, d, e, f, g, h]
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The payload of RTM_NEWLINK: index 7, with a name before the alias.
    fn link(alias: &str) -> Vec<u8> {
        let mut link = vec![0; IFINFOMSG];
        link[4] = 7;
        for (kind, value) in [(3u16, "fr0"), (IFLA_IFALIAS, alias)] {
            let length = u16::try_from(4 + value.len() + 1).unwrap();
            link.extend(length.to_ne_bytes());
            link.extend(kind.to_ne_bytes());
            link.extend(value.as_bytes());
            link.extend(vec![0; usize::from(length).next_multiple_of(4) - usize::from(length) + 1]);
        }
        link
    }

    #[test]
    fn interface_matches_by_its_whole_alias() {
        let link = link("ferrule:net:a:eth0");
        assert!(has_alias(&link, "ferrule:net:a:eth0") && index_of(&link) == Some(7));
        for other in ["ferrule:net:a:eth", "ferrule:net:a:eth00", "", "fr0"] {
            assert!(!has_alias(&link, other), "{other}");
        }
    }

    #[test]
    fn kernel_has_no_interface_with_an_unknown_alias() {
        let mut links = Links::open().unwrap();
        assert!(links.find("ferrule:no-such-network:no-such-container:eth0").unwrap().is_empty());
        links.delete(&[u32::MAX >> 1]).unwrap();
    }

    #[test]
    fn the_kernel_lists_the_loopback_interface() {
        let Links(socket) = Links::open().unwrap();
        let mut indices = Vec::new();
        let flags = request(&socket, 18, 0x300, 0, &skip_stats(), |link| indices.extend(index_of(link)));
        assert!(indices.contains(&1), "{indices:?}");
        // NLM_F_MULTI: the answer has several messages.
        assert_eq!(flags.unwrap() & 0x2, 0x2);
    }

    #[test]
    fn statistics_are_left_out_of_a_dump() {
        let Links(socket) = Links::open().unwrap();
        let loopback = |attributes: &[u8]| {
            let mut bytes = 0;
            let list = |link: &[u8]| bytes += if index_of(link) == Some(1) { link.len() } else { 0 };
            request(&socket, 18, 0x300, 0, attributes, list).unwrap();
            bytes
        };
        let (all, asked) = (loopback(&[]), loopback(&skip_stats()));
        // IFLA_INET6_STATS alone has more than 30 counters of 8 bytes.
        assert!(asked > 0 && asked + 240 < all, "{asked} of {all} bytes");
    }

    proptest! {
        #[test]
        fn malformed_response_neither_panics_nor_loops(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Messages(&bytes).count() <= bytes.len());
            has_alias(&bytes, "x");
        }
    }
}
