//! What the runtime hands over in `runtimeConfig` beside the annotations.
//!
//! A runtime fills in only what the configuration declares as a capability of this plugin, and a plugin is "expected to act
//! on the configuration or return an error if it can't" (the CNI conventions, "Dynamic Plugin specific fields"). So what
//! is asked of us and not done by us is refused: a pod without the port, the limit or the address that somebody asked for
//! is worse than none. What asks for nothing (none, empty, a rate of 0), what only informs (`cgroupPath`) and what nobody
//! has heard of is passed over.

use std::collections::HashMap;

use ferrule_proto::cni::error::Code;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{Dns, MAX_DNS};
use crate::error::{CniError, Shown};

/// What a runtime may ask for and we do not do, and what to do about it.
const UNSUPPORTED: [(&str, &str); 8] = [
    ("portMappings", "declare the capability for the plugin \"portmap\" instead, after this one"),
    ("bandwidth", "declare the capability for the plugin \"bandwidth\" instead, after this one"),
    ("ips", "do not declare the capability: the pod's annotation vif.ferrule.dev/v1 decides on addresses"),
    ("ipRanges", "do not declare the capability: the agent's --pod-cidr decides on ranges"),
    ("mac", "do not declare the capability: the pod's annotation vif.ferrule.dev/v1 decides on the MAC"),
    ("infinibandGUID", "do not declare the capability: this plugin makes veth interfaces only"),
    ("deviceID", "do not declare the capability: this plugin makes veth interfaces only"),
    ("aliases", "do not declare the capability: this plugin resolves no names"),
];

/// Fields as the runtimes write them: containerd's are those of Go, in capitals.
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

/// Completes the configured name resolution by what the runtime says, field by field, as the reference plugins do
/// (`win-bridge` and `win-overlay`): what the runtime says wins.
///
/// # Errors
/// If the runtime asks for what this plugin does not do, or its `dns` is malformed or too long.
pub(super) fn complete(runtime_config: Option<&RawValue>, configured: &Dns) -> Result<Dns, CniError> {
    let mut dns = configured.clone();
    let Some(raw) = runtime_config.filter(|raw| raw.get().starts_with('{')) else { return Ok(dns) };
    // That it is an object is known already: whoever looks for annotations says what else it may be.
    let asked: HashMap<String, &RawValue> = serde_json::from_str(raw.get())
        .map_err(|_| invalid("runtimeConfig", format_args!("{} is not an object", Shown(raw.get()))))?;
    for (capability, remedy) in UNSUPPORTED {
        if let Some(raw) = asked.get(capability).filter(|raw| is_wanted(capability, raw)) {
            let msg = format!(
                "ADD: the runtime asks for \"{capability}\": {}, which this plugin does not support",
                Shown(raw.get())
            );
            return Err(CniError::new(Code::UnsupportedField, msg, remedy));
        }
    }
    let Some(raw) = asked.get("dns").filter(|raw| raw.get() != "null") else { return Ok(dns) };
    if raw.get().len() > MAX_DNS {
        return Err(invalid("runtimeConfig.dns", format_args!("it is longer than {MAX_DNS} bytes")));
    }
    let expected = "an object with \"servers\", \"searches\", \"options\", each an array of strings";
    let told = Some(raw).filter(|raw| raw.get().starts_with('{'));
    let told: RuntimeDns = told.and_then(|raw| serde_json::from_str(raw.get()).ok()).ok_or_else(|| {
        invalid("runtimeConfig.dns", format_args!("{} is not {expected}", Shown(raw.get())))
    })?;
    for (ours, told) in [
        (&mut dns.nameservers, told.servers),
        (&mut dns.search, told.searches),
        (&mut dns.options, told.options),
    ] {
        if let Some(told) = told.filter(|told| !told.is_empty()) {
            *ours = told;
        }
    }
    Ok(dns)
}

/// Whether a value asks for anything.
fn is_wanted(capability: &str, raw: &RawValue) -> bool {
    // What is too deep or too large a number to be built is not nothing.
    let Ok(value) = serde_json::from_str::<Value>(raw.get()) else { return true };
    let is_zero = |value: &Value| value.as_f64() == Some(0.0);
    match (&value, capability) {
        (Value::Null, _) => false,
        (Value::String(text), _) => !text.is_empty(),
        (Value::Array(items), "portMappings") => items.iter().any(|item| {
            // Ports of a pod that are not mapped: runtimes leave them out, the plugin portmap passes them over.
            let fields = item.as_object();
            let host_port =
                fields.and_then(|it| it.iter().find(|(key, _)| key.eq_ignore_ascii_case("hostPort")));
            !host_port.is_some_and(|(_, port)| is_zero(port))
        }),
        (Value::Array(items), _) => !items.is_empty(),
        // Bursts come with limits of their own: without a rate they limit nothing.
        (Value::Object(fields), "bandwidth") => {
            fields.iter().any(|(key, rate)| key.to_ascii_lowercase().ends_with("rate") && !is_zero(rate))
        }
        (Value::Object(fields), _) => !fields.is_empty(),
        (Value::Bool(_) | Value::Number(_), _) => true,
    }
}

