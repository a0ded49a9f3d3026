//! Packets that leave this node by an uplink or the tunnel: notes what the stack has translated for a pod of
//! this node, so that the replies of a remote pod pass the stack, too.

use crate::{
    endpoints, flows,
    headers::Ethernet,
    meta::{Meta, Sender},
    nodes,
    packet::{Packet, Stamp},
};

/// The program runs for every packet that the node sends. Only `from_pod` stamps a packet as checked: one
/// that the stack may have translated.
#[inline(always)]
pub fn note(packet: &Packet<'_>) {
    if !packet.has_stamp(Stamp::Checked) {
        return;
    }
    let Ok(ethernet) = packet.header::<Ethernet>(0) else { return };
    let Ok(meta) = Meta::parse(packet, u16::from_be_bytes(ethernet.ethertype), Sender::Stack) else { return };
    // A masqueraded packet has the node's source, and its replies come to the node.
    let Some(client) = endpoints::interface(meta.source) else { return };
    if nodes::find(meta.destination).is_some_and(agent_common::NodeEntry::is_remote_range) {
        flows::record(packet, &meta, client.get(), flows::REMOTE);
    }
}
