//! Whether the host links of attachments are gone.

use super::proof::Proof;
use crate::{
    chain::chain,
    plug::{
        netlink::{NetlinkError, Socket},
        stamp::Stamp,
        veth,
    },
    registry::{Attachment, HostSide},
};

pub(super) fn link_gone(group: &[Attachment]) -> Proof {
    observe(group).unwrap_or_else(|error| Proof::no(chain(&error)))
}

fn observe(group: &[Attachment]) -> Result<Proof, NetlinkError> {
    let mut host = Socket::open()?;
    for Attachment { key, host: side, .. } in group {
        let ifname = &key.ifname;
        match side {
            HostSide::Link(link) => {
                if veth::is_stamped(&mut host, link.ifindex, &Stamp::of(key))? {
                    let observed = format!("the host has the link {} ({})", link.ifname, link.ifindex);
                    return Ok(Proof::no(observed));
                }
            }
            HostSide::Unplugged => return Ok(Proof::no(format!("{ifname} is not plugged yet"))),
            HostSide::None => return Ok(Proof::no(format!("{ifname} has no host link"))),
            HostSide::Representor(port) => {
                let observed = format!("the representor {} outlives the namespace", port.ifname);
                return Ok(Proof::no(observed));
            }
        }
    }
    Ok(Proof::yes("the host has no link of it"))
}
