//! The addresses of one range.
//!
//! Allocation prefers an address that was never used, then the one released longest ago, so that a stale
//! cache or connection table of a peer does not reach another pod. With at least [`ENOUGH_RELEASED`] released
//! addresses, these come first, which bounds the memory for a range of any size.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    time::Duration,
};

use ipnet::IpNet;

use super::range::{PodCidrs, allocatable, number};

/// The addresses of one range. Addresses are numbers, as [`number`] gives them.
#[derive(Debug)]
pub struct Pool {
    net: IpNet,
    /// Only these numbers are allocated; the others of the range can be claimed.
    allocatable: RangeInclusive<u128>,
    /// The next number that was never allocated.
    fresh: u128,
    /// Allocated and cancelled before use: allocated first.
    cancelled: Vec<u128>,
    used: HashSet<u128>,
    /// With the time of the release, earliest first.
    released: VecDeque<(u128, Duration)>,
    /// The released numbers at or above `fresh`: they were claimed.
    ahead: HashSet<u128>,
    /// The node's own addresses, which are never allocated. A pod may use one already.
    own: HashSet<u128>,
    /// Addresses of the node that an allocation passed over.
    skipped: HashSet<u128>,
    /// Claimed during cooldown, with the time of the earlier release.
    claimed_early: HashMap<u128, Duration>,
}

/// Released addresses from which released ones are preferred over fresh ones.
const ENOUGH_RELEASED: usize = 1024;
/// The time between the release of an address and its next allocation.
pub const COOLDOWN: Duration = Duration::from_secs(30);

// === impl Pool ===

impl Pool {
    /// One pool for each range.
    pub fn of(ranges: &PodCidrs) -> impl Iterator<Item = Self> {
        ranges.nets().iter().map(|net| Self::new(*net))
    }

    fn new(net: IpNet) -> Self {
        let allocatable = allocatable(net);
        Self {
            net,
            fresh: *allocatable.start(),
            allocatable,
            cancelled: Vec::new(),
            used: HashSet::new(),
            released: VecDeque::new(),
            ahead: HashSet::new(),
            own: HashSet::new(),
            skipped: HashSet::new(),
            claimed_early: HashMap::new(),
        }
    }

    pub fn net(&self) -> IpNet {
        self.net
    }

    /// Allocates an address; `None` if the range is exhausted.
    pub fn allocate(&mut self, now: Duration) -> Option<IpAddr> {
        loop {
            let number = self.next(now)?;
            if !self.own.contains(&number) {
                self.used.insert(number);
                return Some(self.address(number));
            }
            self.skipped.insert(number);
        }
    }

    /// Replaces the set of the node's own addresses.
    pub fn exclude(&mut self, own: &[IpAddr]) {
        self.own = own.iter().filter(|it| self.net.contains(*it)).map(|it| number(*it)).collect();
        self.cancelled.extend(self.skipped.extract_if(|number| !self.own.contains(number)));
    }

    /// Marks a given address as in use. Returns whether the address is in this range and was free.
    pub fn claim(&mut self, address: IpAddr) -> bool {
        let number = number(address);
        if !self.net.contains(&address) || !self.used.insert(number) {
            return false;
        }
        self.cancelled.retain(|cancelled| *cancelled != number);
        self.skipped.remove(&number);
        self.ahead.remove(&number);
        let at = self.released.iter().position(|(released, _)| *released == number);
        if let Some((_, since)) = at.and_then(|at| self.released.remove(at)) {
            self.claimed_early.insert(number, since);
        }
        true
    }

    /// Resumes the cooldown of an address after a restart. To be called in the order of the releases.
    pub fn resume_cooldown(&mut self, address: IpAddr, released: Duration) {
        let number = number(address);
        if self.net.contains(&address) && !self.used.contains(&number) && self.is_allocatable(number) {
            self.ahead.insert(number);
            self.released.push_back((number, released));
        }
    }

    /// Frees an address that was in use, into cooldown.
    pub fn release(&mut self, address: IpAddr, now: Duration) {
        let number = number(address);
        self.claimed_early.remove(&number);
        if self.used.remove(&number) && self.is_allocatable(number) {
            self.insert_released(self.released.len(), number, now);
        }
    }

