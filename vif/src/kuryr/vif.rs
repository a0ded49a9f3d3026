//! One VIF of os_vif's, of any class.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;

use super::ovo;
use crate::{
    InterfaceRequest, Kind, Route,
    at::{At, Object},
    error::Wrong,
    json::Json,
    rules,
};

/// The fields that only people want to know, over all classes.
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
/// The longest detail that is kept, in characters.
const MAX_DETAIL: usize = 128;

/// The subnets of a VIF, put together.
#[derive(Default)]
struct Subnets {
    addresses: Vec<IpNet>,
    gateways: Vec<IpAddr>,
    routes: Vec<Route>,
}

/// Decodes a VIF that is called `name` in the pod.
pub(crate) fn decode(at: &At<'_>, name: String) -> Result<InterfaceRequest, Wrong> {
    let (class, data) = ovo::any(at)?;
    let kind = match rules::kind_name(&class)? {
        "VIFGeneric" => Kind::Veth,
        other if other.starts_with("VIF") => Kind::Other(other.to_owned()),
        _ => return Err(class.is_not("a class of VIFs, such as \"VIFGeneric\"")),
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
        // os_vif's own default, for a writer that leaves it unset.
        active: data.get("active").map_or(Ok(true), |at| at.bool())?,
        mac: data.get("address").map(|at| rules::mac(&at)).transpose()?,
        mtu: mtu.map(|at| rules::mtu(&at, &addresses)).transpose()?,
        addresses,
        gateways,
        routes,
        details: details(&data),
    })
}

// === impl Subnets ===

impl Subnets {
    fn add(&mut self, subnet: &Object<'_>) -> Result<(), Wrong> {
        let net: Option<IpNet> =
            subnet.get("cidr").map(|at| at.parse("a network, such as 10.1.0.0/16")).transpose()?;
        for fixed in ovo::list(subnet, "ips", "FixedIPList", "FixedIP")? {
            let at = fixed.need("address")?;
            let address: IpAddr = at.parse("an IP address, such as 10.1.2.3")?;
            rules::unicast(&at, address)?;
            self.addresses.push(match net {
                None => address.into(),
                Some(net) => {
                    check_family(&at, address, net)?;
                    IpNet::new(address, net.prefix_len()).map_err(|e| at.wrong(e))?
                }
            });
        }
        // Kuryr added a subnet's routes first, and so one to everywhere took the gateway's place.
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

    /// The first of each family counts, as it did for Kuryr.
    fn add_gateway(&mut self, gateway: IpAddr) {
        if !self.gateways.iter().any(|other| rules::same_family(*other, gateway)) {
            self.gateways.push(gateway);
        }
    }
}

fn route(route: &Object<'_>) -> Result<Route, Wrong> {
    let at = route.need("cidr")?;
    let dst: IpNet = at.parse("a network, such as 10.1.0.0/16")?;
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

fn next_hop(at: &At<'_>) -> Result<IpAddr, Wrong> {
    let gateway = at.parse("an IP address, such as 10.1.0.1")?;
    rules::next_hop(at, gateway)?;
    Ok(gateway)
}

fn check_family(at: &At<'_>, address: IpAddr, net: IpNet) -> Result<(), Wrong> {
    if rules::same_family(address, net.addr()) {
        return Ok(());
    }
    let expected = rules::family(net.addr());
    Err(at.wrong(format_args!("{address} does not go with {net}: expected {expected}")))
}

/// Nothing depends on them: one of an unexpected type is left out.
fn details(data: &Object<'_>) -> BTreeMap<&'static str, String> {
    let shown = |key: &'static str| match data.get(key)?.json() {
        Json::Text(text) if !text.is_empty() => Some((key, text.chars().take(MAX_DETAIL).collect())),
        Json::Number(number) => Some((key, number.to_string())),
        _ => None,
    };
    DETAILS.into_iter().filter_map(shown).collect()
}
