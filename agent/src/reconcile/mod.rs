//! Bringing the registry and the kernel together at start, before anyone can call.

use std::collections::HashMap;

use anyhow::Context as _;
use nix::errno::Errno;

use crate::{
    cni::Node,
    plug::{self, netlink::Socket, reaper, stamp::Stamp, veth},
    registry::State,
    vif::Addresses,
};

/// Takes the attachments over that an earlier agent made, and undoes what it left half done. Interfaces without
/// our stamp are not touched.
///
/// # Errors
/// If the kernel or the store refuses.
pub fn recover(node: &Node) -> anyhow::Result<()> {
    let mut host = Socket::open()?;
    let stamped = plug::stamped_links(&mut host).context("cannot list the interfaces that are ours")?;
    let mut live = HashMap::new();
    for attachment in node.registry.list() {
        let link = attachment.host.as_ref().map(|host| host.ifindex);
        let stamp = Stamp::of(&attachment.key);
        match link {
            Some(ifindex) if attachment.state == State::Attached && stamped.get(&ifindex) == Some(&stamp) => {
                reattach(node, &mut host, ifindex)
                    .with_context(|| format!("cannot replace the filters of {}", attachment.key))?;
                node.dataplane.insert(ifindex, &attachment)?;
                live.insert(ifindex, attachment.vif.addresses);
            }
            _ => node.remove_now(&attachment).with_context(|| format!("cannot undo {}", attachment.key))?,
        }
    }
    let orphans: Vec<_> = stamped.iter().filter(|(ifindex, _)| !live.contains_key(ifindex)).collect();
    for (ifindex, stamp) in &orphans {
        tracing::warn!(ifindex, %stamp, "an interface of ours belongs to no attachment: deleting it");
        veth::bury(**ifindex, stamp, Addresses::default())?;
    }
    node.dataplane.retain(&live)?;
    reaper::reap_at_start()?;
    tracing::info!(attachments = live.len(), orphans = orphans.len(), "took over from an earlier agent");
    Ok(())
}

/// Puts this agent's programs in the place of the earlier one's; no packet passes between the two unchecked.
fn reattach(node: &Node, host: &mut Socket, ifindex: u32) -> Result<(), plug::netlink::NetlinkError> {
    match host.batch(vec![plug::filter::qdisc(ifindex)]) {
        Err(error) if !error.is(Errno::EEXIST) => return Err(error),
        _ => {}
    }
    host.batch(plug::filter::replace(ifindex, node.dataplane.filters()).into()).map(drop)
}
