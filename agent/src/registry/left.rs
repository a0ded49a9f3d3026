//! Addresses of interfaces without a record, which the agent leaves alone.

use ferrule_vif::Addresses;

use super::key::Key;

/// Addresses of a stamped interface whose attachment could not be rebuilt. No other pod gets them while the
/// interface exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftAddresses {
    /// From the interface's stamp.
    pub key: Key,
    pub ifindex: u32,
    pub addresses: Addresses,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::PodRef,
        ipam::PodCidrs,
        registry::{Allocation, Attachment, NetnsId, NewAttachment, Registry, RegistryError, Wishes},
    };
    use ferrule_vif::{Vif, VifKind};

    fn addresses(v4: [u8; 4]) -> Addresses {
        Addresses { v4: Some(v4.into()), v6: None }
    }

    fn registry(dir: &std::path::Path) -> Registry {
        let registry = Registry::open(dir).unwrap();
        // Room for 10.0.0.2 to 10.0.0.6.
        registry.set_ranges(PodCidrs::new(vec!["10.0.0.0/29".parse().unwrap()]).unwrap(), &[]);
        registry
    }

    fn reserve(
        registry: &Registry,
        container: &str,
        fixed: Option<[u8; 4]>,
    ) -> Result<Attachment, RegistryError> {
        let vif = |v4| Vif {
            kind: VifKind::Veth,
            mac: addresses(v4).mac(),
            mtu: 1500,
            addresses: addresses(v4),
            is_ipv6_first: false,
            gateways: Addresses::default(),
            is_default: true,
            routes: Vec::new(),
        };
        registry.reserve(NewAttachment {
            key: Key::try_from(format!("net/{container}/eth0")).unwrap(),
            with: None,
            pod: PodRef::default(),
            netns: "/run/netns/x".into(),
            netns_id: NetnsId { dev: 4, ino: 7 },
            allocation: fixed.map_or(Allocation::FromIpam { mtu: 1500 }, |v4| Allocation::Fixed(vif(v4))),
            wishes: Wishes::default(),
        })
    }

    fn left(v4: [u8; 4]) -> LeftAddresses {
        let key = Key::try_from("net/left/eth0".to_owned()).unwrap();
        LeftAddresses { key, ifindex: 9, addresses: addresses(v4) }
    }

    #[test]
    fn addresses_of_an_interface_that_is_left_alone_are_not_allocated_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        registry.leave(vec![left([10, 0, 0, 2]), left([10, 0, 0, 4])]);
        // Also with ranges that become known later.
        for _ in 0..2 {
            let first = reserve(&registry, "a", None).unwrap();
            let second = reserve(&registry, "b", None).unwrap();
            assert_eq!(
                (first.vif.addresses, second.vif.addresses),
                (addresses([10, 0, 0, 3]), addresses([10, 0, 0, 5]))
            );
            registry.cancel(&second).unwrap();
            registry.cancel(&first).unwrap();
            registry.set_ranges(PodCidrs::new(vec!["10.0.0.0/29".parse().unwrap()]).unwrap(), &[]);
        }
        let refused = reserve(&registry, "c", Some([10, 0, 0, 2])).unwrap_err();
        assert!(matches!(refused, RegistryError::InUse { by, .. } if by == left([0; 4]).key));
        registry.free_left(8);
        assert_eq!(registry.left().len(), 2, "another interface is gone");
        registry.free_left(9);
        assert!(registry.left().is_empty());
        reserve(&registry, "c", Some([10, 0, 0, 2])).unwrap();
    }

    #[test]
    fn address_that_an_attachment_has_too_is_free_only_without_both() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let both = reserve(&registry, "a", Some([10, 0, 0, 2])).unwrap();
        registry.leave(vec![left([10, 0, 0, 2])]);
        registry.release(&both).unwrap();
        assert!(matches!(reserve(&registry, "b", Some([10, 0, 0, 2])), Err(RegistryError::InUse { .. })));
        registry.free_left(9);
        let again = reserve(&registry, "a", Some([10, 0, 0, 2])).unwrap();
        registry.leave(vec![left([10, 0, 0, 2])]);
        registry.free_left(9);
        assert!(matches!(reserve(&registry, "b", Some([10, 0, 0, 2])), Err(RegistryError::InUse { .. })));
        // Not even by the IPAM: 10.0.0.3 to 10.0.0.6 are free, and no more.
        let free = (0..).map_while(|number| reserve(&registry, &format!("ipam{number}"), None).ok());
        let free: Vec<_> = free.map(|it| it.vif.addresses).collect();
        assert!(!free.contains(&again.vif.addresses) && free.len() == 4, "{free:?}");
    }
}
