//! Frees the addresses and the ports of interfaces that the rebuild left alone, once an interface is gone.

use std::collections::BTreeSet;

use crate::{
    chain::chain,
    plug::{
        netlink::{NetlinkError, Socket},
        stamp::Stamp,
        veth,
    },
    ports::HostPorts,
    registry::Registry,
};

/// Frees what belongs to interfaces that are gone, and returns how many interfaces are left. May block.
pub(super) fn free_gone(registry: &Registry, ports: &HostPorts) -> usize {
    let left = registry.left();
    let interfaces: BTreeSet<_> = left.iter().map(|it| (it.ifindex, &it.key)).collect();
    if interfaces.is_empty() {
        return 0;
    }
    let is_gone = |host: &mut Socket, ifindex, key| {
        veth::is_stamped(host, ifindex, &Stamp::of(key)).map(|is_stamped| !is_stamped)
    };
    let mut gone = 0;
    let freed = Socket::open().and_then(|mut host| {
        for (ifindex, key) in &interfaces {
            if is_gone(&mut host, *ifindex, key)? {
                tracing::info!(%key, ifindex, "an interface without a record is gone; freeing its addresses");
                if let Err(error) = ports.close(key) {
                    tracing::warn!(%key, error = chain(&error), "cannot close the interface's ports of the node; healing retries");
                }
                registry.free_left(*ifindex);
                gone += 1;
            }
        }
        Ok::<_, NetlinkError>(())
    });
    if let Err(error) = freed {
        tracing::warn!(
            error = chain(&error),
            "cannot look for the interfaces without a record; the next round retries"
        );
    }
    interfaces.len() - gone
}
