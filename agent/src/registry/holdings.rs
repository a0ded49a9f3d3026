//! Which addresses are whose: for those who ask why no address is free.

use std::{cmp::Reverse, net::IpAddr, time::Duration};

use super::{key::Key, table::Table};
use crate::{cluster::PodRef, ipam::COOLDOWN};

/// An address that is not free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub address: IpAddr,
    /// Of a resting address: the attachment that had it.
    pub key: Key,
    pub holder: Holder,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    Attachment(PodRef),
    /// An ADD whose record is being made durable.
    Add,
    /// An interface without a record.
    Left,
    /// No pod, for so long.
    Resting(Duration),
}

// === impl Table ===

impl Table {
    /// All that is not free, by address.
    pub(super) fn holdings(&self, now: Duration) -> Vec<Holding> {
        let of = |key: &Key, address, holder| Holding { address, key: key.clone(), holder };
        let attached = self.attachments.values().flat_map(|it| {
            it.vif.addresses.iter().map(move |address| (address, &it.key, Holder::Attachment(it.pod.clone())))
        });
        let promised = self.allocated.iter();
        let promised = promised.flat_map(|(key, all)| all.iter().map(move |it| (it, key, Holder::Add)));
        let left = self.left.iter();
        let left =
            left.flat_map(|it| it.addresses.iter().map(move |address| (address, &it.key, Holder::Left)));
        let mut holdings: Vec<_> = attached
            .chain(promised)
            .chain(left)
            .map(|(address, key, holder)| of(key, address, holder))
            .collect();
        for key in self.keys() {
            let resting = self.cooling(&key, now).into_iter();
            holdings.extend(
                resting.map(|it| {
                    of(&key, it.address, Holder::Resting((it.at() + COOLDOWN).saturating_sub(now)))
                }),
            );
        }
        // A pod may have been given an address that rests, and two records may know of one rest: the pod, or
        // the later end, comes first.
        let rest = |it: &Holding| if let Holder::Resting(rest) = it.holder { rest } else { Duration::MAX };
        holdings.sort_by_key(|it| (it.address, Reverse(rest(it))));
        let mut last = None;
        holdings.retain(|it| {
            let is_first = last.replace(it.address) != Some(it.address);
            is_first || rest(it) == Duration::MAX
        });
        holdings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ipam::PodCidrs,
        registry::{Allocation, NetnsId, NewAttachment, Registry, Wishes},
    };

    fn reserve(registry: &Registry, container: &str) -> crate::registry::Attachment {
        let new = NewAttachment {
            key: Key::try_from(format!("net/{container}/eth0")).unwrap(),
            with: None,
            pod: PodRef { namespace: "shop".to_owned(), name: container.to_owned(), uid: String::new() },
            netns: "/netns".into(),
            netns_id: NetnsId { dev: 4, ino: 1 },
            allocation: Allocation::FromIpam { mtu: 1500 },
            wishes: Wishes::default(),
        };
        registry.reserve(new).unwrap()
    }

    #[test]
    fn an_address_is_a_pods_and_then_rests() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        registry.set_ranges(PodCidrs::new(vec!["10.0.0.0/29".parse().unwrap()]).unwrap(), &[]);
        let (web, db) = (reserve(&registry, "web"), reserve(&registry, "db"));
        registry.release(&web).unwrap();
        let holdings = registry.holdings();
        assert_eq!(holdings.len(), 2, "{holdings:?}");
        let Holder::Resting(rest) = holdings[0].holder else { panic!("{holdings:?}") };
        assert!(rest <= Duration::from_secs(30) && rest > Duration::from_secs(20), "{rest:?}");
        assert_eq!((holdings[0].address.to_string().as_str(), &holdings[0].key), ("10.0.0.2", &web.key));
        assert_eq!(holdings[1].holder, Holder::Attachment(db.pod));
        let usage = registry.usage_by_range();
        assert_eq!((usage[0].used, usage[0].cooling_down, usage[0].free), (1, 1, 3));
    }
}
