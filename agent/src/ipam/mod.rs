//! The agent's own IPAM: allocates an address of each family from the node's pod CIDRs. No I/O; times are
//! since boot.

mod pool;
mod pressure;
mod range;

use std::{fmt, net::IpAddr, time::Duration};

use ferrule_vif::Addresses;
use ipnet::IpNet;

pub use pool::COOLDOWN;
use pool::Pool;
pub use pressure::Pressure;
pub use range::{PodCidrs, RangeError, overlap, parse as parse_cidr};
pub(crate) use range::{is_unicast, is_unicast_range};

/// The ranges of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ranges {
    /// Not known yet.
    #[default]
    Awaited,
    Known(PodCidrs),
    /// The node may not allocate from its earlier ranges any more, for this reason.
    Withdrawn(String),
}

/// One pool for each pod CIDR; none before the ranges are known.
#[derive(Debug, Default)]
pub struct Ipam {
    v4: Vec<Pool>,
    v6: Vec<Pool>,
    is_ipv6_first: bool,
}

/// The addresses of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub family: Family,
    pub ranges: String,
    /// Allocated by the next ADDs.
    pub free: u128,
    /// In use by pods.
    pub used: usize,
    /// Released within the cooldown, after which they are free.
    pub cooling_down: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// Why no address was allocated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoAddress {
    #[error("this node has no pod CIDR")]
    NoRange,
    #[error(
        "no {} address is free in {}: {} are in use, and {} were released in the last {} s",
        .0.family, .0.ranges, .0.used, .0.cooling_down, COOLDOWN.as_secs()
    )]
    Exhausted(Usage),
}

// === impl Ranges ===

impl Ranges {
    /// Empty unless the ranges are known.
    pub fn nets(&self) -> &[IpNet] {
        if let Self::Known(ranges) = self { ranges.nets() } else { &[] }
    }
}

// === impl Ipam ===

impl Ipam {
    pub fn new(ranges: &PodCidrs) -> Self {
        let (v4, v6) = Pool::of(ranges).partition(|pool| pool.net().network().is_ipv4());
        let is_ipv6_first = ranges.nets().first().is_some_and(|first| first.network().is_ipv6());
        Self { v4, v6, is_ipv6_first }
    }

    /// Allocates an address of each family that has a range, or nothing.
    ///
    /// # Errors
    /// If a family is exhausted, or there is no range.
    pub fn allocate(&mut self, now: Duration) -> Result<Addresses, NoAddress> {
        if self.v4.is_empty() && self.v6.is_empty() {
            return Err(NoAddress::NoRange);
        }
        let v4 = allocate(Family::Ipv4, &mut self.v4, now)?;
        let v6 = allocate(Family::Ipv6, &mut self.v6, now).inspect_err(|_| {
            // The address of the other family must not leak.
            if let Some(v4) = v4 {
                self.v4.iter_mut().for_each(|pool| pool.cancel(v4));
            }
        })?;
        let mut addresses = Addresses::default();
        for address in [v4, v6].into_iter().flatten() {
            match address {
                IpAddr::V4(v4) => addresses.v4 = Some(v4),
                IpAddr::V6(v6) => addresses.v6 = Some(v6),
            }
        }
        Ok(addresses)
    }

    /// The addresses of each family that has a range.
    pub fn usage(&self, now: Duration) -> Vec<Usage> {
        let families = [(Family::Ipv4, &self.v4), (Family::Ipv6, &self.v6)];
        let families = families.into_iter().filter(|(_, pools)| !pools.is_empty());
        families.map(|(family, pools)| Usage::of(family, pools, now)).collect()
    }

    /// The addresses of each range, in the order in which they are allocated from.
    pub fn usage_by_range(&self, now: Duration) -> Vec<Usage> {
        let families = [(Family::Ipv4, &self.v4), (Family::Ipv6, &self.v6)];
        let ranges =
            families.into_iter().flat_map(|(family, pools)| pools.iter().map(move |it| (family, it)));
        ranges.map(|(family, pool)| Usage::of(family, std::slice::from_ref(pool), now)).collect()
    }

    /// Marks given addresses as in use. Addresses outside of all ranges cannot be allocated, and are ignored.
    pub fn claim(&mut self, addresses: Addresses) {
        for address in addresses.iter() {
            for pool in self.pools() {
                pool.claim(address);
            }
        }
    }

    /// Replaces the set of the node's own addresses, which are never allocated.
    pub fn exclude(&mut self, own: &[IpAddr]) {
        self.pools().for_each(|pool| pool.exclude(own));
    }

    /// Frees addresses that were in use; they enter cooldown.
    pub fn release(&mut self, addresses: Addresses, now: Duration) {
        for address in addresses.iter() {
            self.pools().for_each(|pool| pool.release(address, now));
        }
    }

    /// Resumes the cooldown of an address that was released before a restart. To be called in the order of
    /// the releases.
    pub fn resume_cooldown(&mut self, address: IpAddr, released: Duration) {
        self.pools().for_each(|pool| pool.resume_cooldown(address, released));
    }

    /// Frees addresses that were allocated or claimed, but never used; no cooldown begins.
    pub fn cancel(&mut self, addresses: Addresses) {
        for address in addresses.iter() {
            self.pools().for_each(|pool| pool.cancel(address));
        }
    }

    /// Whether IPv6 addresses are allocated.
    pub fn has_ipv6(&self) -> bool {
        !self.v6.is_empty()
    }

    /// Whether the primary family, that of the first range, is IPv6.
    pub fn is_ipv6_first(&self) -> bool {
        self.is_ipv6_first
    }

    fn pools(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.v4.iter_mut().chain(&mut self.v6)
    }
}

