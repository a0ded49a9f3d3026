//! `prevResult` of CHECK: the result of the whole plugin chain, in the version of the network configuration.
//!
//! Decoded like libcni's types: unknown fields are ignored. The shim forwards the result to the agent, which
//! knows which part of it is its own.

use ferrule_proto::{
    cni::{AddResult, Interface, Ip, Route, error::Code},
    quoted::Quoted,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{error::CniError, version::CniVersion};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a result")]
struct Previous {
    cni_version: Option<String>,
    interfaces: Option<Vec<PreviousInterface>>,
    ips: Option<Vec<PreviousIp>>,
    routes: Option<Vec<PreviousRoute>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an interface")]
struct PreviousInterface {
    name: String,
    #[serde(default)]
    mac: String,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    sandbox: String,
}

#[derive(Deserialize)]
#[serde(expecting = "an address")]
struct PreviousIp {
    address: String,
    #[serde(default)]
    gateway: Option<String>,
    /// Chained plugins may omit the interface.
    interface: Option<u32>,
}

#[derive(Deserialize)]
#[serde(expecting = "a route")]
struct PreviousRoute {
    dst: String,
    #[serde(default)]
    gw: Option<String>,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    advmss: u32,
    #[serde(default)]
    priority: u32,
}

/// Decodes the result. `requested` is the version of the network configuration.
///
/// # Errors
/// If the result is missing, which violates the specification of CHECK, is malformed, or has another version.
pub(super) fn parse(raw: Option<&RawValue>, requested: CniVersion) -> Result<AddResult, CniError> {
    let Some(raw) = raw else {
        return Err(refuse(
            Code::InvalidNetworkConfig,
            "missing, but CHECK compares the attachment with the previous result",
        ));
    };
    let malformed = |reason: &dyn std::fmt::Display| refuse(Code::DecodingFailure, reason);
    // Serde accepts an array in place of a struct.
    if !raw.get().starts_with('{') {
        return Err(malformed(&format_args!("found {}, expected an object", Quoted(raw.get()))));
    }
    let previous: Previous = serde_json::from_str(raw.get()).map_err(|e| malformed(&e))?;
    // As in libcni, the default is the version of the network configuration.
    let version = previous.cni_version.filter(|version| !version.is_empty());
    if let Some(version) = version.filter(|version| version != requested.as_str()) {
        let (found, expected) = (Quoted(&version), requested.as_str());
        return Err(refuse(
            Code::InvalidNetworkConfig,
            format_args!("wrong CNI version {found}, expected {expected} as in the network configuration"),
        ));
    }
    Ok(AddResult {
        interfaces: previous.interfaces.unwrap_or_default().into_iter().map(Into::into).collect(),
        ips: previous.ips.unwrap_or_default().into_iter().map(Into::into).collect(),
        routes: previous.routes.unwrap_or_default().into_iter().map(Into::into).collect(),
    })
}

// === impl PreviousInterface, PreviousIp, PreviousRoute ===

impl From<PreviousInterface> for Interface {
    fn from(PreviousInterface { name, mac, mtu, sandbox }: PreviousInterface) -> Self {
        Self { name, mac, mtu, sandbox }
    }
}

impl From<PreviousIp> for Ip {
    fn from(PreviousIp { address, gateway, interface }: PreviousIp) -> Self {
        // An index out of range means: not specified.
        Self { address, gateway: gateway.unwrap_or_default(), interface: interface.unwrap_or(u32::MAX) }
    }
}

impl From<PreviousRoute> for Route {
    fn from(PreviousRoute { dst, gw, mtu, advmss, priority }: PreviousRoute) -> Self {
        Self { dst, gw: gw.unwrap_or_default(), mtu, advmss, priority }
    }
}

fn refuse(code: Code, reason: impl std::fmt::Display) -> CniError {
    let msg = format!("reading \"prevResult\" of the network configuration: {reason}");
    CniError::new(code, msg, "the runtime must pass the unchanged result of the container's ADD")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn previous(json: &str, requested: CniVersion) -> Result<AddResult, CniError> {
        parse(Some(&RawValue::from_string(json.to_owned()).unwrap()), requested)
    }

    #[test]
    fn own_results_of_each_version_are_decoded() {
        for (version, golden) in [
            (CniVersion::V0_4_0, include_str!("../../testdata/results/0.4.0.json")),
            (CniVersion::V1_0_0, include_str!("../../testdata/results/1.0.0.json")),
            (CniVersion::V1_1_0, include_str!("../../testdata/results/1.1.0.json")),
        ] {
            let read = previous(golden.trim(), version).unwrap();
            let newest = version == CniVersion::V1_1_0;
            assert_eq!((read.interfaces.len(), read.ips.len(), read.routes.len()), (2, 2, 3));
            let (pod, ip) = (&read.interfaces[1], &read.ips[1]);
            assert_eq!((pod.name.as_str(), pod.mtu), ("eth0", if newest { 1450 } else { 0 }));
            assert_eq!(pod.sandbox, "/var/run/netns/cni-1d51d10d");
            assert_eq!(
                (ip.address.as_str(), ip.gateway.as_str(), ip.interface),
                ("fd00::3/128", "fe80::1", 1)
            );
            let numbers = if newest { (1300, 1200, 7) } else { (0, 0, 0) };
            let route = &read.routes[2];
            assert_eq!((route.mtu, route.advmss, route.priority), numbers);
        }
    }

    #[test]
    fn additions_of_later_plugins_are_ignored() {
        let text = r#"{"cniVersion":"1.1.0","dns":{},"x":[1e999],
            "interfaces":[{"name":"ifb0","mac":"","socketPath":"/x","pciID":"y"}],
            "ips":[{"address":"10.1.2.3/32","gateway":null}],"routes":[{"dst":"0.0.0.0/0","table":7,"scope":253}]}"#;
        let read = previous(text, CniVersion::V1_1_0).unwrap();
        assert_eq!((read.interfaces.len(), read.ips[0].interface), (1, u32::MAX));
        let nothing =
            previous(r#"{"interfaces":null,"ips":null,"routes":null}"#, CniVersion::V1_0_0).unwrap();
        assert_eq!(nothing, AddResult::default());
    }

    #[test]
    fn malformed_results_and_other_versions_are_refused() {
        for (text, code) in [
            ("7", 6),
            ("\"garbage\"", 6),
            ("[]", 6),
            (r#"["1.0.0",[],[],[]]"#, 6),
            (r#"{"interfaces":{}}"#, 6),
            (r#"{"interfaces":[{}]}"#, 6),
            (r#"{"interfaces":[{"name":7}]}"#, 6),
            (r#"{"ips":[{}]}"#, 6),
            (r#"{"ips":[{"address":"10.1.2.3/32","interface":-1}]}"#, 6),
            (r#"{"routes":["0.0.0.0/0"]}"#, 6),
            (r#"{"cniVersion":1.0}"#, 6),
            (r#"{"cniVersion":"0.4.0"}"#, 7),
            (r#"{"cniVersion":"1.1.0"}"#, 7),
            (r#"{"cniVersion":"9\n"}"#, 7),
        ] {
            let error = previous(text, CniVersion::V1_0_0).unwrap_err();
            assert_eq!(error.code, code, "{text}: {}", error.msg);
            assert!(error.msg.starts_with("reading \"prevResult\" of the network configuration: "));
            assert!(error.msg.len() < 250 && !error.msg.contains(char::is_control), "{}", error.msg);
        }
        assert_eq!(parse(None, CniVersion::V1_0_0).unwrap_err().code, 7);
        for text in [r#"{}"#, r#"{"cniVersion":null}"#, r#"{"cniVersion":""}"#, r#"{"cniVersion":"1.0.0"}"#] {
            assert!(previous(text, CniVersion::V1_0_0).is_ok(), "{text}");
        }
    }
}
