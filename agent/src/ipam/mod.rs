//! The agent's own IPAM: allocates an address of each family from the node's pod CIDRs. No I/O; times are
//! since boot.

mod pool;
mod range;

use std::{net::IpAddr, time::Duration};

use ferrule_vif::Addresses;
use ipnet::IpNet;

pub use pool::COOLDOWN;
use pool::Pool;
pub use range::RangeError;
pub(crate) use range::is_unicast;

/// One pool for each pod CIDR.
#[derive(Debug, Default)]
pub struct Ipam {
    v4: Vec<Pool>,
    v6: Vec<Pool>,
}

/// Pod CIDRs from which no address can be allocated.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error("the pod CIDRs {0} and {1} overlap")]
    Overlap(IpNet, IpNet),
    #[error("no pod CIDR is configured")]
    None,
}

/// All addresses of a family are in use or in cooldown.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no {family} address is free in {ranges}: {used} are in use, and {cooling_down} were released in the last {} s",
    COOLDOWN.as_secs()
)]
pub struct Exhausted {
    family: &'static str,
    ranges: String,
    used: usize,
    cooling_down: usize,
}

// === impl Ipam ===

impl Ipam {
    /// # Errors
    /// If a range is invalid, two overlap, or there is none.
    pub fn new(ranges: &[IpNet]) -> Result<Self, IpamError> {
        let mut ipam = Self { v4: Vec::new(), v6: Vec::new() };
        for (index, range) in ranges.iter().enumerate() {
            let earlier = ranges.iter().take(index);
            let mut overlapping = earlier.filter(|other| other.contains(range) || range.contains(*other));
            if let Some(other) = overlapping.next() {
                return Err(IpamError::Overlap(*other, *range));
            }
            let pool = Pool::new(*range)?;
            if range.network().is_ipv4() { ipam.v4.push(pool) } else { ipam.v6.push(pool) }
        }
        if ranges.is_empty() { Err(IpamError::None) } else { Ok(ipam) }
    }

    /// Allocates an address of each family that has a range, or nothing.
    ///
    /// # Errors
    /// If a family is exhausted.
    pub fn allocate(&mut self, now: Duration) -> Result<Addresses, Exhausted> {
        let v4 = allocate("IPv4", &mut self.v4, now)?;
        let v6 = allocate("IPv6", &mut self.v6, now).inspect_err(|_| {
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

    fn pools(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.v4.iter_mut().chain(&mut self.v6)
    }
}

fn allocate(family: &'static str, pools: &mut [Pool], now: Duration) -> Result<Option<IpAddr>, Exhausted> {
    if pools.is_empty() {
        return Ok(None);
    }
    pools.iter_mut().find_map(|pool| pool.allocate(now)).map(Some).ok_or_else(|| Exhausted {
        family,
        ranges: pools.iter().map(|pool| pool.net().to_string()).collect::<Vec<_>>().join(", "),
        used: pools.iter().map(Pool::used).sum(),
        cooling_down: pools.iter().map(|pool| pool.cooling_down(now)).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Duration = Duration::from_secs(1000);

    fn ipam(ranges: &[&str]) -> Result<Ipam, IpamError> {
        Ipam::new(&ranges.iter().map(|range| range.parse().unwrap()).collect::<Vec<_>>())
    }

    fn addresses(v4: Option<&str>, v6: Option<&str>) -> Addresses {
        Addresses { v4: v4.map(|a| a.parse().unwrap()), v6: v6.map(|a| a.parse().unwrap()) }
    }

    #[test]
    fn allocates_an_address_of_each_family_that_has_a_range() {
        assert_eq!(ipam(&["10.0.0.0/24"]).unwrap().allocate(T0), Ok(addresses(Some("10.0.0.2"), None)));
        assert_eq!(ipam(&["fd00::/64"]).unwrap().allocate(T0), Ok(addresses(None, Some("fd00::2"))));
        let mut dual = ipam(&["fd00::/64", "10.0.0.0/24"]).unwrap();
        assert_eq!(dual.allocate(T0), Ok(addresses(Some("10.0.0.2"), Some("fd00::2"))));
    }

    #[test]
    fn second_range_of_a_family_is_used_when_the_first_is_exhausted() {
        let mut ipam = ipam(&["10.0.0.0/30", "10.0.1.0/30"]).unwrap();
        assert_eq!(ipam.allocate(T0), Ok(addresses(Some("10.0.0.2"), None)));
        assert_eq!(ipam.allocate(T0), Ok(addresses(Some("10.0.1.2"), None)));
        let error = ipam.allocate(T0).unwrap_err().to_string();
        assert!(error.contains("10.0.0.0/30, 10.0.1.0/30") && error.contains("2 are in use"), "{error}");
    }

    #[test]
    fn no_address_leaks_when_one_family_is_exhausted() {
        let mut ipam = ipam(&["10.0.0.0/24", "fd00::/126"]).unwrap();
        let first = ipam.allocate(T0).unwrap();
        let second = ipam.allocate(T0).unwrap();
        assert_eq!(second, addresses(Some("10.0.0.3"), Some("fd00::3")));
        assert!(ipam.allocate(T0).unwrap_err().to_string().contains("IPv6"));
        ipam.release(first, T0);
        let later = T0 + COOLDOWN;
        assert_eq!(ipam.allocate(later), Ok(addresses(Some("10.0.0.4"), Some("fd00::2"))));
    }

    #[test]
    fn overlapping_ranges_and_an_empty_list_are_refused() {
        assert!(matches!(ipam(&["10.0.0.0/16", "10.0.3.0/24"]), Err(IpamError::Overlap(..))));
        assert!(matches!(ipam(&["10.0.3.0/24", "10.0.0.0/16"]), Err(IpamError::Overlap(..))));
        assert!(matches!(ipam(&[]), Err(IpamError::None)));
    }

    #[test]
    fn cooldown_resumes_after_a_restart() {
        let mut ipam = ipam(&["10.0.0.0/30"]).unwrap();
        ipam.resume_cooldown("10.0.0.2".parse().unwrap(), T0);
        assert!(ipam.allocate(T0 + COOLDOWN / 2).is_err());
        assert!(ipam.allocate(T0 + COOLDOWN).is_ok());
    }
}
