//! The output of ADD: the agent's result in the requested CNI version.

use ferrule_proto::cni::{self, AddResult, error::Code};
use serde::Serialize;

use crate::{error::CniError, netconf::Dns, version::CniVersion};

/// The success result of all versions; fields that a version lacks are omitted.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Success<'a> {
    cni_version: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<Ip<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route<'a>>,
    #[serde(skip_serializing_if = "Dns::is_empty")]
    dns: &'a Dns,
}

#[derive(Serialize)]
struct Interface<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    /// Since 1.1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
}

#[derive(Serialize)]
struct Ip<'a> {
    /// Up to 0.4.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    address: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    gateway: &'a str,
    interface: u32,
}

#[derive(Serialize)]
struct Route<'a> {
    dst: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    gw: &'a str,
    /// Since 1.1.0, like `advmss` and `priority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advmss: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
}

/// Renders the agent's result.
///
/// # Errors
/// If an address refers to an interface that the result does not have.
pub(crate) fn render(result: &AddResult, dns: &Dns, version: CniVersion) -> Result<String, CniError> {
    if let Some(ip) = result.ips.iter().find(|ip| ip.interface as usize >= result.interfaces.len()) {
        let (index, count) = (ip.interface, result.interfaces.len());
        return Err(refuse(format!("{} is on interface index {index}, but there are {count}", ip.address)));
    }
    let success = Success {
        cni_version: version.as_str(),
        interfaces: result.interfaces.iter().map(|interface| Interface::new(interface, version)).collect(),
        ips: result.ips.iter().map(|ip| Ip::new(ip, version)).collect(),
        routes: result.routes.iter().map(|route| Route::new(route, version)).collect(),
        dns,
    };
    serde_json::to_string(&success).map_err(|e| refuse(e.to_string()))
}

// === impl Interface ===

impl<'a> Interface<'a> {
    fn new(interface: &'a cni::Interface, version: CniVersion) -> Self {
        let cni::Interface { name, mac, mtu, sandbox } = interface;
        Self { name, mac, mtu: since_1_1(*mtu, version), sandbox }
    }
}

// === impl Ip ===

impl<'a> Ip<'a> {
    fn new(ip: &'a cni::Ip, version: CniVersion) -> Self {
        let family = if ip.address.contains(':') { "6" } else { "4" };
        Self {
            version: (version < CniVersion::V1_0_0).then_some(family),
            address: &ip.address,
            gateway: &ip.gateway,
            interface: ip.interface,
        }
    }
}

// === impl Route ===

impl<'a> Route<'a> {
    fn new(route: &'a cni::Route, version: CniVersion) -> Self {
        let since_1_1 = |number| since_1_1(number, version);
        Self {
            dst: &route.dst,
            gw: &route.gw,
            mtu: since_1_1(route.mtu),
            advmss: since_1_1(route.advmss),
            priority: since_1_1(route.priority),
        }
    }
}

/// A number that results have since 1.1.0, and only if it is not 0.
fn since_1_1(number: u32, version: CniVersion) -> Option<u32> {
    Some(number).filter(|number| version >= CniVersion::V1_1_0 && *number != 0)
}

fn refuse(reason: String) -> CniError {
    let msg = format!("rendering the agent's result of ADD: {reason}");
    CniError::new(Code::Internal, msg, "install plugin and agent from one release")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn route(dst: &str, gw: &str) -> cni::Route {
        cni::Route { dst: dst.into(), gw: gw.into(), ..Default::default() }
    }

    fn dual_stack() -> AddResult {
        let sandbox = "/var/run/netns/cni-1d51d10d";
        AddResult {
            interfaces: vec![
                cni::Interface {
                    name: "fer0a1b2c3d4e5".into(),
                    mac: "02:00:00:00:00:01".into(),
                    mtu: 1450,
                    sandbox: String::new(),
                },
                cni::Interface {
                    name: "eth0".into(),
                    mac: "02:00:00:00:00:02".into(),
                    mtu: 1450,
                    sandbox: sandbox.into(),
                },
            ],
            ips: vec![
                cni::Ip { address: "10.1.2.3/32".into(), gateway: "169.254.1.1".into(), interface: 1 },
                cni::Ip { address: "fd00::3/128".into(), gateway: "fe80::1".into(), interface: 1 },
            ],
            routes: vec![
                route("0.0.0.0/0", "169.254.1.1"),
                route("::/0", ""),
                cni::Route { mtu: 1300, advmss: 1200, priority: 7, ..route("192.168.0.0/16", "10.1.2.254") },
            ],
        }
    }

    #[test]
    fn each_version_is_rendered_as_specified() {
        let dns: Dns =
            serde_json::from_str(r#"{"nameservers":["10.96.0.10"],"search":["svc.cluster.local"]}"#).unwrap();
        for (version, golden) in [
            (CniVersion::V0_3_0, include_str!("../testdata/results/0.3.0.json")),
            (CniVersion::V0_3_1, include_str!("../testdata/results/0.3.1.json")),
            (CniVersion::V0_4_0, include_str!("../testdata/results/0.4.0.json")),
            (CniVersion::V1_0_0, include_str!("../testdata/results/1.0.0.json")),
            (CniVersion::V1_1_0, include_str!("../testdata/results/1.1.0.json")),
        ] {
            let rendered = render(&dual_stack(), &dns, version).unwrap();
            let rendered: Value = serde_json::from_str(&rendered).unwrap();
            assert_eq!(rendered, serde_json::from_str::<Value>(golden).unwrap(), "{version:?}");
        }
    }

    #[test]
    fn empty_fields_are_omitted() {
        let rendered = render(&AddResult::default(), &Dns::default(), CniVersion::V1_1_0).unwrap();
        assert_eq!(rendered, r#"{"cniVersion":"1.1.0"}"#);

        let mut bare = dual_stack();
        bare.interfaces.truncate(1);
        bare.interfaces[0].mtu = 0;
        bare.interfaces[0].mac.clear();
        bare.ips.clear();
        bare.routes.clear();
        let rendered = render(&bare, &Dns::default(), CniVersion::V1_1_0).unwrap();
        assert_eq!(rendered, r#"{"cniVersion":"1.1.0","interfaces":[{"name":"fer0a1b2c3d4e5"}]}"#);
    }

    #[test]
    fn address_with_an_interface_index_out_of_range_is_refused() {
        let mut wrong = dual_stack();
        wrong.ips[1].interface = 2;
        let error = render(&wrong, &Dns::default(), CniVersion::V1_1_0).unwrap_err();
        assert_eq!(error.code, 999);
        assert!(error.msg.contains("fd00::3/128 is on interface index 2, but there are 2"), "{}", error.msg);
    }
}
