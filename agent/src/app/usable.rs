//! Whether a node can use a range for its pods.

use ipnet::IpNet;

use crate::{
    ipam::{PodCidrs, overlap},
    plug::connected::Connected,
};

/// Pods would get the addresses of the node's neighbours.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pod CIDR {range} overlaps {}, the network of this node's interface {}, and pods would get the addresses of \
     the neighbours there: choose another range (--pod-cidr, or spec.podCIDRs of the Node), or remove the interface",
    of.net, of.interface
)]
pub struct UnusableRange {
    range: IpNet,
    of: Connected,
}

/// # Errors
/// If a range overlaps a network of the node.
pub(super) fn check(ranges: &PodCidrs, networks: Vec<Connected>) -> Result<(), UnusableRange> {
    for of in networks {
        if let Some(range) = ranges.nets().iter().find(|range| overlap(range, &of.net)) {
            return Err(UnusableRange { range: *range, of });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_overlaps_a_network_of_the_node_is_refused_with_its_interface() {
        let ranges = vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let ranges = PodCidrs::new(ranges).unwrap();
        let of = |net: &str| vec![Connected { net: net.parse().unwrap(), interface: "eth7".to_owned() }];
        for net in ["10.0.0.0/25", "10.0.0.0/16", "fd00::/48"] {
            let error = check(&ranges, of(net)).unwrap_err().to_string();
            assert!(error.contains(net) && error.contains("interface eth7"), "{error}");
        }
        assert_eq!(check(&ranges, [of("10.0.1.0/24"), of("192.0.2.0/24")].concat()), Ok(()));
    }
}
