//! The carrier of an interface, by an ioctl of ethtool.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use ferrule_proto::names::IfName;

/// Makes the kernel look at an interface's carrier at once: `ETHTOOL_GLINK` calls `linkwatch_sync_dev`.
///
/// # Errors
/// If the socket's namespace has no interface of that name.
#[expect(unsafe_code, reason = "nix has no wrapper for the ioctls of interfaces")]
pub(super) fn sync(socket: BorrowedFd<'_>, ifname: &IfName) -> nix::Result<()> {
    /// `struct ethtool_value` in `linux/ethtool.h`.
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    /// `struct ifreq` in `linux/if.h`, which ends in a union of 24 bytes.
    #[repr(C)]
    struct Named {
        name: [u8; 16],
        value: *mut Value,
        rest: [u8; 16],
    }
    const ETHTOOL_GLINK: u32 = 0x0a;
    // `SIOCETHTOOL` in `linux/sockios.h`.
    nix::ioctl_readwrite_bad!(ethtool, 0x8946, Named);

    let mut value = Value { command: ETHTOOL_GLINK, data: 0 };
    let mut named = Named { name: [0; 16], value: &mut value, rest: [0; 16] };
    // The terminating zero stays: a name has at most 15 bytes.
    named.name.iter_mut().zip(ifname.as_str().bytes()).for_each(|(to, from)| *to = from);
    // SAFETY: the kernel reads the name and the command, and writes to these two structures only; both
    // outlive the call.
    unsafe { ethtool(socket.as_raw_fd(), &mut named) }.map(drop)
}
