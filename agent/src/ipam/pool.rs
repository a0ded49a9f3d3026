//! The addresses of one range.
//!
//! An address that was never used comes first, then the one that has been free for longest: so that whoever still
//! holds an old address in a cache or a connection table does not reach another pod with it. When [`MANY`] are free that
//! were used, new ones are no longer needed for that, and what is remembered of a range that never ends has an end.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use ipnet::IpNet;

/// Why a range cannot be used for pods.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RangeError {
    #[error("the pod CIDR {given} has bits set behind its prefix; was {meant} meant?")]
    HostBits { given: IpNet, meant: IpNet },
    #[error(
        "the pod CIDR {0} has no room: its first and last addresses and the one for a gateway are not given to pods"
    )]
    NoRoom(IpNet),
    #[error(
        "the pod CIDR {0} has addresses in it that cannot be routed: loopback, link-local, multicast, reserved"
    )]
    NotUnicast(IpNet),
}

/// The addresses of one range. Times are since boot.
#[derive(Debug)]
pub struct Pool {
    net: IpNet,
    /// Those that are given out, from here to there; others can be claimed.
    first: u128,
    last: u128,
    /// The next address that was never given out.
    fresh: u128,
    /// Given out and given back before they were used: they go first, as if never given out.
    returned: Vec<u128>,
    used: HashSet<u128>,
    /// Longest free first.
    released: VecDeque<(u128, Duration)>,
    /// Those of them that are ahead of `fresh`: somebody had claimed them.
    ahead: HashSet<u128>,
    /// The node's own, which no pod gets; some may be a pod's already.
    own: HashSet<u128>,
    /// Claimed while they were at rest, and since when they were.
    disturbed: HashMap<u128, Duration>,
}

/// What no pod can have, because the dataplane never lets it pass or the gateways are in it: this host, loopback,
/// link-local, multicast, reserved, and IPv4 in IPv6.
const NEVER: [&str; 8] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/96",
    "::ffff:0:0/96",
    "fe80::/10",
    "ff00::/8",
];

/// So many addresses that were used and are free are enough to choose from.
const MANY: usize = 1024;
/// How long an address stays unused after its pod has gone.
pub const COOLDOWN: Duration = Duration::from_secs(30);

// === impl Pool ===

impl Pool {
    /// # Errors
    /// If the range is not one, or holds no address that a pod could get.
    pub fn new(net: IpNet) -> Result<Self, RangeError> {
        if net != net.trunc() {
            return Err(RangeError::HostBits { given: net, meant: net.trunc() });
        }
        if never().any(|range| range.contains(&net) || net.contains(&range)) {
            return Err(RangeError::NotUnicast(net));
        }
        let address = net.network();
        // The first is the network's (IPv4) or any router's (IPv6, RFC 4291 2.6.1), the second by custom the
        // gateway's, IPv4's last is broadcast.
        let fresh = number(address) + 2;
        let last = match net.broadcast() {
            IpAddr::V4(broadcast) => number(broadcast.into()).saturating_sub(1),
            IpAddr::V6(last) => number(last.into()),
        };
        if fresh > last {
            return Err(RangeError::NoRoom(net));
        }
        Ok(Self {
            net,
            first: fresh,
            last,
            fresh,
            returned: Vec::new(),
            used: HashSet::new(),
            released: VecDeque::new(),
            ahead: HashSet::new(),
            own: HashSet::new(),
            disturbed: HashMap::new(),
        })
    }

    pub fn net(&self) -> IpNet {
        self.net
    }

    /// Takes an address.
    pub fn take(&mut self, now: Duration) -> Option<IpAddr> {
        loop {
            let number = self.next(now)?;
            // The node's own are not looked for again: they are few, and a restart finds those that it has given up.
            if !self.own.contains(&number) {
                self.used.insert(number);
                return Some(self.address(number));
            }
        }
    }

    /// Keeps the node's own addresses from pods, and no others that were its own before.
    pub fn exclude(&mut self, own: &[IpAddr]) {
        self.own = own.iter().filter(|it| self.net.contains(*it)).map(|it| number(*it)).collect();
    }

    /// Takes a certain address, as a restart does for those in use.
    pub fn claim(&mut self, address: IpAddr) -> bool {
        let number = number(address);
        if !self.net.contains(&address) || !self.used.insert(number) {
            return false;
        }
        self.returned.retain(|returned| *returned != number);
        self.ahead.remove(&number);
        let at = self.released.iter().position(|(released, _)| *released == number);
        if let Some((_, since)) = at.and_then(|at| self.released.remove(at)) {
            self.disturbed.insert(number, since);
        }
        true
    }

    /// Lets an address rest that is not known yet, as a restart finds it: the first to be released comes first.
    pub fn rest(&mut self, address: IpAddr, since: Duration) {
        let number = number(address);
        if self.net.contains(&address) && !self.used.contains(&number) && self.gives(number) {
            self.ahead.insert(number);
            self.released.push_back((number, since));
        }
    }

