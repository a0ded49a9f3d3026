//! The agent's own IPAM: an address of each family from the node's pod CIDRs.

mod pool;

use std::{net::IpAddr, time::Duration};

use ferrule_vif::Addresses;
use ipnet::IpNet;

pub use pool::COOLDOWN;
pub(crate) use pool::is_unicast;
use pool::{Pool, RangeError};

/// Gives addresses to pods. Times are since boot.
#[derive(Debug, Default)]
pub struct Ipam {
    v4: Vec<Pool>,
    v6: Vec<Pool>,
}

/// Ranges that cannot be used for pods.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// One of them is unfit.
    #[error("{0}")]
    Range(#[from] RangeError),
    /// Two of them share addresses.
    #[error("the pod CIDRs {0} and {1} overlap")]
    Overlap(IpNet, IpNet),
    /// There are none.
    #[error("there is no pod CIDR to give addresses from")]
    None,
}

/// No address is left in any range of a family.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no {family} address is free in {ranges}: {used} are in use, and {resting} were released in the last {} s",
    COOLDOWN.as_secs()
)]
pub struct Exhausted {
    family: &'static str,
    ranges: String,
    used: usize,
    resting: usize,
}

// === impl Ipam ===

impl Ipam {
    /// # Errors
    /// If a range is unfit, two overlap, or there are none.
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

    /// Takes an address of each family that has ranges, or none at all.
    ///
    /// # Errors
    /// If a family has no address left.
    pub fn take(&mut self, now: Duration) -> Result<Addresses, Exhausted> {
        let v4 = take("IPv4", &mut self.v4, now)?;
        let v6 = take("IPv6", &mut self.v6, now).inspect_err(|_| {
            // The other family's must not leak.
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

    /// Takes addresses that are in use already, as a restart finds them. Those outside of all ranges, which the
    /// configuration had earlier, need no guard.
    pub fn claim(&mut self, addresses: Addresses) {
        for address in addresses.iter() {
            for pool in self.pools() {
                pool.claim(address);
            }
        }
    }

    /// Keeps the addresses from pods that the node has itself.
    pub fn exclude(&mut self, own: &[IpAddr]) {
        self.pools().for_each(|pool| pool.exclude(own));
    }

    /// Gives back addresses that were in use; they rest first.
    pub fn release(&mut self, addresses: Addresses, now: Duration) {
        for address in addresses.iter() {
            self.pools().for_each(|pool| pool.release(address, now));
        }
    }

    /// Lets an address rest that was released at a time before a restart.
    pub fn rest(&mut self, address: IpAddr, since: Duration) {
        self.pools().for_each(|pool| pool.rest(address, since));
    }

    /// Gives back addresses that were never in use.
    pub fn cancel(&mut self, addresses: Addresses) {
        for address in addresses.iter() {
            self.pools().for_each(|pool| pool.cancel(address));
        }
    }

    /// Whether pods get an IPv6 address.
    pub fn has_ipv6(&self) -> bool {
        !self.v6.is_empty()
    }

    fn pools(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.v4.iter_mut().chain(&mut self.v6)
    }
}

fn take(family: &'static str, pools: &mut [Pool], now: Duration) -> Result<Option<IpAddr>, Exhausted> {
    if pools.is_empty() {
        return Ok(None);
    }
    pools.iter_mut().find_map(|pool| pool.take(now)).map(Some).ok_or_else(|| Exhausted {
        family,
        ranges: pools.iter().map(|pool| pool.net().to_string()).collect::<Vec<_>>().join(", "),
        used: pools.iter().map(Pool::used).sum(),
        resting: pools.iter().map(|pool| pool.resting(now)).sum(),
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
    fn a_pod_gets_an_address_of_each_family_that_has_ranges() {
        assert_eq!(ipam(&["10.0.0.0/24"]).unwrap().take(T0), Ok(addresses(Some("10.0.0.2"), None)));
        assert_eq!(ipam(&["fd00::/64"]).unwrap().take(T0), Ok(addresses(None, Some("fd00::2"))));
        let mut dual = ipam(&["fd00::/64", "10.0.0.0/24"]).unwrap();
        assert_eq!(dual.take(T0), Ok(addresses(Some("10.0.0.2"), Some("fd00::2"))));
    }

    #[test]
    fn a_second_range_of_a_family_is_used_when_the_first_is_full() {
        let mut ipam = ipam(&["10.0.0.0/30", "10.0.1.0/30"]).unwrap();
        assert_eq!(ipam.take(T0), Ok(addresses(Some("10.0.0.2"), None)));
        assert_eq!(ipam.take(T0), Ok(addresses(Some("10.0.1.2"), None)));
        let error = ipam.take(T0).unwrap_err().to_string();
        assert!(error.contains("10.0.0.0/30, 10.0.1.0/30") && error.contains("2 are in use"), "{error}");
    }

    #[test]
    fn nothing_leaks_when_one_family_is_exhausted() {
        let mut ipam = ipam(&["10.0.0.0/24", "fd00::/126"]).unwrap();
        let first = ipam.take(T0).unwrap();
        let second = ipam.take(T0).unwrap();
        assert_eq!(second, addresses(Some("10.0.0.3"), Some("fd00::3")));
        assert!(ipam.take(T0).unwrap_err().to_string().contains("IPv6"));
        ipam.release(first, T0);
        let later = T0 + COOLDOWN;
        assert_eq!(ipam.take(later), Ok(addresses(Some("10.0.0.4"), Some("fd00::2"))));
    }

    #[test]
    fn overlapping_ranges_and_none_at_all_are_refused() {
        assert!(matches!(ipam(&["10.0.0.0/16", "10.0.3.0/24"]), Err(IpamError::Overlap(..))));
        assert!(matches!(ipam(&["10.0.3.0/24", "10.0.0.0/16"]), Err(IpamError::Overlap(..))));
        assert!(matches!(ipam(&[]), Err(IpamError::None)));
    }

    #[test]
    fn an_address_goes_on_resting_after_a_restart() {
        let mut ipam = ipam(&["10.0.0.0/30"]).unwrap();
        ipam.rest("10.0.0.2".parse().unwrap(), T0);
        assert!(ipam.take(T0 + COOLDOWN / 2).is_err());
        assert!(ipam.take(T0 + COOLDOWN).is_ok());
    }
}