    /// Frees an address that was never used. An address that was claimed during cooldown continues its
    /// cooldown.
    pub fn cancel(&mut self, address: IpAddr) {
        let number = number(address);
        let since = self.claimed_early.remove(&number);
        if !self.used.remove(&number) || !self.is_allocatable(number) {
            return;
        }
        match since {
            Some(since) => {
                let at = self.released.partition_point(|(_, other)| *other <= since);
                self.insert_released(at, number, since);
            }
            None => self.cancelled.push(number),
        }
    }

    /// Addresses in use by pods.
    pub fn used(&self) -> usize {
        self.used.len()
    }

    /// Addresses in cooldown that an allocation gets later.
    pub fn cooling_down(&self, now: Duration) -> usize {
        self.in_cooldown(now).filter(|(number, _)| !self.own.contains(number)).count()
    }

    /// Addresses that an allocation gets now.
    pub fn free(&self, now: Duration) -> u128 {
        let size = self.allocatable.end() - self.allocatable.start() + 1;
        let claimed_beside = [0, 1].map(|it| number(self.net.network()) + it);
        let claimed_beside = claimed_beside.into_iter().chain([number(self.net.broadcast())]);
        let claimed_beside =
            claimed_beside.filter(|it| !self.is_allocatable(*it) && self.used.contains(it)).count();
        let own = self.own.iter().filter(|it| self.is_allocatable(**it) && !self.used.contains(it)).count();
        let taken = self.used.len() - claimed_beside + self.cooling_down(now) + own;
        size.saturating_sub(taken as u128)
    }

    /// The addresses in cooldown, earliest release first.
    fn in_cooldown(&self, now: Duration) -> impl Iterator<Item = &(u128, Duration)> {
        let cooled_down = self.released.partition_point(|(_, since)| has_cooled_down(*since, now));
        self.released.range(cooled_down..)
    }

    fn is_allocatable(&self, number: u128) -> bool {
        self.allocatable.contains(&number)
    }

    fn next(&mut self, now: Duration) -> Option<u128> {
        let cancelled = self.cancelled.pop();
        if self.released.len() < ENOUGH_RELEASED {
            cancelled.or_else(|| self.next_fresh()).or_else(|| self.next_released(now))
        } else {
            cancelled.or_else(|| self.next_released(now)).or_else(|| self.next_fresh())
        }
    }

    fn insert_released(&mut self, at: usize, number: u128, since: Duration) {
        if number >= self.fresh {
            self.ahead.insert(number);
        }
        self.released.insert(at, (number, since));
    }

    fn next_fresh(&mut self) -> Option<u128> {
        while self.fresh <= *self.allocatable.end() {
            let number = self.fresh;
            self.fresh += 1;
            let is_released = self.ahead.remove(&number);
            // None is cancelled: cancelled ones were allocated before.
            if !is_released && !self.used.contains(&number) {
                return Some(number);
            }
        }
        None
    }