    /// Gives back an address that has been in use, to rest first.
    pub fn release(&mut self, address: IpAddr, now: Duration) {
        let number = number(address);
        self.disturbed.remove(&number);
        if self.used.remove(&number) && self.gives(number) {
            self.let_rest(self.released.len(), number, now);
        }
    }

    /// Gives back an address that was not used this time. One that was at rest goes on resting.
    pub fn cancel(&mut self, address: IpAddr) {
        let number = number(address);
        let since = self.disturbed.remove(&number);
        if !self.used.remove(&number) || !self.gives(number) {
            return;
        }
        match since {
            Some(since) => {
                let at = self.released.partition_point(|(_, other)| *other <= since);
                self.let_rest(at, number, since);
            }
            None => self.returned.push(number),
        }
    }

    /// Whether an address is one that pods are given: not a network's own, a gateway's by custom, nor broadcast.
    fn gives(&self, number: u128) -> bool {
        (self.first..=self.last).contains(&number)
    }

    /// How many addresses rest.
    pub fn resting(&self, now: Duration) -> usize {
        self.released.iter().filter(|(_, since)| !rested(*since, now)).count()
    }

    pub fn used(&self) -> usize {
        self.used.len()
    }

    fn next(&mut self, now: Duration) -> Option<u128> {
        let returned = self.returned.pop();
        if self.released.len() < MANY {
            returned.or_else(|| self.take_fresh()).or_else(|| self.take_rested(now))
        } else {
            returned.or_else(|| self.take_rested(now)).or_else(|| self.take_fresh())
        }
    }

    fn let_rest(&mut self, at: usize, number: u128, since: Duration) {
        if number >= self.fresh {
            self.ahead.insert(number);
        }
        self.released.insert(at, (number, since));
    }

    fn take_fresh(&mut self) -> Option<u128> {
        while self.fresh <= self.last {
            let number = self.fresh;
            self.fresh += 1;
            let is_at_rest = self.ahead.remove(&number);
            if !is_at_rest && !self.used.contains(&number) && !self.returned.contains(&number) {
                return Some(number);
            }
        }
        None
    }

