//! An os_vif VIF of any class.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;

use super::ovo;
use crate::{
    InterfaceRequest, Kind, Route,
    cursor::{Cursor, Object},
    error::FieldError,
    json::Json,
    rules,
};

/// Fields of all classes that are for display only.
const DETAILS: [&str; 13] = [
    "bridge_name",
    "dev_address",
    "dev_driver",
    "dev_type",
    "id",
    "mode",
    "path",
    "pci_address",
    "physnet",
    "plugin",
    "vif_name",
    "vlan_id",
    "vlan_name",
];
/// Characters.
const MAX_DETAIL: usize = 128;

/// The combined subnets of a VIF.
#[derive(Default)]
struct Subnets {
    addresses: Vec<IpNet>,
    gateways: Vec<IpAddr>,
    routes: Vec<Route>,
}

/// Decodes a VIF. `name` is the interface's name in the pod.
pub(crate) fn decode(at: &Cursor<'_>, name: String) -> Result<InterfaceRequest, FieldError> {
    let (class, data) = ovo::any(at)?;
    let kind = match class.text_by(rules::kind_name)? {
        "VIFGeneric" => Kind::Veth,
        other if other.starts_with("VIF") => Kind::Other(other.to_owned()),
        _ => return Err(class.unexpected("a class of VIFs such as \"VIFGeneric\"")),
    };
    let network = data.get("network").map(|at| ovo::named(&at, "Network")).transpose()?;
    let mut subnets = Subnets::default();
    if let Some(network) = &network {
        for subnet in ovo::list(network, "subnets", "SubnetList", "Subnet")? {
            subnets.add(&subnet)?;
        }
    }
    let Subnets { addresses, gateways, routes } = subnets;
    let mtu = network.as_ref().and_then(|network| network.get("mtu"));
    Ok(InterfaceRequest {
        name,
        kind,
        // os_vif's default.
        active: data.get("active").map_or(Ok(true), |at| at.bool())?,
        mac: data.get("address").map(|at| at.text_by(rules::mac)).transpose()?,
        mtu: mtu.map(|at| at.number_by(rules::BYTES, |mtu| rules::mtu(mtu, &addresses))).transpose()?,
        addresses,
        gateways,
        routes,
        details: details(&data),
    })
}

// === impl Subnets ===

impl Subnets {
    fn add(&mut self, subnet: &Object<'_>) -> Result<(), FieldError> {
        let net: Option<IpNet> = subnet.get("cidr").map(|at| network(&at)).transpose()?;
        for fixed in ovo::list(subnet, "ips", "FixedIPList", "FixedIP")? {
            let at = fixed.require("address")?;
            let address: IpAddr = at.text_by(|text| rules::parse(text, "an IP address such as 10.1.2.3"))?;
            rules::pod_address(address).map_err(|reason| at.error(reason))?;
            self.addresses.push(match net {
                None => address.into(),
                Some(net) => {
                    check_family(&at, address, net)?;
                    IpNet::new(address, net.prefix_len()).map_err(|e| at.error(e))?
                }
            });
        }
        // As in Kuryr, which added a subnet's routes first: a default route takes precedence over the
        // gateway.
        for route in ovo::list(subnet, "routes", "RouteList", "Route")? {
            let route = self::route(&route)?;
            if route.dst.prefix_len() > 0 {
                self.routes.push(route);
            } else if let Some(gateway) = route.gw {
                self.add_gateway(gateway);
            }
        }
        // Not every subnet has a router.
        if let Some(at) = subnet.get("gateway") {
            let gateway = next_hop(&at)?;
            if let Some(net) = net {
                check_family(&at, gateway, net)?;
            }
            self.add_gateway(gateway);
        }
        Ok(())
    }

    /// As in Kuryr, the first gateway of a family takes precedence.
    fn add_gateway(&mut self, gateway: IpAddr) {
        if !self.gateways.iter().any(|other| rules::same_family(*other, gateway)) {
            self.gateways.push(gateway);
        }
    }
}

fn route(route: &Object<'_>) -> Result<Route, FieldError> {
    let at = route.require("cidr")?;
    let dst = network(&at)?;
    let gw = match route.get("gateway") {
        None => None,
        Some(at) => {
            let gateway = next_hop(&at)?;
            check_family(&at, gateway, dst)?;
            Some(gateway)
        }
    };
    Ok(Route::new(dst.trunc(), gw))
}

fn network(at: &Cursor<'_>) -> Result<IpNet, FieldError> {
    at.text_by(|text| rules::parse(text, "a network such as 10.1.0.0/16"))
}

fn next_hop(at: &Cursor<'_>) -> Result<IpAddr, FieldError> {
    at.text_by(|text| {
        let gateway = rules::parse(text, "an IP address such as 10.1.0.1")?;
        rules::next_hop(gateway).map(|()| gateway)
    })
}

fn check_family(at: &Cursor<'_>, address: IpAddr, net: IpNet) -> Result<(), FieldError> {
    if rules::same_family(address, net.addr()) {
        return Ok(());
    }
    let expected = rules::family(net.addr());
    Err(at.error(format_args!("{address} does not match {net}, expected an {expected} address")))
}

/// Details are for display only: those of an unexpected type are omitted.
fn details(data: &Object<'_>) -> BTreeMap<&'static str, String> {
    let shown = |key: &'static str| match data.get(key)?.json() {
        Json::Text(text) if !text.is_empty() => Some((key, text.chars().take(MAX_DETAIL).collect())),
        Json::Number(number) => Some((key, number.to_string())),
        _ => None,
    };
    DETAILS.into_iter().filter_map(shown).collect()
}
