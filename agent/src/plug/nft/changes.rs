//! Notifications about changes of the agent's tables that others make.

use std::io;

use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt::RcvBufForce},
};
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, TokioSocket, protocols::NETLINK_NETFILTER};

use super::{
    super::{
        message::{Attribute, messages},
        netlink::borrow,
    },
    host_ports_table, masquerade_table,
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
    let is_concerned = messages(datagram).any(|message| match message.body() {
        [INET, _, _, _, attributes @ ..] if !own_port::is_own(message.port) => {
            names.iter().any(|name| name.is_in(attributes))
        }
        _ => false,
    });
    // Or the buffer ends before the datagram.
    is_concerned || datagram.len() >= DATAGRAM
}

#[cfg(test)]
mod tests {
    use rtnetlink::sys::{Socket, SocketAddr};

    use super::{
        super::super::message::{encode, encode_all},
        *,
    };

    /// A notification about a table.
    fn of(family: u8, name: &str) -> Vec<u8> {
        let attributes = encode_all(&[Attribute::text(OF_TABLE, name)]);
        encode((0, 0, 0), &[&[family, 0, 0, 0][..], &attributes].concat())
    }

    #[test]
    fn changes_of_the_agent_are_ignored_and_those_of_others_beside_them_are_not() {
        let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
        own_port::bind(&mut socket).unwrap();
        let mut own = SocketAddr::new(0, 0);
        socket.get_address(&mut own).unwrap();
        let by = |port: u32| {
            let mut message = of(INET, "ferrule-ports");
            message[12..16].copy_from_slice(&port.to_ne_bytes());
            message
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
        assert!(changes_tables(&of(1, "ferrule")) && changes_tables(&of(1, "ferrule-ports")));
        assert!(!changes_tables(&of(2, "ferrule")), "of the family ip");
        assert!(!changes_tables(&of(1, "ferrule2")) && !changes_tables(&[]));
        assert!(changes_tables(&[of(1, "kube-proxy"), of(1, "ferrule")].concat()));
        let many = of(1, "kube-proxy").repeat(DATAGRAM);
        assert!(changes_tables(&many[..DATAGRAM]), "the rest is unknown");
    }
}
