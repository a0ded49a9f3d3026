//! All deviations of an inventory: of each attachment, of the node, and orphans.

use std::collections::HashMap;

use super::{
    attachment::desired,
    deviation::{Deviation, Kind},
    diff::{Actual, PodEnd},
    inventory::Inventory,
    node::node_deviations,
    orphans::{orphans, shared_addresses},
};
use crate::{
    plug::host,
    registry::{Attachment, Key, State},
};

impl Inventory {
    /// All deviations. `before` and `after` are the attachments before and after the inventory was read: an
    /// attachment that a call works on differs between the two, and is skipped.
    pub fn deviations(&self, before: &[Attachment], after: &[Attachment]) -> Vec<Deviation> {
        let now: HashMap<&Key, &Attachment> = after.iter().map(|it| (&it.key, it)).collect();
        let unchanged: Vec<_> = before.iter().filter(|it| now.get(&it.key) == Some(it)).collect();
        let mut found: Vec<_> = unchanged.iter().flat_map(|it| self.deviations_of(it)).collect();
        found.extend(unchanged.iter().flat_map(|it| shared_addresses(it, after)));
        let known: Vec<_> = before.iter().chain(after).collect();
        found.extend(orphans(&known, self));
        found.extend(node_deviations(self));
        found
    }

    /// The deviations of an attachment's host end and map entries.
    pub fn deviations_of(&self, attachment: &Attachment) -> Vec<Deviation> {
        let attached = Some(attachment).filter(|it| it.state == State::Attached);
        let Some(desired) = attached.and_then(|it| desired(it, self.programs)) else { return Vec::new() };
        let mut found = desired.diff(&Actual {
            host: &self.host,
            entries: &self.entries,
            netns_exists: self.lost_links.contains(&attachment.key),
            pod: PodEnd::Unread,
        });
        // The node-wide setting turned off that of every interface: one deviation of the node, not one of
        // each.
        let is_node_wide = self.not_forwarded.contains(&host::IPV4);
        found.retain(|it| !(is_node_wide && it.kind == Kind::LinkForwarding));
        found
    }
}
