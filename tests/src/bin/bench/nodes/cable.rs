//! A cable between two nodes: the same underlay for every path that is compared.

use std::net::IpAddr;

use ferrule_tests::{
    fabric::underlay::{self, path},
    node::UPLINK_MTU,
    sys,
};

/// Two network namespaces below `/run/netns`, with an interface `cable` each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cable {
    pub(super) ends: [&'static str; 2],
    /// The beginnings of IPv4 and IPv6 addresses, without the end's number.
    pub(super) networks: [&'static str; 2],
}

pub(super) const INTERFACE: &str = "cable";
/// Room for the addresses of a thousand nodes.
const LENS: [u8; 2] = [16, 64];

// === impl Cable ===

impl Cable {
    /// Lays the cable, and gives both ends their addresses.
    pub(super) fn lay(&self) -> anyhow::Result<()> {
        let [one, two] = self.ends;
        sys::run(&format!(
            "ip -n {one} link add {INTERFACE} mtu {UPLINK_MTU} type veth \
             peer name {INTERFACE} mtu {UPLINK_MTU} netns {two}"
        ))?;
        for (number, end) in self.ends.iter().enumerate() {
            sys::run(&format!("ip -n {end} link set {INTERFACE} up"))?;
            for (address, len) in self.addresses(number).iter().zip(LENS) {
                sys::run(&format!("ip -n {end} addr add {address}/{len} dev {INTERFACE} nodad"))?;
            }
        }
        Ok(())
    }

    /// The node at an end, 0 or 1.
    pub(super) const fn node(&self, end: usize) -> &'static str {
        let [one, two] = self.ends;
        if end == 0 { one } else { two }
    }

    /// IPv4 and IPv6 of an end.
    pub(super) fn addresses(&self, end: usize) -> [String; 2] {
        self.networks.map(|network| format!("{network}{}", end + 1))
    }

    /// As [`Self::addresses`].
    ///
    /// # Errors
    /// If a network is not the beginning of an address.
    pub(super) fn parsed(&self, end: usize) -> anyhow::Result<[IpAddr; 2]> {
        let [v4, v6] = self.addresses(end);
        Ok([v4.parse()?, v6.parse()?])
    }
}

/// A network namespace that forwards as a node does, and nothing else.
pub(super) fn bare_node(name: &str) -> anyhow::Result<()> {
    sys::make_netns(&path(name))?;
    sys::run(&format!("ip -n {name} link set lo up"))?;
    underlay::set(name, &[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")])
}
