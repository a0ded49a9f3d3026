//! A `PACKET_TX_RING`: packets whose bytes lie in memory that the sender still writes to, until the kernel
//! copies them (since Linux 4.20, before they leave the sender's namespace).

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    ptr::{self, NonNull},
};

use anyhow::ensure;
use ferrule_tests::sys;
use nix::{
    errno::Errno,
    libc,
    sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, sendto, socket},
};

/// The ring of a packet socket: one block of frames, which the kernel sends in turn.
pub(crate) struct TxRing {
    socket: OwnedFd,
    memory: NonNull<u8>,
    next: usize,
}

/// `linux/if_packet.h`, as are the names below.
const TPACKET_V2: libc::c_int = 1;
const TP_STATUS_SEND_REQUEST: u32 = 1;
const FRAMES: usize = 8;
const FRAME: usize = 2048;
/// Of the packet in its frame: behind `struct tpacket2_hdr`.
const DATA: usize = 32;

// === impl TxRing ===

#[expect(unsafe_code, reason = "the ring is memory that is shared with the kernel")]
impl TxRing {
    /// A ring in a network namespace.
    ///
    /// # Errors
    /// If the kernel refuses the ring.
    pub(crate) fn open(netns: &Path) -> anyhow::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = sys::in_netns(netns, || {
            Ok(socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?)
        })?;
        let request = libc::tpacket_req {
            tp_block_size: (FRAMES * FRAME) as u32,
            tp_block_nr: 1,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: FRAMES as u32,
        };
        set(&socket, libc::PACKET_VERSION, &TPACKET_V2)?;
        set(&socket, libc::PACKET_TX_RING, &request)?;
        let (length, access) = (FRAMES * FRAME, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, of the ring's length.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, socket.as_raw_fd(), 0) };
        ensure!(memory != libc::MAP_FAILED, "cannot map the ring: {}", Errno::last());
        let Some(memory) = NonNull::new(memory.cast()) else { anyhow::bail!("the ring is at address 0") };
        Ok(Self { socket, memory, next: 0 })
    }

    /// Sends a packet, and overwrites its bytes in the ring when the kernel has taken it.
    ///
    /// # Errors
    /// If the kernel does not send the packet.
    pub(crate) fn send_and_overwrite(
        &mut self,
        packet: &[u8],
        to: &LinkAddr,
        byte: u8,
    ) -> anyhow::Result<()> {
        ensure!(packet.len() <= FRAME - DATA, "{} bytes do not fit into a frame", packet.len());
        // SAFETY: in bounds of the mapping: the packet fits into a frame. The kernel reads what it sends.
        unsafe {
            let frame = self.memory.as_ptr().add(self.next % FRAMES * FRAME);
            ptr::copy_nonoverlapping(packet.as_ptr(), frame.add(DATA), packet.len());
            // The length, and then the status.
            frame.add(4).cast::<u32>().write_volatile(packet.len() as u32);
            frame.cast::<u32>().write_volatile(TP_STATUS_SEND_REQUEST);
            // Without a wait for the receiver, which still holds the packet.
            let sent = sendto(self.socket.as_raw_fd(), &[], to, MsgFlags::MSG_DONTWAIT)?;
            ensure!(sent == packet.len(), "{sent} of {} bytes sent", packet.len());
            ptr::write_bytes(frame.add(DATA), byte, packet.len());
        }
        self.next += 1;
        Ok(())
    }
}

#[expect(unsafe_code, reason = "unmaps the memory of `open`")]
impl Drop for TxRing {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and not used any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), FRAMES * FRAME) };
    }
}

#[expect(unsafe_code, reason = "nix does not know the options of packet sockets")]
fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> anyhow::Result<()> {
    // SAFETY: the kernel reads the value, which has the given size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    Ok(Errno::result(result).map(drop)?)
}
