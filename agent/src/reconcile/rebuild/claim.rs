//! What host and maps say about an unrecorded interface.

use agent_common::VifEntry;
use ferrule_vif::{Addresses, Mac};

use crate::{
    cluster::PodRef,
    dataplane::{Recorded, shown_text},
    plug::host_inventory::StampedLink,
    registry::Key,
};

/// An interface, with the addresses, MAC and pod that it is believed to have.
pub(super) struct Claim {
    pub link: StampedLink,
    pub addresses: Addresses,
    pub mac: Mac,
    pub pod: PodRef,
    /// Whether the qdisc of the host interface limits what the pod receives.
    pub is_shaped: bool,
}

// === impl Claim ===

impl Claim {
    /// Prefers the map entries over the host's routes. An address that the maps deliver to another stamped
    /// interface is not this one's.
    ///
    /// # Errors
    /// Why the addresses are unknown or ambiguous.
    pub(super) fn of(
        link: StampedLink,
        entry: Option<Recorded>,
        is_stamped: impl Fn(u32) -> bool,
    ) -> Result<Self, &'static str> {
        let ifindex = link.ifindex;
        let is_shaped = entry.as_ref().is_some_and(|it| it.vif.is_shaped());
        let (addresses, mac, pod) = match entry {
            Some(Recorded { vif, owners }) => {
                let own = owners.into_iter().filter(|(_, owner)| *owner == ifindex || !is_stamped(*owner));
                let addresses = Addresses::collect(own.map(|(address, _)| address));
                (addresses, Some(Mac(vif.mac)), pod(&vif, link.stamp.key()))
            }
            None => (Addresses::collect(link.addresses.iter().copied()), link.mac, PodRef::default()),
        };
        let addresses = addresses.map_err(|_| "more than one address of a family")?;
        if addresses == Addresses::default() {
            return Err("no source has its addresses");
        }
        Ok(Self { mac: mac.unwrap_or_else(|| addresses.mac()), link, addresses, pod, is_shaped })
    }
}

/// The pod in a map entry; unknown if a text was truncated, or is the container ID of an ADD without a pod.
fn pod(entry: &VifEntry, key: &Key) -> PodRef {
    let (Some(name), Some(uid)) = (whole_text(&entry.pod), whole_text(&entry.pod_uid)) else {
        return PodRef::default();
    };
    match name.split_once('/') {
        Some((namespace, name)) => PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid },
        None if name == key.container_id.as_str() => PodRef::default(),
        None => PodRef { namespace: String::new(), name, uid },
    }
}

/// The content of a text field; `None` if it may have been truncated, or is not the original.
fn whole_text(field: &[i8]) -> Option<String> {
    let text = shown_text(field);
    (text.len() + 1 < field.len() && text.is_ascii() && !text.contains('?')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plug::stamp::Stamp;

    fn link(addresses: &[&str]) -> StampedLink {
        StampedLink {
            ifindex: 7,
            ifname: "frx".to_owned(),
            stamp: Stamp::parse("ferrule:net:0123:eth0").unwrap(),
            mtu: 1500,
            peer: Some(2),
            nsid: None,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            mac: None,
        }
    }

    fn entry(pod: &str, owners: &[(&str, u32)]) -> Recorded {
        let vif = VifEntry {
            ipv4: [10, 0, 0, 2],
            flags: VifEntry::HAS_IPV4,
            ipv6: [0; 16],
            mac: [2, 0, 0, 0, 0, 2],
            mtu: 1500,
            stack_peers: [0; 32],
            stack_flows: 0,
            slot: 0,
            subject: agent_common::policy::PackedSubject::default(),
            reserved: 0,
            generation: 0,
            pod: VifEntry::text(pod),
            pod_uid: VifEntry::text("u-1"),
            ifname: VifEntry::text("eth0"),
        };
        Recorded {
            vif,
            owners: owners.iter().map(|(address, owner)| (address.parse().unwrap(), *owner)).collect(),
        }
    }

    #[test]
    fn maps_are_preferred_over_routes_and_foreign_addresses_are_not_claimed() {
        let claim = |routes: &[&str], entry| Claim::of(link(routes), entry, |it| it == 7 || it == 8).ok();
        let from_maps = claim(&["10.0.0.9"], Some(entry("n/web", &[("10.0.0.2", 7)]))).unwrap();
        assert_eq!(
            (from_maps.addresses.to_string().as_str(), from_maps.mac.to_string().as_str()),
            ("10.0.0.2", "02:00:00:00:00:02")
        );
        let from_routes = claim(&["10.0.0.9", "fd00::9"], None).unwrap();
        assert_eq!(
            (from_routes.addresses.to_string(), from_routes.mac),
            ("10.0.0.9 fd00::9".to_owned(), from_routes.addresses.mac())
        );
        assert!(claim(&[], None).is_none());
        assert!(claim(&["10.0.0.8", "10.0.0.9"], None).is_none(), "ambiguous");
        let owned_by = |ifindex| claim(&[], Some(entry("n/web", &[("10.0.0.2", ifindex)])));
        assert!(owned_by(8).is_none(), "delivered to another stamped interface");
        assert!(owned_by(9).is_some(), "delivered to an interface that is gone");
    }

    #[test]
    fn pod_with_a_truncated_name_is_unknown() {
        let key = Key::try_from("net/0123/eth0".to_owned()).unwrap();
        let pod_in = |name: &str| pod(&entry(name, &[]).vif, &key);
        let web = PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u-1".to_owned() };
        assert_eq!(pod_in("n/web"), web);
        assert_eq!(pod_in("web"), PodRef { namespace: String::new(), ..web });
        for unknown in [&format!("n/{}", "w".repeat(126)), "n/w\u{fc}rfel", "0123"] {
            assert_eq!(pod_in(unknown), PodRef::default(), "{unknown}");
        }
    }
}
