//! Which ranges and addresses have an owner. No two ranges overlap, so that a look-up costs a step in a tree.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;

use crate::ipam::overlap;

/// Owners are numbers of the caller's.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By the first address.
    ranges: BTreeMap<IpAddr, (IpNet, usize)>,
    /// With the first owner that claims each.
    addresses: BTreeMap<IpAddr, usize>,
    /// The only owner that gets each, of all that claim it.
    holders: BTreeMap<IpAddr, usize>,
}

// === impl Claims ===

impl Claims {
    /// The accepted range that overlaps this one, with its owner; of several, that of the lowest owner.
    pub fn overlapping(&self, range: IpNet) -> Option<(IpNet, usize)> {
        // Disjoint ranges end in the order in which they begin.
        let before_end = self.ranges.range(..=range.broadcast()).rev().map(|(_, claim)| *claim);
        before_end.take_while(|(other, _)| overlap(other, &range)).min_by_key(|(_, owner)| *owner)
    }

    /// An address in a range, with its owner.
    pub fn address_in(&self, range: IpNet) -> Option<(IpAddr, usize)> {
        let inside = range.network()..=range.broadcast();
        self.addresses.range(inside).next().map(|(address, owner)| (*address, *owner))
    }

    /// The caller has checked that nothing overlaps.
    pub fn add_range(&mut self, range: IpNet, owner: usize) {
        self.ranges.insert(range.network(), (range, owner));
    }

    pub fn add_address(&mut self, address: IpAddr, owner: usize) {
        self.addresses.entry(address).or_insert(owner);
    }

    /// Gives an address to the first one that asks. Returns who has it.
    pub fn hold(&mut self, address: IpAddr, owner: usize) -> usize {
        *self.holders.entry(address).or_insert(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn an_overlap_is_found_in_wider_narrower_and_equal_ranges_of_the_same_family() {
        let mut claims = Claims::default();
        for (owner, range) in ["10.0.1.0/24", "10.0.4.0/22", "fd00::/64"].into_iter().enumerate() {
            claims.add_range(net(range), owner);
        }
        let owner = |range: &str| claims.overlapping(net(range)).map(|(_, owner)| owner);
        assert_eq!(owner("10.0.1.0/24"), Some(0));
        assert_eq!(owner("10.0.1.128/25"), Some(0));
        assert_eq!(owner("10.0.0.0/23"), Some(0));
        assert_eq!(owner("10.0.7.255/32"), Some(1));
        assert_eq!(owner("10.0.0.0/8"), Some(0), "the first one");
        assert_eq!(owner("fd00:0:0:1::/80"), None);
        assert_eq!(owner("fd00::1/128"), Some(2));
        for free in ["10.0.0.0/24", "10.0.2.0/23", "10.0.8.0/24", "fd01::/64", "::/16"] {
            assert_eq!(owner(free), None, "{free}");
        }
    }

    #[test]
    fn addresses_are_found_in_ranges_of_their_family() {
        let mut claims = Claims::default();
        claims.add_address("10.0.1.7".parse().unwrap(), 3);
        claims.add_address("10.0.1.7".parse().unwrap(), 4);
        claims.add_address("fd00::7".parse().unwrap(), 5);
        let held = [5, 3].map(|owner| claims.hold("10.0.1.7".parse().unwrap(), owner));
        assert_eq!(held, [5, 5], "the first one that asks keeps it, not the first one that claimed it");
        assert_eq!(claims.address_in(net("10.0.1.0/24")).map(|it| it.1), Some(3));
        assert_eq!(claims.address_in(net("10.0.1.7/32")).map(|it| it.1), Some(3));
        assert_eq!(claims.address_in(net("fd00::/64")).map(|it| it.1), Some(5));
        assert_eq!(claims.address_in(net("10.0.2.0/24")), None);
        assert_eq!(claims.address_in(net("fd00::8/125")), None);
    }
}
