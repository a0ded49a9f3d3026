//! Which attachment is behind an interface or an address: an index for those who explain packets, so that a
//! packet costs no walk over all attachments.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ferrule_vif::Addresses;

use super::{attachment::Attachment, host_side::HostLink, key::Key};
use crate::cluster::PodRef;

/// An attachment, as far as a packet needs an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub key: Key,
    pub pod: PodRef,
    pub addresses: Addresses,
    /// `None` until the host interface exists.
    pub link: Option<HostLink>,
    /// See [`Attachment::created_since_boot_ns`].
    pub since_boot_ns: u64,
    /// See [`Attachment::generation`].
    pub generation: u32,
}

/// The owners of all interfaces and addresses.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by_ifindex: HashMap<u32, Arc<Owner>>,
    by_address: HashMap<IpAddr, Arc<Owner>>,
}

// === impl Owners ===

impl Owners {
    pub(super) fn behind(&self, ifindex: u32) -> Option<Arc<Owner>> {
        self.by_ifindex.get(&ifindex).cloned()
    }

    /// Those with an interface, in no particular order.
    pub(super) fn all(&self) -> Vec<Arc<Owner>> {
        self.by_ifindex.values().cloned().collect()
    }

    pub(super) fn of_address(&self, address: IpAddr) -> Option<Arc<Owner>> {
        self.by_address.get(&address).cloned()
    }

    pub(super) fn add(&mut self, attachment: &Attachment) {
        let owner = Arc::new(Owner::from(attachment));
        for address in owner.addresses.iter() {
            self.by_address.insert(address, Arc::clone(&owner));
        }
        if let Some(link) = &owner.link {
            self.by_ifindex.insert(link.ifindex, Arc::clone(&owner));
        }
    }

    /// Keeps what has become another attachment's.
    pub(super) fn remove(&mut self, attachment: &Attachment) {
        let is_its = |owner: &Arc<Owner>| owner.key == attachment.key;
        for address in attachment.vif.addresses.iter() {
            if self.by_address.get(&address).is_some_and(is_its) {
                self.by_address.remove(&address);
            }
        }
        if let Some(ifindex) = attachment.host.ifindex()
            && self.by_ifindex.get(&ifindex).is_some_and(is_its)
        {
            self.by_ifindex.remove(&ifindex);
        }
    }
}

// === impl Owner ===

impl From<&Attachment> for Owner {
    fn from(attachment: &Attachment) -> Self {
        Self {
            key: attachment.key.clone(),
            pod: attachment.pod.clone(),
            addresses: attachment.vif.addresses,
            link: attachment.host.device().cloned(),
            since_boot_ns: attachment.created_since_boot_ns,
            generation: attachment.generation(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{HostSide, testing::attachment};

    #[test]
    fn an_interface_and_its_addresses_have_the_attachment_as_owner() {
        let mut owners = Owners::default();
        let web = attachment("eth0", None, 2);
        owners.add(&web);
        let owner = owners.behind(2).unwrap();
        assert_eq!((&owner.key, owner.link.as_ref().unwrap().ifname.as_str()), (&web.key, "fr2"));
        for address in ["10.0.0.2", "fd00::2"] {
            assert_eq!(owners.of_address(address.parse().unwrap()), Some(Arc::clone(&owner)));
        }
        assert_eq!(owners.behind(3), None);
        assert_eq!(owners.of_address("10.0.0.3".parse().unwrap()), None);
        owners.remove(&web);
        assert_eq!(owners.behind(2), None);
        assert_eq!(owners.of_address("10.0.0.2".parse().unwrap()), None);
    }

    #[test]
    fn removing_an_attachment_keeps_what_has_become_anothers() {
        let mut owners = Owners::default();
        let (old, new) = (attachment("eth0", None, 2), attachment("net1", None, 2));
        owners.add(&old);
        owners.add(&new);
        owners.remove(&old);
        assert_eq!(owners.behind(2).unwrap().key, new.key);
        assert_eq!(owners.of_address("10.0.0.2".parse().unwrap()).unwrap().key, new.key);
    }

    #[test]
    fn a_reserved_attachment_has_addresses_and_no_interface() {
        let mut owners = Owners::default();
        owners.add(&Attachment { host: HostSide::Unplugged, ..attachment("eth0", None, 2) });
        assert_eq!(owners.behind(2), None);
        assert_eq!(owners.of_address("10.0.0.2".parse().unwrap()).unwrap().link, None);
    }
}