    fn take_rested(&mut self, now: Duration) -> Option<u128> {
        let (_, since) = self.released.front()?;
        if !rested(*since, now) {
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
            // The number came from an IPv4 address, so its upper bits are zero.
            IpNet::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }
}

/// Whether a pod can have an address at all.
pub fn is_unicast(address: IpAddr) -> bool {
    !never().any(|range| range.contains(&address))
}

fn never() -> impl Iterator<Item = IpNet> {
    NEVER.iter().filter_map(|range| range.parse().ok())
}

fn rested(since: Duration, now: Duration) -> bool {
    now.saturating_sub(since) >= COOLDOWN
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T0: Duration = Duration::from_secs(1000);

    fn pool(net: &str) -> Pool {
        Pool::new(net.parse().unwrap()).unwrap()
    }

    fn ip(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    #[test]
    fn network_gateway_and_broadcast_are_never_given_out() {
        let mut pool = pool("10.0.0.0/29");
        let all: Vec<IpAddr> = std::iter::from_fn(|| pool.take(T0)).collect();
        assert_eq!(all, ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"].map(ip));
    }

    #[test]
    fn the_router_anycast_address_of_ipv6_is_never_given_out() {
        let mut pool = pool("fd00::/126");
        let all: Vec<IpAddr> = std::iter::from_fn(|| pool.take(T0)).collect();
        assert_eq!(all, ["fd00::2", "fd00::3"].map(ip));
    }

    #[test]
    fn ranges_without_room_or_sense_are_refused() {
        let refuse = |net: &str| Pool::new(net.parse().unwrap()).unwrap_err();
        for net in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/127", "fd00::/128"] {
            assert_eq!(refuse(net), RangeError::NoRoom(net.parse().unwrap()));
        }
        for net in [
            "224.0.0.0/8",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "fe80::/64",
            "ff00::/8",
            "0.0.0.0/0",
            "::/0",
            "0.1.0.0/16",
            "240.0.0.0/8",
            "128.0.0.0/1",
            "169.0.0.0/8",
            "::10.0.0.0/120",
        ] {
            assert_eq!(refuse(net), RangeError::NotUnicast(net.parse().unwrap()), "{net}");
        }
        let error = refuse("10.0.0.7/24").to_string();
        assert!(error.contains("10.0.0.0/24"), "it says what may have been meant: {error}");
    }

    #[test]
    fn pain_22_an_address_is_not_reused_before_it_has_rested_and_then_oldest_first() {
        let mut pool = pool("10.0.0.0/29");
        let all: Vec<IpAddr> = std::iter::from_fn(|| pool.take(T0)).collect();
        pool.release(all[3], T0);
        pool.release(all[1], T0 + Duration::from_secs(1));
        assert_eq!(pool.take(T0 + COOLDOWN - Duration::from_millis(1)), None);
        assert_eq!(pool.resting(T0), 2);
        assert_eq!(pool.take(T0 + COOLDOWN), Some(all[3]));
        assert_eq!(pool.take(T0 + COOLDOWN), None, "the other one rests a second longer");
        assert_eq!(pool.take(T0 + COOLDOWN + Duration::from_secs(1)), Some(all[1]));
    }

    #[test]
    fn an_address_that_was_never_used_comes_before_one_that_rested() {
        let mut pool = pool("10.0.0.0/29");
        let first = pool.take(T0).unwrap();
        pool.release(first, T0);
        assert_eq!(pool.take(T0 + COOLDOWN * 2), Some(ip("10.0.0.3")));
    }

    #[test]
    fn what_is_remembered_of_a_range_that_never_ends_has_an_end() {
        let mut pool = pool("fd00::/64");
        let mut now = T0;
        for _ in 0..20_000 {
            let address = pool.take(now).unwrap();
            pool.release(address, now);
            now += Duration::from_millis(10);
        }
        assert_eq!((pool.released.len(), pool.ahead.len()), (MANY.max(3000), 0));
        // Faster than they can rest, new ones go on coming.
        for _ in 0..2 * MANY {
            let address = pool.take(now).unwrap();
            pool.release(address, now);
        }
        assert!(pool.take(now).is_some() && pool.released.len() <= 3000 + 2 * MANY);
    }

    #[test]
    fn an_address_that_is_given_back_unused_is_the_next_one() {
        let mut pool = pool("10.0.0.0/29");
        let first = pool.take(T0).unwrap();
        pool.cancel(first);
        assert_eq!(pool.take(T0), Some(first));
    }

    #[test]
    fn a_claimed_address_is_not_given_out() {
        let mut pool = pool("10.0.0.0/29");
        assert!(pool.claim(ip("10.0.0.2")));
        assert!(!pool.claim(ip("10.0.0.2")), "it is taken");
        assert!(!pool.claim(ip("10.9.0.2")), "it is another range's");
        assert_eq!(pool.take(T0), Some(ip("10.0.0.3")));
    }

    #[test]
    fn an_address_that_the_node_gets_while_a_pod_has_it_is_no_other_pods_after() {
        let mut pool = pool("10.0.0.0/29");
        let (first, second) = (pool.take(T0).unwrap(), pool.take(T0).unwrap());
        pool.exclude(&[first, second, ip("10.0.0.5"), ip("192.0.2.1")]);
        pool.release(first, T0);
        pool.cancel(second);
        let later = T0 + 2 * COOLDOWN;
        let rest: Vec<IpAddr> = std::iter::from_fn(|| pool.take(later)).collect();
        assert_eq!(rest, ["10.0.0.4", "10.0.0.6"].map(ip));
    }

    #[test]
    fn an_address_that_is_claimed_ahead_and_released_rests_like_any_other() {
        let mut pool = pool("10.0.0.0/29");
        assert!(pool.claim(ip("10.0.0.3")));
        pool.release(ip("10.0.0.3"), T0);
        pool.rest(ip("10.0.0.5"), T0);
        let fresh: Vec<IpAddr> = std::iter::from_fn(|| pool.take(T0)).collect();
        assert_eq!(fresh, ["10.0.0.2", "10.0.0.4", "10.0.0.6"].map(ip));
        let rested: Vec<IpAddr> = std::iter::from_fn(|| pool.take(T0 + COOLDOWN)).collect();
        assert_eq!(rested, ["10.0.0.3", "10.0.0.5"].map(ip));
        assert!(pool.ahead.is_empty() && pool.released.is_empty());
    }

    proptest! {
        /// Against a model: what is out is never given out again, and a released one only once it has rested.
        #[test]
        fn no_address_is_given_out_twice(steps in prop::collection::vec((0..4_u8, 0..40_u64), 1..400)) {
            let mut pool = pool("10.0.0.0/28");
            let mut out: Vec<IpAddr> = Vec::new();
            let mut rests: std::collections::HashMap<IpAddr, Duration> = Default::default();
            let mut now = T0;
            for (step, pick) in steps {
                match step {
                    0 => now += Duration::from_secs(pick),
                    1 if !out.is_empty() => {
                        let address = out.swap_remove(pick as usize % out.len());
                        pool.release(address, now);
                        rests.insert(address, now);
                    }
                    2 if !out.is_empty() => pool.cancel(out.swap_remove(pick as usize % out.len())),
                    _ => if let Some(address) = pool.take(now) {
                        prop_assert!(!out.contains(&address));
                        if let Some(since) = rests.remove(&address) {
                            prop_assert!(now - since >= COOLDOWN);
                        }
                        out.push(address);
                    }
                }
                prop_assert_eq!(pool.used(), out.len());
            }
        }
    }
}