// === impl Usage ===

impl Usage {
    fn of(family: Family, pools: &[Pool], now: Duration) -> Self {
        Self {
            family,
            ranges: pools.iter().map(|pool| pool.net().to_string()).collect::<Vec<_>>().join(", "),
            free: pools.iter().map(|pool| pool.free(now)).sum(),
            used: pools.iter().map(Pool::used).sum(),
            cooling_down: pools.iter().map(|pool| pool.cooling_down(now)).sum(),
        }
    }
}

// === impl Family ===

impl Family {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn allocate(family: Family, pools: &mut [Pool], now: Duration) -> Result<Option<IpAddr>, NoAddress> {
    if pools.is_empty() {
        return Ok(None);
    }
    let allocated = pools.iter_mut().find_map(|pool| pool.allocate(now));
    allocated.map(Some).ok_or_else(|| NoAddress::Exhausted(Usage::of(family, pools, now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Duration = Duration::from_secs(1000);

    fn ipam(ranges: &[&str]) -> Ipam {
        let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        Ipam::new(&PodCidrs::new(ranges).unwrap())
    }

    fn addresses(v4: Option<&str>, v6: Option<&str>) -> Addresses {
        Addresses { v4: v4.map(|a| a.parse().unwrap()), v6: v6.map(|a| a.parse().unwrap()) }
    }

    #[test]
    fn allocates_an_address_of_each_family_that_has_a_range() {
        assert_eq!(ipam(&["10.0.0.0/24"]).allocate(T0), Ok(addresses(Some("10.0.0.2"), None)));
        assert_eq!(ipam(&["fd00::/64"]).allocate(T0), Ok(addresses(None, Some("fd00::2"))));
        let mut dual = ipam(&["fd00::/64", "10.0.0.0/24"]);
        assert_eq!(dual.allocate(T0), Ok(addresses(Some("10.0.0.2"), Some("fd00::2"))));
    }

    #[test]
    fn second_range_of_a_family_is_used_when_the_first_is_exhausted() {
        let mut ipam = ipam(&["10.0.0.0/30", "10.0.1.0/30"]);
        assert_eq!(ipam.allocate(T0), Ok(addresses(Some("10.0.0.2"), None)));
        assert_eq!(ipam.allocate(T0), Ok(addresses(Some("10.0.1.2"), None)));
        let error = ipam.allocate(T0).unwrap_err().to_string();
        assert!(error.contains("10.0.0.0/30, 10.0.1.0/30") && error.contains("2 are in use"), "{error}");
    }

    #[test]
    fn no_address_leaks_when_one_family_is_exhausted() {
        let mut ipam = ipam(&["10.0.0.0/24", "fd00::/126"]);
        let first = ipam.allocate(T0).unwrap();
        let second = ipam.allocate(T0).unwrap();
        assert_eq!(second, addresses(Some("10.0.0.3"), Some("fd00::3")));
        assert!(ipam.allocate(T0).unwrap_err().to_string().contains("IPv6"));
        ipam.release(first, T0);
        let later = T0 + Duration::from_secs(30);
        assert_eq!(ipam.allocate(later), Ok(addresses(Some("10.0.0.4"), Some("fd00::2"))));
    }

    #[test]
    fn without_a_range_no_address_is_allocated() {
        assert_eq!(Ipam::default().allocate(T0), Err(NoAddress::NoRange));
        assert_eq!(Ipam::default().usage(T0), []);
        assert_eq!(ipam(&[]).allocate(T0), Err(NoAddress::NoRange));
    }

    #[test]
    fn the_first_range_has_the_primary_family() {
        assert!(ipam(&["fd00::/64", "10.0.0.0/24"]).is_ipv6_first());
        assert!(!ipam(&["10.0.0.0/24", "fd00::/64"]).is_ipv6_first());
        assert!(!ipam(&["10.0.0.0/24"]).has_ipv6() && ipam(&["fd00::/64"]).has_ipv6());
    }

    #[test]
    fn usage_counts_each_family_over_its_ranges() {
        let mut ipam = ipam(&["10.0.0.0/30", "fd00::/126", "10.0.1.0/30"]);
        ipam.exclude(&["10.0.1.2".parse().unwrap()]);
        let first = ipam.allocate(T0).unwrap();
        ipam.release(first, T0);
        let [v4, v6] = ipam.usage(T0 + Duration::from_millis(29_999)).try_into().unwrap();
        assert_eq!((v4.family, v4.ranges.as_str()), (Family::Ipv4, "10.0.0.0/30, 10.0.1.0/30"));
        assert_eq!((v4.free, v4.used, v4.cooling_down), (0, 0, 1));
        assert_eq!((v6.family, v6.free, v6.used, v6.cooling_down), (Family::Ipv6, 1, 0, 1));
        let ranges: Vec<_> = ipam.usage_by_range(T0).into_iter().map(|it| (it.ranges, it.free)).collect();
        let expected = [("10.0.0.0/30", 0), ("10.0.1.0/30", 0), ("fd00::/126", 1)];
        assert_eq!(ranges, expected.map(|(range, free)| (range.to_owned(), free)));
        let later = ipam.usage(T0 + Duration::from_secs(30));
        assert_eq!((later[0].free, later[0].cooling_down), (1, 0));
    }

    #[test]
    fn cooldown_resumes_after_a_restart() {
        let mut ipam = ipam(&["10.0.0.0/30"]);
        ipam.resume_cooldown("10.0.0.2".parse().unwrap(), T0);
        assert!(ipam.allocate(T0 + Duration::from_millis(29_999)).is_err());
        assert!(ipam.allocate(T0 + Duration::from_secs(30)).is_ok());
    }
}
