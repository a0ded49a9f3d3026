//! The resolved VIF: an interface that a pod gets, with every field filled in.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::{Mac, Route};

/// An interface as the agent plugs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vif {
    pub kind: VifKind,
    /// Of the pod's end.
    pub mac: Mac,
    /// Bytes, on both ends.
    pub mtu: u32,
    pub addresses: Addresses,
    /// Whether the IPv6 address is the primary one, which the result of an ADD lists first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ipv6_first: bool,
    /// Gateways that replace the agent's own for this pod. The host's end answers for any gateway address.
    #[serde(default)]
    pub gateways: Addresses,
    /// Whether the pod's default routes use this interface.
    #[serde(default = "yes")]
    pub is_default: bool,
    /// The routes beside the default ones.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// The kinds of VIF that the agent can plug. Each use site matches exhaustively, so that the compiler lists
/// the code that a second kind has to extend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VifKind {
    /// A veth pair, routed by the host.
    Veth,
}

/// A route of a pod, with the gateway resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRoute {
    /// Has no host bits.
    pub dst: IpNet,
    /// Of the same family as `dst`.
    pub gateway: IpAddr,
    /// Bytes; `None` leaves the value to the kernel, as in the next two fields.
    pub mtu: Option<u32>,
    /// Bytes.
    pub advmss: Option<u32>,
    /// The metric: of several routes to a destination, the lowest wins.
    pub priority: Option<u32>,
}

/// At most one address of each family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Addresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

fn yes() -> bool {
    true
}

// === impl Vif ===

impl Vif {
    /// The addresses, the primary one first.
    pub fn by_preference(&self) -> impl Iterator<Item = IpAddr> {
        let mut addresses: Vec<IpAddr> = self.addresses.iter().collect();
        if self.is_ipv6_first {
            addresses.reverse();
        }
        addresses.into_iter()
    }

    /// The pod's gateway for a family: the VIF's own, or else the agent's.
    pub fn gateway_for(&self, family_of: IpAddr, ours: (Ipv4Addr, Ipv6Addr)) -> IpAddr {
        match family_of {
            IpAddr::V4(_) => self.gateways.v4.unwrap_or(ours.0).into(),
            IpAddr::V6(_) => self.gateways.v6.unwrap_or(ours.1).into(),
        }
    }

    /// All routes, the default ones first.
    pub fn all_routes(&self, ours: (Ipv4Addr, Ipv6Addr)) -> Vec<PodRoute> {
        let default = |address: IpAddr| match address {
            IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
        };
        let defaults = self.addresses.iter().filter(|_| self.is_default).map(default);
        let defaults = defaults.map(|dst| Route::new(dst, None));
        let resolve = |Route { dst, gw, mtu, advmss, priority }: Route| {
            let gateway = gw.unwrap_or_else(|| self.gateway_for(dst.addr(), ours));
            PodRoute { dst, gateway, mtu, advmss, priority }
        };
        defaults.chain(self.routes.iter().cloned()).map(resolve).collect()
    }
}

// === impl Addresses ===

impl Addresses {
    /// IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// Collects at most one address of each family.
    ///
    /// # Errors
    /// The second address of a family.
    pub fn collect(addresses: impl IntoIterator<Item = IpAddr>) -> Result<Self, IpAddr> {
        let mut collected = Self::default();
        for address in addresses {
            let taken = match address {
                IpAddr::V4(v4) => collected.v4.replace(v4).is_some(),
                IpAddr::V6(v6) => collected.v6.replace(v6).is_some(),
            };
            if taken {
                return Err(address);
            }
        }
        Ok(collected)
    }

