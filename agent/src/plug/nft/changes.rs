//! Notifications about changes of the agent's tables.

use std::io;

use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt::RcvBufForce},
};
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, TokioSocket, protocols::NETLINK_NETFILTER};

use super::{
    super::netlink::borrow,
    host_ports_table, masquerade_table,
    nfnetlink::Attribute,
    numbers::{INET, OF_TABLE},
};

/// A subscription in the network namespace of the thread that opened it.
pub struct Changes {
    socket: TokioSocket,
    message: Vec<u8>,
}

/// Bytes. Others' transactions may have thousands of rules.
const BUFFER: usize = 1 << 20;
/// Bytes: larger than the kernel's datagrams (`NLMSG_GOODSIZE` in `linux/netlink.h`).
const DATAGRAM: usize = 16 * 1024;
/// `NFNLGRP_NFTABLES` in `linux/netfilter/nfnetlink.h`.
const GROUP: u32 = 7;

// === impl Changes ===

impl Changes {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
        socket.socket_mut().bind_auto()?;
        socket.socket_mut().add_membership(GROUP)?;
        setsockopt(&borrow(socket.socket_ref()), RcvBufForce, &BUFFER)?;
        Ok(Self { socket, message: Vec::with_capacity(DATAGRAM) })
    }

    /// Waits for the next change of a table, or until the kernel has dropped notifications. Cancel safe.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            self.message.clear();
            match self.socket.recv(&mut self.message).await {
                Ok(()) if is_about_tables(&self.message) => return Ok(()),
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The kernel puts several notifications into one datagram.
fn is_about_tables(datagram: &[u8]) -> bool {
    let names = [masquerade_table::NAME, host_ports_table::NAME].map(|it| Attribute::text(OF_TABLE, it));
    let mut rest = datagram;
    while let Some(length) = rest.first_chunk::<4>().map(|it| u32::from_ne_bytes(*it) as usize) {
        let whole = rest.get(..length).unwrap_or(rest);
        let is_ours = |attributes| names.iter().any(|name| name.is_in(attributes));
        if whole.get(16) == Some(&INET) && whole.get(20..).is_some_and(is_ours) {
            return true;
        }
        rest = rest.get(length.next_multiple_of(4).max(16)..).unwrap_or_default();
    }
    // The buffer ends before the datagram.
    datagram.len() >= DATAGRAM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_about_other_tables_are_ignored() {
        let of = |family: u8, name: &str| {
            let mut attributes = Vec::new();
            Attribute::text(OF_TABLE, name).encode(&mut attributes);
            let length = u32::try_from(20 + attributes.len()).unwrap();
            [&length.to_ne_bytes()[..], &[0; 12], &[family, 0, 0, 0], &attributes].concat()
        };
        assert!(is_about_tables(&of(1, "ferrule")) && is_about_tables(&of(1, "ferrule-ports")));
        assert!(!is_about_tables(&of(2, "ferrule")), "of the family ip");
        assert!(!is_about_tables(&of(1, "ferrule2")) && !is_about_tables(&[]));
        assert!(is_about_tables(&[of(1, "kube-proxy"), of(1, "ferrule")].concat()));
        let many = of(1, "kube-proxy").repeat(DATAGRAM);
        assert!(is_about_tables(&many[..DATAGRAM]), "the rest is unknown");
    }
}
