//! The capability `portMappings`: ports of the node that lead to the container.

use ferrule_proto::{cni::PortMapping, quoted::Quoted};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::net::IpAddr;

use super::field::{even_none, refuse_with};
use crate::error::CniError;

const CAPABILITY: &str = "runtimeConfig.portMappings";
/// More would not fit into the agent's record of the container.
const MAX: usize = 4096;
/// Bytes of JSON, 128 for each entry: in memory, a list of empty entries is many times larger than its JSON.
const MAX_BYTES: usize = 128 * MAX;

/// `runtimeConfig`, of which other files decode the rest.
#[derive(Deserialize)]
struct RuntimeConfig<'a> {
    #[serde(borrow, rename = "portMappings")]
    port_mappings: Option<&'a RawValue>,
}

/// An entry. containerd writes Go's field names, capitalized.
#[derive(Deserialize)]
struct Entry {
    #[serde(alias = "HostPort", default)]
    #[serde(rename = "hostPort")]
    host_port: u32,
    #[serde(alias = "ContainerPort", default)]
    #[serde(rename = "containerPort")]
    container_port: u32,
    #[serde(alias = "Protocol", default, deserialize_with = "even_none")]
    protocol: String,
    #[serde(alias = "HostIP", default, deserialize_with = "even_none")]
    #[serde(rename = "hostIP")]
    host_ip: String,
}

/// Parses the mappings. An entry without a port of the node, or with the port 0, maps nothing: the reference
/// plugin `portmap` ignores such an entry.
///
/// # Errors
/// If an entry is malformed, or there are too many.
pub(super) fn parse(runtime_config: Option<&RawValue>) -> Result<Vec<PortMapping>, CniError> {
    // A value that is not an object was refused with the annotations.
    let config = runtime_config.and_then(|raw| serde_json::from_str::<RuntimeConfig<'_>>(raw.get()).ok());
    let Some(raw) = config.and_then(|it| it.port_mappings) else { return Ok(Vec::new()) };
    if raw.get().len() > MAX_BYTES {
        return Err(refuse(format_args!("longer than {MAX_BYTES} bytes")));
    }
    let expected = "an array of objects with \"hostPort\", \"containerPort\", \"protocol\" and \"hostIP\"";
    let entries: Vec<Entry> = serde_json::from_str(raw.get())
        .map_err(|error| refuse(format_args!("found {}, expected {expected}: {error}", Quoted(raw.get()))))?;
    let mapped: Vec<_> = entries.into_iter().filter(|it| it.host_port != 0).collect();
    if mapped.len() > MAX {
        return Err(refuse(format_args!("{} entries, expected at most {MAX}", mapped.len())));
    }
    mapped.into_iter().map(checked).collect()
}

fn checked(entry: Entry) -> Result<PortMapping, CniError> {
    let Entry { host_port, container_port, protocol, host_ip } = entry;
    for (name, port) in [("hostPort", host_port), ("containerPort", container_port)] {
        if port == 0 || u16::try_from(port).is_err() {
            return Err(refuse(format_args!("{name} {port} is no port, expected 1 to 65535")));
        }
    }
    let protocol = protocol.to_ascii_lowercase();
    let protocol = if protocol.is_empty() { "tcp".to_owned() } else { protocol };
    if !["tcp", "udp", "sctp"].contains(&protocol.as_str()) {
        return Err(refuse(format_args!(
            "unknown protocol {}, expected tcp, udp or sctp",
            Quoted(&protocol)
        )));
    }
    if !host_ip.is_empty() && host_ip.parse::<IpAddr>().is_err() {
        return Err(refuse(format_args!("hostIP {} is no IP address", Quoted(&host_ip))));
    }
    Ok(PortMapping { host_port, container_port, protocol, host_ip })
}

fn refuse(reason: impl std::fmt::Display) -> CniError {
    refuse_with(CAPABILITY, reason, "correct the container's published ports (hostPort)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(mappings: &str) -> Result<Vec<PortMapping>, CniError> {
        let raw = RawValue::from_string(format!(r#"{{"portMappings":{mappings},"other":[]}}"#)).unwrap();
        parse(Some(&raw))
    }

    #[test]
    fn mappings_of_every_spelling_are_read_and_port_0_maps_nothing() {
        let (web, dns) = (
            PortMapping {
                host_port: 8080,
                container_port: 80,
                protocol: "tcp".into(),
                host_ip: String::new(),
            },
            PortMapping {
                host_port: 53,
                container_port: 5353,
                protocol: "udp".into(),
                host_ip: "127.0.0.1".into(),
            },
        );
        let go = r#"[{"HostPort":8080,"ContainerPort":80,"Protocol":"TCP","HostIP":""},
            {"HostPort":0,"ContainerPort":9},{"ContainerPort":7},
            {"HostPort":53,"ContainerPort":5353,"Protocol":"udp","HostIP":"127.0.0.1"}]"#;
        assert_eq!(parsed(go).unwrap(), [web.clone(), dns.clone()]);
        let conventions = r#"[{"hostPort":8080,"containerPort":80},
            {"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"127.0.0.1","name":"x"}]"#;
        assert_eq!(parsed(conventions).unwrap(), [web.clone(), dns]);
        assert_eq!(parsed(r#"[{"hostPort":8080,"containerPort":80,"hostIP":null}]"#).unwrap(), [web]);
        assert_eq!(parsed("[]").unwrap(), []);
        assert_eq!(parsed("null").unwrap(), []);
        assert_eq!(parse(None).unwrap(), []);
    }

    #[test]
    fn malformed_mappings_are_refused_and_named() {
        let many = format!("[{}]", [r#"{"hostPort":1,"containerPort":1}"#; MAX + 1].join(","));
        let nothing = format!("[{}{{}}]", "{},".repeat(174_762));
        for (mappings, expected) in [
            ("7", "expected an array"),
            ("[7]", "expected an array"),
            (r#"[{"hostPort":-1,"containerPort":80}]"#, "expected an array"),
            (r#"[{"hostPort":"80","containerPort":80}]"#, "expected an array"),
            (r#"[{"hostPort":80}]"#, "containerPort 0 is no port"),
            (r#"[{"hostPort":65536,"containerPort":80}]"#, "hostPort 65536 is no port"),
            (r#"[{"hostPort":80,"containerPort":70000}]"#, "containerPort 70000 is no port"),
            (r#"[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]"#, "unknown protocol \"icmp\""),
            (r#"[{"hostPort":80,"containerPort":80,"hostIP":"10.0.0.300"}]"#, "\"10.0.0.300\" is no IP"),
            (many.as_str(), "4097 entries, expected at most 4096"),
            (nothing.as_str(), "longer than 524288 bytes"),
        ] {
            let error = parsed(mappings).unwrap_err();
            assert_eq!(error.code, 7, "{mappings:.80}");
            let begin = "reading \"runtimeConfig.portMappings\" of the network configuration: ";
            assert!(error.msg.starts_with(begin) && error.msg.contains(expected), "{}", error.msg);
            assert!(error.msg.len() < 500, "{}", error.msg);
        }
    }
}
