//! The network configuration on standard input.
//!
//! Decoded in two steps, for precise errors: first the JSON syntax with all known fields raw, then one field
//! at a time. Unknown fields are skipped without being built, so neither their size nor their depth matters.

mod annotations;
mod bandwidth;
mod capabilities;
mod dns;
mod field;
mod misspelt;
mod port_mappings;
mod prev_result;

use ferrule_proto::{
    cni::{AddResult, Annotations, Bandwidth, PortMapping, error::Code},
    names::{ContainerId, IfName, NetworkName},
    quoted::Quoted,
};
use serde::Deserialize;
use serde_json::value::RawValue;

pub(crate) use self::dns::Dns;
use self::{
    dns::MAX_DNS,
    field::{even_null, field, refuse},
};
use crate::{
    error::CniError,
    version::{CniVersion, Supported},
};

/// A network configuration of valid syntax, with raw fields.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a JSON object")]
pub(crate) struct Document<'a> {
    #[serde(borrow)]
    cni_version: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    socket: Option<&'a RawValue>,
    #[serde(borrow)]
    mtu: Option<&'a RawValue>,
    #[serde(borrow)]
    dns: Option<&'a RawValue>,
    #[serde(borrow)]
    prev_result: Option<&'a RawValue>,
    #[serde(borrow)]
    runtime_config: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "cni.dev/valid-attachments", deserialize_with = "even_null")]
    valid_attachments: Option<&'a RawValue>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    /// The whole input.
    #[serde(skip)]
    text: &'a str,
}

/// The validated fields that every verb needs. A DEL parses no others: a typing error in them would keep pods
/// from terminating.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Netconf {
    pub(crate) name: NetworkName,
    /// The agent's socket.
    pub(crate) socket: String,
}

/// The validated fields that ADD needs, and STATUS, which tells whether an ADD would succeed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    /// Bytes; 0 means the agent's choice.
    pub(crate) mtu: u32,
    pub(crate) dns: Dns,
}

/// An attachment that GC keeps.
#[derive(Debug, Deserialize)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

/// The kernel's limits for a device with IPv4: `ETH_MIN_MTU` and `ETH_MAX_MTU`, in bytes.
const MTU: std::ops::RangeInclusive<u32> = 68..=65535;
/// `UNIX_PATH_MAX` in `linux/un.h`, less the terminating NUL.
const MAX_SOCKET: usize = 107;
// === impl Document ===

