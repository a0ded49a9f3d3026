//! A packet socket on an interface of a network namespace, for frames that no kernel would send.

use std::{
    fs,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use nix::{
    errno::Errno,
    libc,
    sys::{
        socket::{
            AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike as _, bind,
            recv, sendto, setsockopt, socket,
            sockopt::{RcvBufForce, ReceiveTimeout},
        },
        time::{TimeVal, TimeValLike as _},
    },
};

use crate::{packet::Mac, sys};

/// `linux/if_packet.h`.
const PACKET_VNET_HDR: libc::c_int = 15;

/// Sends and receives frames on one interface.
#[derive(Debug)]
pub struct Wire {
    socket: OwnedFd,
    link: LinkAddr,
}

// === impl Wire ===

impl Wire {
    /// # Errors
    /// If the namespace has no such interface.
    pub fn open(netns: &Path, interface: &str) -> anyhow::Result<Self> {
        sys::in_netns(netns, || {
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
            let link = link(interface)?;
            bind(socket.as_raw_fd(), &link)?;
            Ok(Self { socket, link })
        })
    }

    /// A socket for [`Self::send_unsummed`].
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_unsummed(netns: &Path, interface: &str) -> anyhow::Result<Self> {
        let wire = Self::open(netns, interface)?;
        let on: libc::c_int = 1;
        #[expect(unsafe_code, reason = "nix does not know the option")]
        // SAFETY: the kernel reads the value, which has the given size.
        let set = unsafe {
            let value = (&raw const on).cast();
            let len = size_of::<libc::c_int>() as libc::socklen_t;
            libc::setsockopt(wire.socket.as_raw_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, value, len)
        };
        Errno::result(set).context("cannot give frames a header")?;
        Ok(wire)
    }

    /// Sends a frame that leaves a checksum to the hardware: that of all from `start` on, to be written
    /// `offset` bytes behind `start` (`struct virtio_net_hdr`).
    ///
    /// # Errors
    /// If the kernel refuses the frame.
    pub fn send_unsummed(&self, frame: &[u8], start: u16, offset: u16) -> anyhow::Result<()> {
        // The flag "needs a checksum", and no segmentation.
        let header = [1, 0, 0, 0, 0, 0];
        let places = [start, offset].map(u16::to_ne_bytes).concat();
        self.send(&[&header, &places[..], frame].concat())
    }

    /// Sets the size of the receive buffer, in bytes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn make_room(&self, bytes: usize) -> anyhow::Result<()> {
        Ok(setsockopt(&self.socket, RcvBufForce, &bytes)?)
    }

    /// # Errors
    /// If the kernel refuses the frame.
    pub fn send(&self, frame: &[u8]) -> anyhow::Result<()> {
        let sent = sendto(self.socket.as_raw_fd(), frame, &self.link, MsgFlags::empty())?;
        ensure!(sent == frame.len(), "{sent} of {} bytes sent", frame.len());
        Ok(())
    }

    /// The first frame that satisfies a condition; `None` if none arrives for a while.
    ///
    /// # Errors
    /// If the socket cannot be read.
    pub fn receive(
        &self,
        patience: Duration,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let patience = TimeVal::milliseconds(i64::try_from(patience.as_millis())?);
        setsockopt(&self.socket, ReceiveTimeout, &patience)?;
        loop {
            let mut frame = vec![0; 1 << 16];
            match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                Ok(len) => frame.truncate(len),
                Err(nix::errno::Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            if is_wanted(&frame) {
                return Ok(Some(frame));
            }
        }
    }
}

/// The MAC of an interface of this namespace.
///
/// # Errors
/// If there is no such interface.
pub fn mac(interface: &str) -> anyhow::Result<Mac> {
    link(interface)?.addr().with_context(|| format!("{interface} has no MAC"))
}

/// The address of an interface of this namespace, for a packet socket.
///
/// # Errors
/// If there is no such interface.
pub fn link(name: &str) -> anyhow::Result<LinkAddr> {
    let found = nix::ifaddrs::getifaddrs()?
        .filter(|interface| interface.interface_name == name)
        .find_map(|interface| interface.address?.as_link_addr().copied());
    let link = found.with_context(|| format!("there is no interface {name}"))?;
    ensure!(link.family() == Some(AddressFamily::Packet));
    Ok(link)
}

/// Turns the check of source addresses of this namespace's IPv4 packets off, as many nodes have it.
///
/// # Errors
/// If the kernel has no such setting.
pub fn disable_rp_filter() -> anyhow::Result<()> {
    for interface in sys::file_names("/proc/sys/net/ipv4/conf")? {
        fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "0")?;
    }
    Ok(())
}