    /// A locally administered unicast MAC derived from the addresses: as long as an address is in use, peers
    /// never see its MAC change.
    pub fn mac(self) -> Mac {
        let [a, b, c, d] = match self {
            Addresses { v4: Some(v4), .. } => v4.octets(),
            Addresses { v6: Some(v6), .. } => {
                let [.., a, b, c, d] = v6.octets();
                [a, b, c, d]
            }
            Addresses { v4: None, v6: None } => [0; 4],
        };
        Mac([0x0a, 0xfe, a, b, c, d])
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.iter().map(|address| address.to_string()).collect();
        f.write_str(&all.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_mac_is_unicast_and_locally_administered() {
        let mac = |v4: Option<&str>, v6: Option<&str>| {
            Addresses { v4: v4.map(|a| a.parse().unwrap()), v6: v6.map(|a| a.parse().unwrap()) }.mac()
        };
        assert_eq!(mac(Some("10.1.2.3"), Some("fd00::9")).to_string(), "0a:fe:0a:01:02:03");
        assert_eq!(mac(None, Some("fd00::9")).to_string(), "0a:fe:00:00:00:09");
        let Mac([first, ..]) = mac(Some("10.1.2.3"), None);
        assert_eq!(first & 0b11, 0b10);
    }

    #[test]
    fn default_routes_come_first_for_each_family_that_the_pod_has() {
        let ours = ("169.254.1.1".parse().unwrap(), "fe80::1".parse().unwrap());
        let mut vif = Vif {
            kind: VifKind::Veth,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            addresses: Addresses {
                v4: Some("10.1.2.3".parse().unwrap()),
                v6: Some("fd00::3".parse().unwrap()),
            },
            is_ipv6_first: false,
            gateways: Addresses { v4: None, v6: Some("fd00::1".parse().unwrap()) },
            is_default: true,
            routes: vec![
                Route::new("10.9.0.0/16".parse().unwrap(), Some("10.1.2.254".parse().unwrap())),
                Route { mtu: Some(1300), ..Route::new("fd09::/64".parse().unwrap(), None) },
            ],
        };
        let shown = |vif: &Vif| {
            let routes = vif.all_routes(ours).into_iter();
            routes.map(|it| format!("{} {} {:?}", it.dst, it.gateway, it.mtu)).collect::<Vec<_>>()
        };
        let all = [
            "0.0.0.0/0 169.254.1.1 None",
            "::/0 fd00::1 None",
            "10.9.0.0/16 10.1.2.254 None",
            "fd09::/64 fd00::1 Some(1300)",
        ];
        assert_eq!(shown(&vif), all);
        let primary = |vif: &Vif| vif.by_preference().map(|it| it.to_string()).collect::<Vec<_>>();
        assert_eq!(primary(&vif), ["10.1.2.3", "fd00::3"]);
        vif.is_ipv6_first = true;
        assert_eq!(primary(&vif), ["fd00::3", "10.1.2.3"]);
        assert_eq!(shown(&vif), all, "the order of routes is no preference");
        vif.is_default = false;
        assert_eq!(shown(&vif), all[2..]);
        (vif.is_default, vif.addresses.v4) = (true, None);
        assert_eq!(shown(&vif), all[1..]);
    }

    #[test]
    fn a_second_address_of_a_family_is_refused() {
        let collect = |all: &[&str]| Addresses::collect(all.iter().map(|it| it.parse().unwrap()));
        let both = collect(&["fd00::3", "10.1.2.3"]).unwrap();
        assert_eq!(both.to_string(), "10.1.2.3 fd00::3");
        assert_eq!(collect(&["10.1.2.3", "fd00::3", "10.1.2.4"]), Err("10.1.2.4".parse().unwrap()));
        assert_eq!(collect(&["fd00::3", "fd00::4"]), Err("fd00::4".parse().unwrap()));
        assert_eq!(collect(&[]), Ok(Addresses::default()));
        assert_eq!(Addresses::default().mac().to_string(), "0a:fe:00:00:00:00");
    }

    #[test]
    fn a_stored_vif_of_an_earlier_release_is_the_default_one() {
        let stored =
            r#"{"kind":"veth","mac":"02:00:00:00:00:01","mtu":1500,"addresses":{"v4":"10.1.2.3","v6":null}}"#;
        let vif: Vif = serde_json::from_str(stored).unwrap();
        assert!(vif.is_default && !vif.is_ipv6_first && vif.routes.is_empty());
        assert_eq!(vif.gateways, Addresses::default());
    }
}
