//! Deleting the host's interface of an attachment, by the alias that it carries.
//!
//! Two messages of rtnetlink(7), which is why there is no library for it in a program that is started for every pod.
//! With the interface go its routes, its filters and the pod's end. What the dataplane's maps have of it leads nowhere
//! then, and the agent sweeps it out when it starts.

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

/// The interfaces of this network namespace.
pub(super) struct Links(OwnedFd);

/// The kernel's answer, one message after the other.
struct Messages<'a>(&'a [u8]);

/// A message: `struct nlmsghdr` in `linux/netlink.h`, and what follows.
struct Message<'a> {
    kind: u16,
    flags: u16,
    payload: &'a [u8],
}

/// How long the kernel may take: deleting an interface waits for what still uses it.
const DEADLINE_SECONDS: i64 = 10;
/// Larger than what the kernel puts into one answer to a dump (`NLMSG_GOODSIZE`, at most 32 KiB).
const ANSWER: usize = 64 * 1024;
/// How often a list is asked for again in which something came or went meanwhile.
const DUMPS: usize = 20;

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
/// Size of `struct ifinfomsg`; its index is at 4.
const IFINFOMSG: usize = 16;
/// `linux/if_link.h`.
const IFLA_IFALIAS: u16 = 20;
const IFLA_EXT_MASK: u16 = 29;
/// Statistics are most of an answer.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

// === impl Links ===

impl Links {
    /// Opens a way to the kernel.
    ///
    /// # Errors
    /// If it gives none.
    pub(super) fn open() -> io::Result<Self> {
        let (family, protocol) = (AddressFamily::Netlink, SockProtocol::NetlinkRoute);
        let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(DEADLINE_SECONDS))?;
        Ok(Self(socket))
    }

    /// The interfaces with an alias, by index.
    ///
    /// # Errors
    /// If the kernel refuses to tell, or something comes or goes all the time.
    pub(super) fn find(&mut self, alias: &str) -> io::Result<Vec<u32>> {
        for _ in 0..DUMPS {
            let mut found = Vec::new();
            let flags = request(&self.0, RTM_GETLINK, NLM_F_DUMP, 0, &skip_stats(), |link| {
                found.extend(index_of(link).filter(|_| has_alias(link, alias)));
            })?;
            if flags & NLM_F_DUMP_INTR == 0 {
                return Ok(found);
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "interfaces come and go all the time"))
    }

    /// Deletes interfaces. Those that are gone are fine.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn delete(&mut self, indices: &[u32]) -> io::Result<()> {
        for index in indices {
            match request(&self.0, RTM_DELLINK, NLM_F_ACK, *index, &[], |_| {}) {
                // It went with its pod.
                Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => {}
                result => result.map(drop)?,
            }
        }
        Ok(())
    }
}

/// Sends a request and hands each link of the answer on. Gives the flags of all of its messages.
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
    // Sequence number and port: one request at a time, and the kernel knows who asks.
    message.extend([0; 8]);
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(attributes);
    sendto(socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;

    let mut answer = vec![0; ANSWER];
    let mut seen = 0;
    loop {
        let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        for Message { kind, flags, payload } in Messages(answer.get(..length).unwrap_or_default()) {
            seen |= flags;
            match kind {
                NLMSG_DONE => return Ok(seen),
                NLMSG_ERROR => {
                    let code = number(payload, 0).map_or(0, u32::cast_signed);
                    return if code == 0 { Ok(seen) } else { Err(io::Error::from_raw_os_error(-code)) };
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
        let length = usize::try_from(number(self.0, 0)?).ok()?;
        let kind = half(self.0, 4)?;
        let flags = half(self.0, 6)?;
        let payload = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, flags, payload })
    }
}

fn index_of(link: &[u8]) -> Option<u32> {
    number(link, 4)
}

fn has_alias(link: &[u8], alias: &str) -> bool {
    let mut attributes = link.get(IFINFOMSG..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
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

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A link as the kernel tells it: index 7, with a name before its alias.
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
    fn an_interface_is_known_by_the_whole_of_its_alias() {
        let link = link("ferrule:net:a:eth0");
        assert!(has_alias(&link, "ferrule:net:a:eth0") && index_of(&link) == Some(7));
        for other in ["ferrule:net:a:eth", "ferrule:net:a:eth00", "", "fr0"] {
            assert!(!has_alias(&link, other), "{other}");
        }
    }

    #[test]
    fn the_kernel_is_asked_and_has_no_such_interface() {
        let mut links = Links::open().unwrap();
        assert!(links.find("ferrule:no-such-network:no-such-container:eth0").unwrap().is_empty());
        links.delete(&[u32::MAX >> 1]).unwrap();
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic_or_run_for_ever(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Messages(&bytes).count() <= bytes.len());
            has_alias(&bytes, "x");
        }
    }
}
