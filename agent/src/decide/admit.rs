//! The rules that a VIF must satisfy on this node, whatever its source.
//!
//! Every user who can write pods can write annotations. A VIF with another pod's address would receive that
//! pod's packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_vif::{Addresses, Format, InterfaceRequest, Kind, Vif, VifKind};
use ipnet::IpNet;

use crate::ipam::is_unicast;

/// The admission rules of this node.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// Ranges that addresses must be in.
    pub ranges: &'a [IpNet],
    /// Whether the administrator configured the ranges (`--vif-cidr`), rather than the node's pod CIDRs.
    pub ranges_are_explicit: bool,
    /// The node's own addresses.
    pub own: &'a [IpAddr],
    /// The gateway of all pods, IPv4 and IPv6.
    pub gateway: (Ipv4Addr, Ipv6Addr),
}

/// A VIF that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("interface {ifname} has the kind {kind}, which is not supported yet; expected veth")]
    Kind { ifname: String, kind: String },
    #[error("interface {ifname} has a second address of one family, {second}; expected at most one")]
    SecondAddress { ifname: String, second: IpAddr },
    #[error("interface {ifname} has no address")]
    NoAddress { ifname: String },
    #[error("interface {ifname} has a second gateway of one family, {second}; expected at most one")]
    SecondGateway { ifname: String, second: IpAddr },
    #[error(
        "the route to {dst} of interface {ifname} has an MTU of {mtu} bytes, expected at most the interface's {own}"
    )]
    RouteMtu { ifname: String, dst: IpNet, mtu: u32, own: u32 },
    #[error("the address {address} of interface {ifname} is outside the ranges for pods ({ranges})")]
    OutOfRange { ifname: String, address: IpAddr, ranges: String },
    #[error("the address {address} of interface {ifname} belongs to the node")]
    Own { ifname: String, address: IpAddr },
    #[error("the address {address} of interface {ifname} is not a unicast address that a pod can have")]
    NotUnicast { ifname: String, address: IpAddr },
}

// === impl Rules ===

