//! Ports of netlink by which the agent knows the notifications of its own transactions.
//!
//! The kernel names the port of the socket that made a change (`nlmsg_pid`). A port of the kernel's choice is
//! mostly the number of the process, which is another one in each PID namespace, so that a foreign program
//! could have the agent's.

use std::{
    io,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use rtnetlink::sys::{Socket, SocketAddr};

/// What all ports of this process begin with: a random number with the highest bit, which no number of a
/// process has.
static BEGIN: LazyLock<u32> = LazyLock::new(|| (fastrand::u32(..) | 1 << 31) & !LAST);
static NEXT: AtomicU32 = AtomicU32::new(0);
/// The bits that differ. More sockets than that never exist at once: an operation has one, and at most eight
/// run.
const LAST: u32 = 0xff;

/// Gives a socket a port of the agent.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn bind(socket: &mut Socket) -> io::Result<()> {
    let mut refused = io::ErrorKind::AddrInUse.into();
    for _ in 0..=LAST {
        let port = *BEGIN | NEXT.fetch_add(1, Ordering::Relaxed) & LAST;
        match socket.bind(&SocketAddr::new(port, 0)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
            bound => return bound,
        }
    }
    Err(refused)
}

pub(super) fn is_own(port: u32) -> bool {
    port & !LAST == *BEGIN
}

#[cfg(test)]
mod tests {
    use rtnetlink::sys::protocols::NETLINK_NETFILTER;

    use super::*;

    fn port_of(socket: &Socket) -> u32 {
        let mut address = SocketAddr::new(0, 0);
        socket.get_address(&mut address).unwrap();
        address.port_number()
    }

    #[test]
    fn sockets_have_different_ports_of_the_agent_also_after_256_others() {
        let mut first = Socket::new(NETLINK_NETFILTER).unwrap();
        bind(&mut first).unwrap();
        assert!(is_own(port_of(&first)));
        for _ in 0..300 {
            let mut other = Socket::new(NETLINK_NETFILTER).unwrap();
            bind(&mut other).unwrap();
            assert!(is_own(port_of(&other)));
            assert_ne!(port_of(&other), port_of(&first));
        }
    }

    #[test]
    fn ports_of_the_kernels_choice_and_of_processes_are_foreign() {
        let mut foreign = Socket::new(NETLINK_NETFILTER).unwrap();
        foreign.bind_auto().unwrap();
        assert!(!is_own(port_of(&foreign)) && !is_own(0) && !is_own(std::process::id()));
        assert!(!is_own(*BEGIN ^ 0x100));
    }
}
