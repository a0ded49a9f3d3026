//! The networks around other nodes' ranges. Routes outside of these concern no range, and no notification
//! about one is worth a look; a further node has a range inside, most often.

use std::collections::BTreeSet;

use ipnet::IpNet;

/// No network is in another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Areas(BTreeSet<IpNet>);

/// As large as a cluster's network usually is, and smaller than what a routing daemon learns from the world.
const IPV4: u8 = 12;
const IPV6: u8 = 48;

// === impl Areas ===

impl Areas {
    /// Those around ranges.
    pub fn around<'a>(ranges: impl IntoIterator<Item = &'a IpNet>) -> Self {
        let around = |range: &IpNet| {
            let len = if range.addr().is_ipv4() { IPV4 } else { IPV6 };
            IpNet::new(range.addr(), range.prefix_len().min(len)).ok().map(|it| it.trunc())
        };
        let nets: BTreeSet<_> = ranges.into_iter().filter_map(around).collect();
        Self(IpNet::aggregate(&Vec::from_iter(nets)).into_iter().collect())
    }

    /// Whether a network is inside.
    pub fn contain(&self, net: &IpNet) -> bool {
        // Behind each area that begins at or before the network's first address.
        let last = IpNet::from(net.addr());
        self.0.range(..=last).next_back().is_some_and(|area| area.contains(net))
    }

    /// Whether all of these are inside.
    pub fn contain_all(&self, others: &Self) -> bool {
        others.0.iter().all(|area| self.contain(area))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn around(ranges: &[&str]) -> Areas {
        Areas::around(&ranges.iter().map(|it| net(it)).collect::<Vec<_>>())
    }

    #[test]
    fn an_area_contains_the_range_and_those_of_further_nodes() {
        let areas = around(&["10.244.1.0/24", "10.244.2.0/24", "fd00:10:244:1::/64", "172.0.0.0/8"]);
        for inside in
            ["10.244.1.0/24", "10.244.200.7/32", "10.240.0.0/12", "fd00:10:244:9::1/128", "172.31.0.0/16"]
        {
            assert!(areas.contain(&net(inside)), "{inside}");
        }
        for outside in ["10.0.0.0/8", "10.32.0.0/16", "0.0.0.0/0", "fd00:10:245::/64", "::/0", "192.0.2.0/24"]
        {
            assert!(!areas.contain(&net(outside)), "{outside}");
        }
        assert!(!Areas::default().contain(&net("10.244.1.0/24")));
    }

    #[test]
    fn areas_of_further_ranges_are_inside_unless_one_is_elsewhere() {
        let areas = around(&["10.244.1.0/24", "10.0.0.0/9", "fd00::/64"]);
        assert!(areas.contain_all(&around(&["10.244.9.0/24", "10.1.0.0/24"])));
        assert!(areas.contain_all(&Areas::default()));
        assert!(!areas.contain_all(&around(&["10.244.9.0/24", "10.192.0.0/24"])));
        assert!(!areas.contain_all(&around(&["fd00:1::/64"])));
    }
}