    fn next_released(&mut self, now: Duration) -> Option<u128> {
        let (_, since) = self.released.front()?;
        if !has_cooled_down(*since, now) {
            return None;
        }
        let (number, _) = self.released.pop_front()?;
        self.ahead.remove(&number);
        if self.released.capacity() > 4 * self.released.len() {
            self.released.shrink_to(2 * self.released.len());
        }
        Some(number)
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.net {
            // Truncation is lossless: the number came from an IPv4 address.
            IpNet::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }
}

fn has_cooled_down(released: Duration, now: Duration) -> bool {
    now.saturating_sub(released) >= COOLDOWN
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T0: Duration = Duration::from_secs(1000);

    fn pool(net: &str) -> Pool {
        Pool::new(net.parse().unwrap())
    }

    fn ip(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    #[test]
    fn network_gateway_and_broadcast_addresses_are_never_allocated() {
        let mut pool = pool("10.0.0.0/29");
        let all: Vec<IpAddr> = std::iter::from_fn(|| pool.allocate(T0)).collect();
        assert_eq!(all, ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"].map(ip));
    }

    #[test]
    fn ipv6_subnet_router_anycast_address_is_never_allocated() {
        let mut pool = pool("fd00::/126");
        let all: Vec<IpAddr> = std::iter::from_fn(|| pool.allocate(T0)).collect();
        assert_eq!(all, ["fd00::2", "fd00::3"].map(ip));
    }

    #[test]
    fn addresses_are_not_reused_before_their_cooldown_and_then_oldest_first() {
        let mut pool = pool("10.0.0.0/29");
        let all: Vec<IpAddr> = std::iter::from_fn(|| pool.allocate(T0)).collect();
        pool.release(all[3], T0);
        pool.release(all[1], T0 + Duration::from_secs(1));
        assert_eq!(pool.allocate(T0 + Duration::from_millis(29_999)), None);
        assert_eq!(pool.cooling_down(T0), 2);
        assert_eq!(pool.allocate(T0 + Duration::from_secs(30)), Some(all[3]));
        assert_eq!(
            pool.allocate(T0 + Duration::from_secs(30)),
            None,
            "the other address was released a second later"
        );
        assert_eq!(pool.allocate(T0 + Duration::from_secs(31)), Some(all[1]));
    }

    #[test]
    fn fresh_addresses_are_preferred_over_released_ones() {
        let mut pool = pool("10.0.0.0/29");
        let first = pool.allocate(T0).unwrap();
        pool.release(first, T0);
        assert_eq!(pool.allocate(T0 + Duration::from_secs(60)), Some(ip("10.0.0.3")));
    }

    #[test]
    fn memory_for_a_huge_range_is_bounded() {
        let mut pool = pool("fd00::/64");
        let mut now = T0;
        for _ in 0..20_000 {
            let address = pool.allocate(now).unwrap();
            pool.release(address, now);
            now += Duration::from_millis(10);
        }
        assert_eq!((pool.released.len(), pool.ahead.len()), (ENOUGH_RELEASED.max(3000), 0));
        // Released faster than the cooldown ends, fresh addresses are still allocated.
        for _ in 0..2 * ENOUGH_RELEASED {
            let address = pool.allocate(now).unwrap();
            pool.release(address, now);
        }
        assert!(pool.allocate(now).is_some() && pool.released.len() <= 3000 + 2 * ENOUGH_RELEASED);
    }

    #[test]
    fn the_memory_of_released_addresses_is_given_back_when_few_are_left() {
        let mut pool = pool("10.0.0.0/24");
        let out = all(&mut pool, T0);
        assert_eq!(out.len(), 253);
        out.iter().for_each(|address| pool.release(*address, T0));
        assert!(pool.released.capacity() >= 253);
        // A claim takes an address out of the released ones, and no memory back.
        assert!(out[3..].iter().all(|address| pool.claim(*address)));
        assert_eq!(pool.allocate(T0 + Duration::from_secs(30)), Some(out[0]));
        assert_eq!(pool.released.len(), 2);
        assert!(pool.released.capacity() <= 8, "{}", pool.released.capacity());
    }

    #[test]
    fn cancelled_address_is_allocated_next() {
        let mut pool = pool("10.0.0.0/29");
        let first = pool.allocate(T0).unwrap();
        pool.cancel(first);
        assert_eq!(pool.allocate(T0), Some(first));
    }

    #[test]
    fn address_that_is_claimed_and_cancelled_during_its_cooldown_continues_it() {
        // In seconds since boot.
        let at = Duration::from_secs;
        let mut pool = pool("10.0.0.0/30");
        let only = pool.allocate(at(1000)).unwrap();
        pool.release(only, at(1000));
        assert!(pool.claim(only));
        assert_eq!((pool.used(), pool.cooling_down(at(1010))), (1, 0));
        pool.cancel(only);
        assert_eq!((pool.used(), pool.cooling_down(at(1010))), (0, 1));
        assert_eq!(pool.allocate(at(1029)), None, "released 29 s ago");
        assert_eq!(pool.allocate(at(1030)), Some(only));
        // A release after the claim begins a cooldown of its own.
        pool.release(only, at(1030));
        assert!(pool.claim(only));
        pool.release(only, at(1050));
        assert_eq!((pool.allocate(at(1079)), pool.allocate(at(1080))), (None, Some(only)));
        // Without a claim during cooldown, nothing is left of an earlier one.
        pool.cancel(only);
        assert_eq!(pool.allocate(at(1081)), Some(only), "never used");
    }

    #[test]
    fn cancelled_address_resumes_its_place_among_the_released_ones() {
        let at = Duration::from_secs;
        let mut pool = pool("10.0.0.0/29");
        let all: Vec<IpAddr> = std::iter::from_fn(|| pool.allocate(at(1000))).collect();
        pool.release(all[0], at(1000));
        pool.release(all[1], at(1005));
        pool.release(all[2], at(1010));
        assert!(pool.claim(all[1]));
        pool.cancel(all[1]);
        let order: Vec<_> = std::iter::from_fn(|| pool.allocate(at(1040))).collect();
        assert_eq!(order, [all[0], all[1], all[2]]);
    }

    #[test]
    fn claimed_address_is_not_allocated() {
        let mut pool = pool("10.0.0.0/29");
        assert!(pool.claim(ip("10.0.0.2")));
        assert!(!pool.claim(ip("10.0.0.2")), "already in use");
        assert!(!pool.claim(ip("10.9.0.2")), "outside of the range");
        assert_eq!(pool.allocate(T0), Some(ip("10.0.0.3")));
    }

    #[test]
    fn node_address_is_not_allocated_after_the_pod_that_used_it_is_gone() {
        let mut pool = pool("10.0.0.0/29");
        let (first, second) = (pool.allocate(T0).unwrap(), pool.allocate(T0).unwrap());
        pool.exclude(&[first, second, ip("10.0.0.5"), ip("192.0.2.1")]);
        pool.release(first, T0);
        pool.cancel(second);
        let later = T0 + Duration::from_secs(60);
        let rest: Vec<IpAddr> = std::iter::from_fn(|| pool.allocate(later)).collect();
        assert_eq!(rest, ["10.0.0.4", "10.0.0.6"].map(ip));
    }

    #[test]
    fn an_address_that_the_node_gives_up_is_allocated() {
        let mut pool = pool("10.0.0.0/30");
        pool.exclude(&[ip("10.0.0.2")]);
        assert_eq!((pool.free(T0), pool.allocate(T0)), (0, None));
        pool.exclude(&[]);
        assert_eq!((pool.free(T0), pool.allocate(T0)), (1, Some(ip("10.0.0.2"))));
        pool.release(ip("10.0.0.2"), T0);
        pool.exclude(&[ip("10.0.0.2")]);
        assert_eq!((pool.free(T0), pool.cooling_down(T0)), (0, 0), "does not come back");
    }

    #[test]
    fn a_pod_with_an_address_that_is_never_allocated_takes_no_free_one() {
        let mut pool = pool("10.0.0.0/29");
        for address in ["10.0.0.0", "10.0.0.1", "10.0.0.7"] {
            assert!(pool.claim(ip(address)));
        }
        assert_eq!((pool.used(), pool.free(T0)), (3, 5));
        assert!(pool.claim(ip("10.0.0.2")));
        assert_eq!((pool.used(), pool.free(T0)), (4, 4));
    }

    fn all(pool: &mut Pool, now: Duration) -> Vec<IpAddr> {
        std::iter::from_fn(|| pool.allocate(now)).collect()
    }

    #[test]
    fn a_claimed_address_is_neither_cancelled_nor_given_up_by_the_node() {
        let mut pool = pool("10.0.0.0/29");
        let first = pool.allocate(T0).unwrap();
        pool.cancel(first);
        pool.exclude(&[first]);
        assert_eq!(pool.allocate(T0), Some(ip("10.0.0.3")), "the node's own address is skipped");
        assert!(pool.claim(first), "a pod had it before");
        pool.exclude(&[]);
        assert_eq!(all(&mut pool, T0), ["10.0.0.4", "10.0.0.5", "10.0.0.6"].map(ip));
        pool.cancel(ip("10.0.0.4"));
        assert!(pool.claim(ip("10.0.0.4")));
        assert_eq!(pool.allocate(T0), None);
    }

    #[test]
    fn an_address_claimed_during_its_cooldown_and_cancelled_continues_it_in_its_place() {
        let mut pool = pool("10.0.0.0/30");
        let only = pool.allocate(T0).unwrap();
        pool.release(only, T0);
        assert!(pool.claim(only));
        pool.cancel(only);
        assert_eq!(pool.allocate(T0 + Duration::from_millis(29_999)), None);
        assert_eq!(pool.allocate(T0 + Duration::from_secs(30)), Some(only));

        let mut pool = self::pool("10.0.0.0/29");
        let out = all(&mut pool, T0);
        pool.release(out[0], T0);
        pool.release(out[1], T0 + Duration::from_secs(10));
        assert!(pool.claim(out[1]));
        pool.cancel(out[1]);
        assert_eq!(pool.allocate(T0 + Duration::from_secs(30)), Some(out[0]), "the earlier release first");
    }

    #[test]
    fn a_release_ends_the_claim_during_an_earlier_cooldown() {
        let mut pool = pool("10.0.0.0/29");
        let out = all(&mut pool, T0);
        pool.release(out[0], T0);
        assert!(pool.claim(out[0]));
        pool.release(out[0], T0 + Duration::from_secs(1));
        let later = T0 + Duration::from_secs(31);
        assert_eq!(pool.allocate(later), Some(out[0]));
        pool.cancel(out[0]);
        assert_eq!(pool.released.len(), 0, "the new holder was not claimed during a cooldown");
        assert_eq!(pool.allocate(later), Some(out[0]));
    }

    #[test]
    fn only_free_addresses_that_are_allocated_resume_a_cooldown() {
        let mut pool = pool("10.0.0.0/30");
        for address in ["10.0.0.0", "10.0.0.1", "10.0.0.3", "10.9.0.2"] {
            pool.resume_cooldown(ip(address), T0);
        }
        assert!(pool.claim(ip("10.0.0.2")));
        pool.resume_cooldown(ip("10.0.0.2"), T0);
        assert_eq!((pool.released.len(), pool.allocate(T0 + Duration::from_secs(60))), (0, None));
    }

    #[test]
    fn claimed_fresh_address_enters_cooldown_when_released() {
        let mut pool = pool("10.0.0.0/29");
        assert!(pool.claim(ip("10.0.0.3")));
        pool.release(ip("10.0.0.3"), T0);
        pool.resume_cooldown(ip("10.0.0.5"), T0);
        let fresh: Vec<IpAddr> = std::iter::from_fn(|| pool.allocate(T0)).collect();
        assert_eq!(fresh, ["10.0.0.2", "10.0.0.4", "10.0.0.6"].map(ip));
        let cooled_down: Vec<IpAddr> =
            std::iter::from_fn(|| pool.allocate(T0 + Duration::from_secs(30))).collect();
        assert_eq!(cooled_down, ["10.0.0.3", "10.0.0.5"].map(ip));
        assert!(pool.ahead.is_empty() && pool.released.is_empty());
    }

    proptest! {
        /// Against a model: an address in use is never allocated, and a released one only after its cooldown.
        #[test]
        fn no_address_is_allocated_twice(steps in prop::collection::vec((0..4_u8, 0..40_u64), 1..400)) {
            let mut pool = pool("10.0.0.0/28");
            let mut out: Vec<IpAddr> = Vec::new();
            let mut released_at: std::collections::HashMap<IpAddr, Duration> = Default::default();
            let mut now = T0;
            for (step, pick) in steps {
                match step {
                    0 => now += Duration::from_secs(pick),
                    1 if !out.is_empty() => {
                        let address = out.swap_remove(pick as usize % out.len());
                        pool.release(address, now);
                        released_at.insert(address, now);
                    }
                    2 if !out.is_empty() => pool.cancel(out.swap_remove(pick as usize % out.len())),
                    _ => if let Some(address) = pool.allocate(now) {
                        prop_assert!(!out.contains(&address));
                        if let Some(since) = released_at.remove(&address) {
                            prop_assert!(now - since >= Duration::from_secs(30));
                        }
                        out.push(address);
                    }
                }
                prop_assert_eq!(pool.used(), out.len());
            }
            let free = pool.free(now);
            let coming_back = pool.cooling_down(now) as u128;
            let at_once = std::iter::from_fn(|| pool.allocate(now)).count();
            prop_assert_eq!(free, at_once as u128);
            let later = std::iter::from_fn(|| pool.allocate(now + Duration::from_secs(30))).count();
            prop_assert_eq!(coming_back, later as u128);
        }
    }
}