fn invalid(name: &str, why: impl std::fmt::Display) -> CniError {
    let msg = format!("reading \"{name}\" of the network configuration: {why}");
    let details = "the runtime must hand over what the CNI conventions say of the capability";
    CniError::new(Code::InvalidNetworkConfig, msg, details)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(runtime_config: &str) -> Result<Dns, CniError> {
        let configured =
            Dns { nameservers: vec!["10.96.0.10".into()], domain: "cluster.local".into(), ..Dns::default() };
        let raw = RawValue::from_string(runtime_config.to_owned()).unwrap();
        complete(Some(&raw), &configured)
    }

    #[test]
    fn what_the_runtime_says_of_name_resolution_wins_field_by_field() {
        let dns = |config: &str| serde_json::to_value(ask(config).unwrap()).unwrap();
        let configured = serde_json::json!({"nameservers": ["10.96.0.10"], "domain": "cluster.local"});
        for nothing in [
            "{}",
            r#"{"dns":null}"#,
            r#"{"dns":{}}"#,
            r#"{"dns":{"servers":[],"searches":null,"unknown":{}}}"#,
        ] {
            assert_eq!(dns(nothing), configured, "{nothing}");
        }
        let told = serde_json::json!({
            "nameservers": ["192.168.77.10"], "domain": "cluster.local", "search": ["a.b"], "options": ["ndots:5"],
        });
        let capitals = r#"{"dns":{"Servers":["192.168.77.10"],"Searches":["a.b"],"Options":["ndots:5"]}}"#;
        assert_eq!(dns(capitals), told);
        assert_eq!(dns(&capitals.to_lowercase()), told);
        let part = dns(r#"{"dns":{"searches":["a.b"]}}"#);
        assert_eq!((&part["nameservers"][0], &part["search"][0]), (&"10.96.0.10".into(), &"a.b".into()));
    }

    #[test]
    fn name_resolution_that_is_malformed_is_named() {
        let long = format!(r#"{{"dns":{{"servers":["{}"]}}}}"#, "x".repeat(MAX_DNS));
        for config in [
            r#"{"dns":7}"#,
            r#"{"dns":["10.0.0.1"]}"#,
            r#"{"dns":{"servers":"10.0.0.1"}}"#,
            r#"{"dns":{"Servers":[7]}}"#,
            r#"{"dns":{"servers":[],"Servers":[]}}"#,
            long.as_str(),
        ] {
            let error = ask(config).unwrap_err();
            assert_eq!(error.code, 7, "{config:.80}");
            assert!(error.msg.starts_with("reading \"runtimeConfig.dns\" of the network"), "{}", error.msg);
            assert!(error.msg.len() < 250, "{}", error.msg);
        }
    }

    #[test]
    fn what_is_asked_for_and_not_done_is_refused_with_key_value_and_remedy() {
        for (key, value, remedy) in [
            ("portMappings", r#"[{"HostPort":54323,"ContainerPort":8080,"Protocol":"tcp"}]"#, "\"portmap\""),
            ("portMappings", r#"[{"hostPort":0},{"hostPort":80}]"#, "\"portmap\""),
            ("portMappings", "[7]", "\"portmap\""),
            ("bandwidth", r#"{"ingressRate":1,"ingressBurst":4294967295}"#, "\"bandwidth\""),
            ("bandwidth", r#"{"EgressRate":1000}"#, "\"bandwidth\""),
            ("ips", r#"["10.1.2.3/24"]"#, "vif.ferrule.dev/v1"),
            ("ipRanges", r#"[[{"subnet":"10.1.2.0/24"}]]"#, "--pod-cidr"),
            ("mac", r#""c2:11:22:33:44:55""#, "vif.ferrule.dev/v1"),
            ("infinibandGUID", r#""c2:11:22:33:44:55:66:77""#, "veth"),
            ("deviceID", r#""0000:04:00.5""#, "veth"),
            ("aliases", r#"["primary-db"]"#, "names"),
        ] {
            let error = ask(&format!(r#"{{"{key}":{value}}}"#)).unwrap_err();
            assert_eq!(error.code, 2, "{key}");
            let shown = format!("asks for \"{key}\": {:?}", value);
            assert!(error.msg.contains(&shown) && error.details.contains(remedy), "{error:?}");
        }
    }

    #[test]
    fn what_asks_for_nothing_or_only_informs_is_passed_over() {
        let nothing = r#"{"portMappings":[],"bandwidth":null,"ips":[],"mac":"","aliases":[],"deviceID":"",
            "ipRanges":null,"infinibandGUID":null,"cgroupPath":"/kubelet.slice","example.com/other":{"a":[1e999]}}"#;
        assert!(ask(nothing).is_ok());
        for nothing in [
            r#"{"portMappings":[{"HostPort":0,"ContainerPort":8080}]}"#,
            r#"{"bandwidth":{}}"#,
            r#"{"bandwidth":{"IngressRate":0,"IngressBurst":4294967295,"EgressRate":0,"EgressBurst":4294967295}}"#,
        ] {
            assert!(ask(nothing).is_ok(), "{nothing}");
        }
    }
}
