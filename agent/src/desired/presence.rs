//! Whether an attachment's host interface exists and is still the attachment's.

use std::collections::HashMap;

use agent_common::GATEWAY_MAC;

use crate::{
    plug::{
        host_inventory::HostLinkState,
        netns::Netns,
        reaper::{RETIRED, UNSTAMPED},
        stamp::Stamp,
    },
    registry::Attachment,
};
use ferrule_vif::Mac;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The interface carries the attachment's stamp.
    Present,
    /// The interface carries the stamp, and a DEL has retired it.
    Retired,
    /// The interface was created for the attachment, but has another alias now: not the agent's to touch.
    Restamped,
    /// There is no such interface, or a foreign one with the same index.
    Missing,
}

/// Decides by index, stamp, group and MAC. The kernel reuses an index only on request.
pub fn presence(attachment: &Attachment, links: &HashMap<u32, HostLinkState>) -> Presence {
    let link = attachment.host.stamped_link().and_then(|link| links.get(&link.ifindex));
    match link {
        Some(link) if link.stamp.as_ref() == Some(&Stamp::of(&attachment.key)) => {
            if link.group == RETIRED {
                Presence::Retired
            } else {
                Presence::Present
            }
        }
        Some(link) if link.mac == Some(Mac(GATEWAY_MAC)) && ![RETIRED, UNSTAMPED].contains(&link.group) => {
            Presence::Restamped
        }
        _ => Presence::Missing,
    }
}

/// Whether the recorded path still leads to the attachment's network namespace.
pub fn netns_exists(attachment: &Attachment) -> bool {
    Netns::open(&attachment.netns).is_ok_and(|netns| netns.id() == attachment.netns_id)
}
