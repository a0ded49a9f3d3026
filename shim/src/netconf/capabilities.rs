//! Capabilities in `runtimeConfig` other than annotations: DNS settings, and requests that this plugin
//! refuses.
//!
//! A runtime passes only what the network configuration declares as a capability, and a plugin is "expected
//! to act on the configuration or return an error if it can't" (the CNI conventions, "Dynamic Plugin specific
//! fields"). So ADD refuses an unsupported request: a pod without the requested port, limit or address is
//! worse than no pod. Empty requests (`null`, empty), information (`cgroupPath`) and unknown
//! capabilities are ignored.

use std::collections::HashMap;

use ferrule_proto::{cni::error::Code, quoted::Quoted};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{
    dns::{Dns, MAX_DNS},
    field::refuse_with,
};
use crate::error::CniError;

/// Capabilities of the CNI conventions that this plugin does not support, each with a remedy.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("ips", "remove the capability: set addresses in the pod's annotation vif.ferrule.dev/v1"),
    ("ipRanges", "remove the capability: set ranges with the agent's --pod-cidr"),
    ("mac", "remove the capability: set the MAC in the pod's annotation vif.ferrule.dev/v1"),
    ("infinibandGUID", "remove the capability: this plugin creates veth interfaces only"),
    ("deviceID", "remove the capability: this plugin creates veth interfaces only"),
    ("aliases", "remove the capability: this plugin does not resolve names"),
];

/// `args`: only what the CNI conventions define. Other tools pass more, in any form.
#[derive(Deserialize)]
struct Args<'a> {
    #[serde(borrow)]
    cni: Option<CniArgs<'a>>,
}

#[derive(Deserialize)]
struct CniArgs<'a> {
    #[serde(borrow)]
    ips: Option<&'a RawValue>,
    #[serde(borrow)]
    mac: Option<&'a RawValue>,
}

/// `runtimeConfig.dns`. containerd writes Go's field names, capitalized.
#[derive(Deserialize)]
#[serde(expecting = "an object with \"servers\", \"searches\", \"options\"")]
struct RuntimeDns {
    #[serde(default, alias = "Servers")]
    servers: Option<Vec<String>>,
    #[serde(default, alias = "Searches")]
    searches: Option<Vec<String>>,
    #[serde(default, alias = "Options")]
    options: Option<Vec<String>>,
}

/// Overrides the configured DNS settings by the runtime's, field by field, as the reference plugins
/// `win-bridge` and `win-overlay` do.
///
/// # Errors
/// If the runtime requests an unsupported capability, or if its `dns` is malformed or too long.
pub(super) fn merge_dns(runtime_config: Option<&RawValue>, configured: &Dns) -> Result<Dns, CniError> {
    let mut dns = configured.clone();
    let Some(raw) = runtime_config.filter(|raw| raw.get().starts_with('{')) else { return Ok(dns) };
    // A value that is not an object was refused with the annotations.
    let requested: HashMap<String, &RawValue> = serde_json::from_str(raw.get()).map_err(|_| {
        refuse("runtimeConfig", format_args!("found {}, expected an object", Quoted(raw.get())))
    })?;
    for (capability, remedy) in UNSUPPORTED {
        if let Some(raw) = requested.get(capability).filter(|raw| !is_empty(raw)) {
            let msg = format!(
                "ADD: the runtime requests the capability \"{capability}\": {}, which this plugin does not support",
                Quoted(raw.get())
            );
            return Err(CniError::new(Code::UnsupportedField, msg, remedy));
        }
    }
    let Some(raw) = requested.get("dns").filter(|raw| raw.get() != "null") else { return Ok(dns) };
    if raw.get().len() > MAX_DNS {
        return Err(refuse("runtimeConfig.dns", format_args!("longer than {MAX_DNS} bytes")));
    }
    let expected = "an object with \"servers\", \"searches\", \"options\", each an array of strings";
    let object = Some(raw).filter(|raw| raw.get().starts_with('{'));
    let runtime: RuntimeDns =
        object.and_then(|raw| serde_json::from_str(raw.get()).ok()).ok_or_else(|| {
            refuse("runtimeConfig.dns", format_args!("found {}, expected {expected}", Quoted(raw.get())))
        })?;
    for (field, value) in [
        (&mut dns.nameservers, runtime.servers),
        (&mut dns.search, runtime.searches),
        (&mut dns.options, runtime.options),
    ] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            *field = value;
        }
    }
    Ok(dns)
}

/// Refuses addresses and a MAC in `args.cni`, the older way to request them.
///
/// # Errors
/// If one is requested.
pub(super) fn refuse_args(args: Option<&RawValue>) -> Result<(), CniError> {
    let Some(args) = args.and_then(|raw| serde_json::from_str::<Args<'_>>(raw.get()).ok()) else {
        return Ok(());
    };
    let Some(cni) = args.cni else { return Ok(()) };
    for (key, raw) in [("ips", cni.ips), ("mac", cni.mac)] {
        if let Some(raw) = raw.filter(|raw| !is_empty(raw)) {
            let msg = format!(
                "ADD: \"args.cni.{key}\" of the network configuration requests {}, which this plugin does not support",
                Quoted(raw.get())
            );
            let remedy =
                "remove the request: set addresses and MAC in the pod's annotation vif.ferrule.dev/v1";
            return Err(CniError::new(Code::UnsupportedField, msg, remedy));
        }
    }
    Ok(())
}