impl Rules<'_> {
    /// Validates a requested interface and fills in the fields that its source left open; `mtu` (bytes) is
    /// the default.
    ///
    /// # Errors
    /// If the interface breaks a rule.
    pub fn resolve(
        &self,
        format: Format,
        interface: &InterfaceRequest,
        is_default: bool,
        mtu: u32,
    ) -> Result<Vif, Refused> {
        let ifname = || interface.name.clone();
        let kind = match &interface.kind {
            Kind::Veth => VifKind::Veth,
            Kind::Other(kind) => return Err(Refused::Kind { ifname: ifname(), kind: kind.clone() }),
        };
        let addresses = Addresses::collect(interface.addresses.iter().map(IpNet::addr))
            .map_err(|second| Refused::SecondAddress { ifname: ifname(), second })?;
        let gateways = Addresses::collect(interface.gateways.iter().copied())
            .map_err(|second| Refused::SecondGateway { ifname: ifname(), second })?;
        if addresses == Addresses::default() {
            return Err(Refused::NoAddress { ifname: ifname() });
        }
        for address in addresses.iter() {
            self.check(format, address, &ifname())?;
        }
        let mtu = interface.mtu.unwrap_or(mtu);
        // The kernel would accept the route, and build packets that the interface drops.
        for route in &interface.routes {
            if let Some(larger) = route.mtu.filter(|it| *it > mtu) {
                return Err(Refused::RouteMtu { ifname: ifname(), dst: route.dst, mtu: larger, own: mtu });
            }
        }
        Ok(Vif {
            kind,
            mac: interface.mac.unwrap_or_else(|| addresses.mac()),
            mtu,
            addresses,
            is_ipv6_first: interface.addresses.first().is_some_and(|first| first.addr().is_ipv6()),
            gateways,
            is_default,
            routes: interface.routes.clone(),
        })
    }

    fn check(&self, format: Format, address: IpAddr, ifname: &str) -> Result<(), Refused> {
        let ifname = || ifname.to_owned();
        if !is_unicast(address) || address == self.gateway.0 || address == self.gateway.1 {
            return Err(Refused::NotUnicast { ifname: ifname(), address });
        }
        if self.own.contains(&address) {
            return Err(Refused::Own { ifname: ifname(), address });
        }
        // Pods' users cannot write KuryrPorts, so that Neutron's subnets need no configuration on each node.
        let trusted =
            matches!(format, Format::KuryrPort | Format::KuryrPortSpec) && !self.ranges_are_explicit;
        if !trusted && !self.ranges.iter().any(|range| range.contains(&address)) {
            let ranges: Vec<String> = self.ranges.iter().map(IpNet::to_string).collect();
            let ranges = if ranges.is_empty() { "none".to_owned() } else { ranges.join(", ") };
            return Err(Refused::OutOfRange { ifname: ifname(), address, ranges });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plug::GATEWAY;

    fn interface(addresses: &[&str]) -> InterfaceRequest {
        let json = serde_json::json!({ "interfaces": [{ "name": "eth0", "addresses": ["10.0.0.9"] }] });
        let mut interface = ferrule_vif::from_annotation(&json.to_string()).unwrap().interfaces.remove(0);
        let parse = |text: &&str| IpNet::from(text.parse::<IpAddr>().unwrap());
        interface.addresses = addresses.iter().map(parse).collect();
        interface
    }

    fn resolve(format: Format, interface: &InterfaceRequest) -> Result<Vif, Refused> {
        let ranges = ["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let own = ["10.0.0.1".parse().unwrap()];
        let rules = Rules { ranges: &ranges, ranges_are_explicit: false, own: &own, gateway: GATEWAY };
        rules.resolve(format, interface, true, 1400)
    }

    #[test]
    fn the_agent_fills_in_the_fields_that_a_source_leaves_open() {
        let vif = resolve(Format::Annotation, &interface(&["10.0.0.9", "fd00::9"])).unwrap();
        assert_eq!((vif.mtu, vif.mac.to_string().as_str()), (1400, "0a:fe:0a:00:00:09"));
        assert_eq!(vif.addresses.iter().count(), 2);
    }

    #[test]
    fn addresses_outside_the_ranges_or_of_the_node_are_refused() {
        let refused = |addresses: &[&str]| resolve(Format::Annotation, &interface(addresses)).unwrap_err();
        assert!(matches!(refused(&["10.0.1.9"]), Refused::OutOfRange { .. }));
        assert!(matches!(refused(&["10.0.0.9", "2001:db8::1"]), Refused::OutOfRange { .. }));
        assert!(matches!(refused(&["10.0.0.1"]), Refused::Own { .. }));
        assert!(matches!(refused(&["127.0.0.1"]), Refused::NotUnicast { .. }));
        assert!(matches!(refused(&["169.254.1.1"]), Refused::NotUnicast { .. }));
        assert!(matches!(refused(&[]), Refused::NoAddress { .. }));
        assert!(matches!(refused(&["10.0.0.8", "10.0.0.9"]), Refused::SecondAddress { .. }));
    }

    #[test]
    fn a_route_mtu_above_the_interface_mtu_is_refused() {
        let mut interface = interface(&["10.0.0.9"]);
        let route = |mtu| ferrule_vif::Route {
            mtu: Some(mtu),
            ..ferrule_vif::Route::new("10.9.0.0/16".parse().unwrap(), None)
        };
        interface.routes = vec![route(1400)];
        assert!(resolve(Format::Annotation, &interface).is_ok(), "the uplink's MTU is 1400");
        interface.routes = vec![route(1401)];
        assert!(matches!(resolve(Format::Annotation, &interface), Err(Refused::RouteMtu { .. })));
    }

    #[test]
    fn a_kuryr_port_may_use_a_foreign_subnet_and_an_annotation_may_not() {
        let foreign = interface(&["10.11.9.5"]);
        assert!(resolve(Format::KuryrPort, &foreign).is_ok());
        assert!(matches!(resolve(Format::KuryrPodState, &foreign), Err(Refused::OutOfRange { .. })));
    }

    #[test]
    fn an_explicit_range_binds_kuryr_ports_too() {
        let ranges = ["10.11.0.0/16".parse().unwrap()];
        let rules = Rules { ranges: &ranges, ranges_are_explicit: true, own: &[], gateway: GATEWAY };
        for format in [Format::KuryrPort, Format::KuryrPortSpec] {
            assert!(rules.resolve(format, &interface(&["10.11.9.5"]), true, 1400).is_ok());
            let refused = rules.resolve(format, &interface(&["10.12.9.5"]), true, 1400).unwrap_err();
            assert!(refused.to_string().contains("outside the ranges for pods (10.11.0.0/16)"), "{refused}");
        }
        let none = Rules { ranges: &[], ..rules };
        let refused = none.resolve(Format::Annotation, &interface(&["10.11.9.5"]), true, 1400).unwrap_err();
        assert!(refused.to_string().contains("(none)"), "{refused}");
    }

    #[test]
    fn the_primary_address_is_the_first_one() {
        let vif = |addresses: &[&str]| resolve(Format::Annotation, &interface(addresses)).unwrap();
        let order = |vif: Vif| vif.by_preference().map(|it| it.to_string()).collect::<Vec<_>>();
        assert_eq!(order(vif(&["fd00::9", "10.0.0.9"])), ["fd00::9", "10.0.0.9"]);
        assert_eq!(order(vif(&["10.0.0.9", "fd00::9"])), ["10.0.0.9", "fd00::9"]);
    }

    #[test]
    fn given_fields_and_further_gateways_are_kept_or_refused() {
        let mut given = interface(&["10.0.0.9"]);
        given.mtu = Some(1300);
        given.mac = Some(ferrule_vif::Mac([0x02, 0, 0, 0, 0, 7]));
        given.gateways = vec!["10.0.0.254".parse().unwrap()];
        let vif = resolve(Format::Annotation, &given).unwrap();
        assert_eq!((vif.mtu, vif.gateways.to_string().as_str()), (1300, "10.0.0.254"));
        assert_eq!(vif.mac.to_string(), "02:00:00:00:00:07");
        given.gateways.push("10.0.0.253".parse().unwrap());
        assert!(matches!(resolve(Format::Annotation, &given), Err(Refused::SecondGateway { .. })));
        let ours = ("10.0.0.254".parse().unwrap(), "fd00::254".parse().unwrap());
        let rules = Rules { ranges: &[], ranges_are_explicit: false, own: &[], gateway: ours };
        for gateway in ["10.0.0.254", "fd00::254"] {
            let refused = rules.resolve(Format::KuryrPort, &interface(&[gateway]), true, 1400).unwrap_err();
            assert!(matches!(refused, Refused::NotUnicast { .. }), "{gateway}: {refused}");
        }
    }

    #[test]
    fn an_unsupported_kind_is_refused_by_name() {
        let nested =
            InterfaceRequest { kind: Kind::Other("VIFVlanNested".to_owned()), ..interface(&["10.0.0.9"]) };
        let refused = resolve(Format::KuryrPort, &nested).unwrap_err().to_string();
        assert!(refused.contains("VIFVlanNested") && refused.contains("not supported yet"), "{refused}");
    }
}
