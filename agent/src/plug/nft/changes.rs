//! Notifications about changes of the agent's tables that others make.

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
    own_port,
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

    /// Waits for the next change of a table by another program, or until the kernel has dropped
    /// notifications. Cancel safe.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            self.message.clear();
            match self.socket.recv(&mut self.message).await {
                Ok(()) if changes_tables(&self.message) => return Ok(()),
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether another program has changed a table of the agent. The kernel puts several notifications into one
/// datagram, each with the port of the change.
fn changes_tables(datagram: &[u8]) -> bool {
    let names = [masquerade_table::NAME, host_ports_table::NAME].map(|it| Attribute::text(OF_TABLE, it));
    let mut rest = datagram;
    while let Some(length) = rest.first_chunk::<4>().map(|it| u32::from_ne_bytes(*it) as usize) {
        let whole = rest.get(..length).unwrap_or(rest);
        let is_ours = |attributes| names.iter().any(|name| name.is_in(attributes));
        let port = whole.get(12..).and_then(|it| it.first_chunk()).map(|it| u32::from_ne_bytes(*it));
        let is_foreign = !port.is_some_and(own_port::is_own);
        if is_foreign && whole.get(16) == Some(&INET) && whole.get(20..).is_some_and(is_ours) {
            return true;
        }
        rest = rest.get(length.next_multiple_of(4).max(16)..).unwrap_or_default();
    }
    // The buffer ends before the datagram.
    datagram.len() >= DATAGRAM
}

#[cfg(test)]
mod tests {
    use rtnetlink::sys::{Socket, SocketAddr};

    use super::*;

    #[test]
    fn changes_of_the_agent_are_ignored_and_those_of_others_beside_them_are_not() {
        let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
        own_port::bind(&mut socket).unwrap();
        let mut own = SocketAddr::new(0, 0);
        socket.get_address(&mut own).unwrap();
        let by = |port: u32| {
            let mut attributes = Vec::new();
            Attribute::text(OF_TABLE, "ferrule-ports").encode(&mut attributes);
            let length = u32::try_from(20 + attributes.len()).unwrap();
            let head = [&length.to_ne_bytes()[..], &[0; 8], &port.to_ne_bytes(), &[INET, 0, 0, 0]].concat();
            [head, attributes].concat()
        };
        let own = own.port_number();
        assert!(!changes_tables(&by(own)) && changes_tables(&by(4242)));
        assert!(!changes_tables(&[by(own), by(own)].concat()));
        assert!(
            changes_tables(&[by(own), by(4242)].concat()) && changes_tables(&[by(4242), by(own)].concat())
        );
        assert!(changes_tables(&by(0)), "the kernel itself");
    }

    #[test]
    fn notifications_about_other_tables_are_ignored() {
        let of = |family: u8, name: &str| {
            let mut attributes = Vec::new();
            Attribute::text(OF_TABLE, name).encode(&mut attributes);
            let length = u32::try_from(20 + attributes.len()).unwrap();
            [&length.to_ne_bytes()[..], &[0; 12], &[family, 0, 0, 0], &attributes].concat()
        };
        assert!(changes_tables(&of(1, "ferrule")) && changes_tables(&of(1, "ferrule-ports")));
        assert!(!changes_tables(&of(2, "ferrule")), "of the family ip");
        assert!(!changes_tables(&of(1, "ferrule2")) && !changes_tables(&[]));
        assert!(changes_tables(&[of(1, "kube-proxy"), of(1, "ferrule")].concat()));
        let many = of(1, "kube-proxy").repeat(DATAGRAM);
        assert!(changes_tables(&many[..DATAGRAM]), "the rest is unknown");
    }
}