/// Whether a value requests nothing.
fn is_empty(raw: &RawValue) -> bool {
    // A value too deep or a number too large for `Value` is not empty.
    let Ok(value) = serde_json::from_str::<Value>(raw.get()) else { return false };
    match &value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn refuse(name: &str, reason: impl std::fmt::Display) -> CniError {
    refuse_with(name, reason, "the runtime must pass the capability as the CNI conventions require")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(runtime_config: &str) -> Result<Dns, CniError> {
        let configured =
            Dns { nameservers: vec!["10.96.0.10".into()], domain: "cluster.local".into(), ..Dns::default() };
        let raw = RawValue::from_string(runtime_config.to_owned()).unwrap();
        merge_dns(Some(&raw), &configured)
    }

    #[test]
    fn runtime_dns_overrides_configured_dns_field_by_field() {
        let dns = |config: &str| serde_json::to_value(merge(config).unwrap()).unwrap();
        let configured = serde_json::json!({"nameservers": ["10.96.0.10"], "domain": "cluster.local"});
        for nothing in [
            "{}",
            r#"{"dns":null}"#,
            r#"{"dns":{}}"#,
            r#"{"dns":{"servers":[],"searches":null,"unknown":{}}}"#,
        ] {
            assert_eq!(dns(nothing), configured, "{nothing}");
        }
        let merged = serde_json::json!({
            "nameservers": ["192.168.77.10"], "domain": "cluster.local", "search": ["a.b"], "options": ["ndots:5"],
        });
        let capitals = r#"{"dns":{"Servers":["192.168.77.10"],"Searches":["a.b"],"Options":["ndots:5"]}}"#;
        assert_eq!(dns(capitals), merged);
        assert_eq!(dns(&capitals.to_lowercase()), merged);
        let part = dns(r#"{"dns":{"searches":["a.b"]}}"#);
        assert_eq!((&part["nameservers"][0], &part["search"][0]), (&"10.96.0.10".into(), &"a.b".into()));
    }

    #[test]
    fn malformed_dns_is_refused_and_named() {
        let long = format!(r#"{{"dns":{{"servers":["{}"]}}}}"#, "x".repeat(MAX_DNS));
        for config in [
            r#"{"dns":7}"#,
            r#"{"dns":["10.0.0.1"]}"#,
            r#"{"dns":{"servers":"10.0.0.1"}}"#,
            r#"{"dns":{"Servers":[7]}}"#,
            r#"{"dns":{"servers":[],"Servers":[]}}"#,
            long.as_str(),
        ] {
            let error = merge(config).unwrap_err();
            assert_eq!(error.code, 7, "{config:.80}");
            assert!(error.msg.starts_with("reading \"runtimeConfig.dns\" of the network"), "{}", error.msg);
            assert!(error.msg.len() < 250, "{}", error.msg);
        }
    }

    #[test]
    fn unsupported_capability_is_refused_with_key_value_and_remedy() {
        for (key, value, remedy) in [
            ("ips", r#"["10.1.2.3/24"]"#, "vif.ferrule.dev/v1"),
            ("ipRanges", r#"[[{"subnet":"10.1.2.0/24"}]]"#, "--pod-cidr"),
            ("mac", r#""c2:11:22:33:44:55""#, "vif.ferrule.dev/v1"),
            ("infinibandGUID", r#""c2:11:22:33:44:55:66:77""#, "veth"),
            ("deviceID", r#""0000:04:00.5""#, "veth"),
            ("aliases", r#"["primary-db"]"#, "names"),
        ] {
            let error = merge(&format!(r#"{{"{key}":{value}}}"#)).unwrap_err();
            assert_eq!(error.code, 2, "{key}");
            let expected = format!("requests the capability \"{key}\": {:?}", value);
            assert!(error.msg.contains(&expected) && error.details.contains(remedy), "{error:?}");
        }
    }

    #[test]
    fn addresses_and_mac_in_args_are_refused() {
        let refuse = |args: &str| refuse_args(Some(&RawValue::from_string(args.to_owned()).unwrap()));
        for (args, key) in [
            (r#"{"cni":{"ips":["10.1.2.3"]}}"#, "args.cni.ips"),
            (r#"{"cni":{"ips":"10.1.2.3","mac":null}}"#, "args.cni.ips"),
            (r#"{"other":1,"cni":{"mac":"c2:11:22:33:44:55"}}"#, "args.cni.mac"),
        ] {
            let error = refuse(args).unwrap_err();
            assert!(error.code == 2 && error.msg.contains(key), "{error:?}");
        }
        for nothing in ["null", "7", "{}", r#"{"cni":null}"#, r#"{"cni":{"ips":[],"mac":"","labels":[{}]}}"#]
        {
            assert_eq!(refuse(nothing), Ok(()), "{nothing}");
        }
    }

    #[test]
    fn empty_requests_and_information_are_ignored() {
        let nothing = r#"{"ips":[],"mac":"","aliases":[],"deviceID":"",
            "ipRanges":null,"infinibandGUID":null,"cgroupPath":"/kubelet.slice","example.com/other":{"a":[1e999]}}"#;
        assert!(merge(nothing).is_ok());
    }
}
