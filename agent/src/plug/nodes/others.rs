//! Routes of other programs that may concern other nodes' ranges, and the node's default routes. Kept between
//! passes: a routing daemon may have a million routes that do not concern the agent.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily,
    route::{RouteMessage, RouteProtocol},
};

use super::{
    super::{
        host_route::ROUTE_PROTOCOL,
        netlink::{NetlinkError, Socket},
        parse,
        route_scan::{RT_TABLE_LOCAL, RT_TABLE_MAIN, scan},
        uplink::default_route,
    },
    areas::Areas,
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherRoutes {
    /// Where routes are known.
    pub areas: Areas,
    /// Destinations in these areas.
    inside: BTreeSet<IpNet>,
    /// The interfaces of the default routes.
    pub uplinks: BTreeSet<u32>,
}

// === impl OtherRoutes ===

impl OtherRoutes {
    /// Reads all routes, and keeps those in the areas.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn read(host: &mut Socket, areas: Areas) -> Result<Self, NetlinkError> {
        let mut found = Self::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            for table in [RT_TABLE_MAIN, RT_TABLE_LOCAL] {
                let is_wanted = |to: IpNet| to.prefix_len() == 0 || areas.contain(&to);
                let Self { inside, uplinks, .. } =
                    scan(host, (family, table), is_wanted, |found: &mut Self, route| found.add(route))?;
                found.inside.extend(inside);
                found.uplinks.extend(uplinks);
            }
        }
        Ok(Self { areas, ..found })
    }

    /// Of these ranges, those that a route leads into, each with the route's destination.
    pub fn into_ranges(&self, ranges: &BTreeSet<IpNet>) -> BTreeMap<IpNet, IpNet> {
        let range = |to: &IpNet| {
            let around =
                (0..=to.prefix_len()).filter_map(|len| Some(IpNet::new(to.addr(), len).ok()?.trunc()));
            around.into_iter().find(|it| ranges.contains(it))
        };
        self.inside.iter().filter_map(|to| Some((range(to)?, *to))).collect()
    }

    fn add(&mut self, route: &RouteMessage) {
        let is_ours = route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL);
        match parse::destination(route) {
            Some(to) if to.prefix_len() == 0 => {
                self.uplinks.extend(default_route(route).into_iter().flat_map(|(_, interfaces)| interfaces));
            }
            Some(to) if !is_ours => {
                self.inside.insert(to);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rtnetlink::RouteMessageBuilder;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn of(to: &str, protocol: RouteProtocol) -> OtherRoutes {
        let IpNet::V4(to) = net(to) else { panic!("{to}") };
        let builder =
            RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to.network(), to.prefix_len());
        let mut found = OtherRoutes::default();
        found.add(&builder.protocol(protocol).output_interface(7).build());
        found
    }

    #[test]
    fn a_route_of_another_program_counts_if_it_leads_into_a_range() {
        let ranges = BTreeSet::from([net("10.2.0.0/24"), net("fd00::/64")]);
        let into = |to: &str, protocol| of(to, protocol).into_ranges(&ranges).into_iter().next();
        let (bird, range) = (RouteProtocol::Bird, net("10.2.0.0/24"));
        assert_eq!(into("10.2.0.5/32", bird), Some((range, net("10.2.0.5/32"))));
        assert_eq!(into("10.2.0.0/24", bird), Some((range, range)));
        assert_eq!(into("10.2.0.0/32", RouteProtocol::Kernel), Some((range, net("10.2.0.0/32"))));
        for (to, protocol) in [
            ("10.0.0.0/8", bird),
            ("10.3.0.0/24", bird),
            ("10.2.0.0/24", RouteProtocol::Other(ROUTE_PROTOCOL)),
        ] {
            assert_eq!(into(to, protocol), None, "{to}");
        }
    }

    #[test]
    fn a_default_route_leads_to_an_uplink_and_into_no_range() {
        let found = of("0.0.0.0/0", RouteProtocol::Dhcp);
        assert_eq!((found.uplinks, found.inside), (BTreeSet::from([7]), BTreeSet::new()));
    }
}
