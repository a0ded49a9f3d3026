//! Answers of DHCP servers: a pod that sends them could take over the configuration of machines on its path.

use agent_common::DropReason;
use aya_ebpf::Global;

use crate::{
    headers::UDP,
    meta::{Family, Meta},
};

/// Whether pods may serve DHCP: not 0 if they may.
#[unsafe(no_mangle)]
static DHCP_SERVERS: Global<u8> = Global::new(0);

/// Clients' ports (RFC 2131, 4.1; RFC 8415, 7.2). Clients look at no other: a server may send from any port.
const DHCP: u16 = 68;
const DHCPV6: u16 = 546;

/// # Errors
/// `DhcpServer`, if the packet goes to a client's port.
#[inline(always)]
pub fn check(meta: &Meta) -> Result<(), DropReason> {
    if meta.protocol != UDP {
        return Ok(());
    }
    let client = match meta.family {
        Family::Ipv4 => DHCP,
        Family::Ipv6 => DHCPV6,
    };
    let is_answer = meta.transport().is_some_and(|transport| {
        let [_, destination] = transport.ports();
        destination == client
    });
    if is_answer && DHCP_SERVERS.load() == 0 { Err(DropReason::DhcpServer) } else { Ok(()) }
}