impl<'a> Document<'a> {
    /// Parses the JSON syntax.
    ///
    /// # Errors
    /// If the input is not a single JSON object, or if a known field is duplicated.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, CniError> {
        let refuse = |reason: &dyn std::fmt::Display| {
            let msg = format!("decoding the network configuration on standard input: {reason}");
            CniError::new(Code::DecodingFailure, msg, "the runtime must write one JSON object in UTF-8")
        };
        let text = std::str::from_utf8(bytes).map_err(|e| refuse(&e))?;
        // Serde accepts an array in place of a struct.
        if text.trim_start().starts_with('[') {
            return Err(refuse(&"found an array, expected an object"));
        }
        let document: Self = serde_json::from_str(text).map_err(|e| refuse(&e))?;
        Ok(Self { text, ..document })
    }

    /// The requested version, which may be unsupported. The default is 0.1.0, because 0.2.0 introduced the
    /// field.
    ///
    /// # Errors
    /// If the field is not a string.
    pub(crate) fn cni_version(&self) -> Result<String, CniError> {
        let version = field::<String>(self.cni_version, "cniVersion", "a string")?.unwrap_or_default();
        Ok(if version.is_empty() { "0.1.0".to_owned() } else { version })
    }

    /// The requested version.
    ///
    /// # Errors
    /// If the version is not supported.
    pub(crate) fn supported_version(&self) -> Result<CniVersion, CniError> {
        let requested = self.cni_version()?;
        CniVersion::parse(&requested).ok_or_else(|| {
            CniError::new(
                Code::IncompatibleCniVersion,
                format!(
                    "the network configuration requests CNI version {}, but this plugin supports {Supported}",
                    Quoted(&requested)
                ),
                "set \"cniVersion\" in the network configuration to a supported version",
            )
        })
    }

    /// Validates the fields that every verb needs.
    ///
    /// # Errors
    /// If a field is missing or invalid.
    pub(crate) fn netconf(&self) -> Result<Netconf, CniError> {
        let name = field::<String>(self.name, "name", "a string")?.unwrap_or_default();
        let name = NetworkName::new(&name).map_err(|e| refuse("name", e))?;
        let socket = field::<String>(self.socket, "socket", "a string")?.unwrap_or_default();
        Ok(Netconf { name, socket: checked_socket(socket)? })
    }

    /// Validates the fields that ADD needs.
    ///
    /// # Errors
    /// If a field is invalid, or an unknown one looks like a misspelt one.
    pub(crate) fn settings(&self) -> Result<Settings, CniError> {
        misspelt::check(self.text)?;
        field::<String>(self.r#type, "type", "a string")?;
        let mtu = field::<u32>(self.mtu, "mtu", "a whole number of bytes, without quotes")?;
        let mtu = mtu.unwrap_or_default();
        if mtu != 0 && !MTU.contains(&mtu) {
            let expected = format_args!("expected {} to {} bytes", MTU.start(), MTU.end());
            return Err(refuse("mtu", format_args!("{mtu} is out of range, {expected}")));
        }
        if self.dns.is_some_and(|raw| raw.get().len() > MAX_DNS) {
            return Err(refuse("dns", format_args!("longer than {MAX_DNS} bytes")));
        }
        let dns = "an object with \"nameservers\", \"domain\", \"search\", \"options\"";
        Ok(Settings { mtu, dns: field(self.dns, "dns", dns)?.unwrap_or_default() })
    }

    /// Whether there is the result of an earlier plugin or of an earlier ADD.
    pub(crate) fn has_prev_result(&self) -> bool {
        self.prev_result.is_some()
    }

    /// The pod annotations that the agent reads, or `None` if the runtime does not pass annotations. For ADD.
    ///
    /// # Errors
    /// If an annotation is not a string or is too long.
    pub(crate) fn annotations(&self) -> Result<Option<Annotations>, CniError> {
        annotations::parse(self.runtime_config)
    }

    /// The ports of the node that the runtime wants to lead to the container. For ADD.
    ///
    /// # Errors
    /// If one is malformed.
    pub(crate) fn port_mappings(&self) -> Result<Vec<PortMapping>, CniError> {
        port_mappings::parse(self.runtime_config)
    }

    /// The limits of the container's traffic that the runtime wants. For ADD.
    ///
    /// # Errors
    /// If one is malformed.
    pub(crate) fn bandwidth(&self) -> Result<Option<Bandwidth>, CniError> {
        bandwidth::parse(self.runtime_config)
    }

    /// DNS settings of the pod: the `configured` ones, overridden by the runtime's. For ADD.
    ///
    /// # Errors
    /// If the runtime's settings are malformed, or if the runtime requests a capability or an address that
    /// this plugin does not support.
    pub(crate) fn dns_for_pod(&self, configured: &Dns) -> Result<Dns, CniError> {
        capabilities::refuse_args(self.args)?;
        capabilities::merge_dns(self.runtime_config, configured)
    }

    /// The result of the whole plugin chain. For CHECK.
    ///
    /// # Errors
    /// If the result is missing, malformed or of another version than the `requested` one.
    pub(crate) fn prev_result(&self, requested: CniVersion) -> Result<AddResult, CniError> {
        prev_result::parse(self.prev_result, requested)
    }

    /// The attachments that GC keeps. The list is required: if a missing list meant an empty one, a typing
    /// error would detach every pod. `null` is an empty list, as Go runtimes write it.
    ///
    /// # Errors
    /// If the list is missing or has an invalid attachment.
    pub(crate) fn valid_attachments(&self) -> Result<Vec<(ContainerId, IfName)>, CniError> {
        const FIELD: &str = "cni.dev/valid-attachments";
        let Some(raw) = self.valid_attachments else {
            return Err(refuse(FIELD, "missing; without the list, GC would detach every container"));
        };
        let expected = "an array of objects with \"containerID\" and \"ifname\"";
        let listed: Vec<ValidAttachment> = field(Some(raw), FIELD, expected)?.unwrap_or_default();
        let checked = |attachment: ValidAttachment| {
            let container_id = ContainerId::new(&attachment.container_id).map_err(|e| refuse(FIELD, e))?;
            let ifname = IfName::new(&attachment.ifname).map_err(|e| refuse(FIELD, e))?;
            Ok((container_id, ifname))
        };
        listed.into_iter().map(checked).collect()
    }
}

fn checked_socket(path: String) -> Result<String, CniError> {
    let quoted = Quoted(&path);
    if path.is_empty() {
        return Ok(ferrule_proto::DEFAULT_SOCKET.to_owned());
    }
    if !path.starts_with('/') || path.contains(char::is_control) {
        return Err(refuse(
            "socket",
            format_args!("{quoted} is not an absolute path of printable characters"),
        ));
    }
    if path.len() > MAX_SOCKET {
        return Err(refuse("socket", format_args!("{quoted} is longer than {MAX_SOCKET} bytes")));
    }
    Ok(path)
}

#[cfg(test)]
mod tests;
