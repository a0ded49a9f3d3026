//! What the runtime says on standard input: the network configuration.
//!
//! It is decoded in two steps, so that an answer can say precisely what is wrong: first the JSON's syntax with
//! each known field left as it stands, then one field after the other. Unknown fields are skipped without
//! being built, so neither their size nor their depth matters.

mod annotations;
mod capabilities;
mod previous;

use ferrule_proto::{
    cni::{AddResult, Annotations, error::Code},
    names::{ContainerId, IfName, NetworkName},
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    error::{CniError, Shown},
    version::{CniVersion, Supported},
};

/// A network configuration: well-formed, its known fields not yet looked into.
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
}

/// The network configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Netconf {
    pub(crate) name: NetworkName,
    /// Where the agent listens.
    pub(crate) socket: String,
    /// In bytes; 0 leaves it to the agent.
    pub(crate) mtu: u32,
    pub(crate) dns: Dns,
    /// Whether another plugin of a chain, or an earlier ADD, left a result.
    pub(crate) has_prev_result: bool,
}

/// Name resolution for the pod, which is handed to the runtime in the result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nameservers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
}

/// An attachment that a runtime still knows, in a GC.
#[derive(Debug, Deserialize)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

/// The smallest MTU that the kernel accepts for a device with IPv4 (`ETH_MIN_MTU`), and the largest.
const MTU: std::ops::RangeInclusive<u32> = 68..=65535;
/// `UNIX_PATH_MAX` in `linux/un.h`, less the terminating NUL.
const MAX_SOCKET: usize = 107;
/// The longest `dns`, in bytes of JSON: a list of empty names would take many times its length in memory.
const MAX_DNS: usize = 64 * 1024;

// === impl Document ===

impl<'a> Document<'a> {
    /// Checks the JSON's syntax.
    ///
    /// # Errors
    /// If it is not one JSON object, or a known field is there twice.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, CniError> {
        let refuse = |why: &dyn std::fmt::Display| {
            let msg = format!("decoding the network configuration on standard input: {why}");
            CniError::new(Code::DecodingFailure, msg, "the runtime must write one JSON object in UTF-8")
        };
        let text = std::str::from_utf8(bytes).map_err(|e| refuse(&e))?;
        // An array would be taken for the fields in their order.
        if text.trim_start().starts_with('[') {
            return Err(refuse(&"it is an array"));
        }
        serde_json::from_str(text).map_err(|e| refuse(&e))
    }

    /// The version that is asked for, whether or not it is supported. None at all means the oldest one: the
    /// field came with 0.2.0.
    ///
    /// # Errors
    /// If it is not a text.
    pub(crate) fn cni_version(&self) -> Result<String, CniError> {
        let version = field::<String>(self.cni_version, "cniVersion", "a string")?.unwrap_or_default();
        Ok(if version.is_empty() { "0.1.0".to_owned() } else { version })
    }

    /// The version that is asked for.
    ///
    /// # Errors
    /// If it is not supported.
    pub(crate) fn supported_version(&self) -> Result<CniVersion, CniError> {
        let asked = self.cni_version()?;
        CniVersion::parse(&asked).ok_or_else(|| {
            CniError::new(
                Code::IncompatibleCniVersion,
                format!(
                    "the network configuration asks for CNI version {}, and this plugin speaks {Supported}",
                    Shown(&asked)
                ),
                "set \"cniVersion\" in the network configuration to one of these",
            )
        })
    }

    /// Checks the fields that every verb needs.
    ///
    /// # Errors
    /// If one is missing or wrong.
    pub(crate) fn netconf(&self) -> Result<Netconf, CniError> {
        let name = field::<String>(self.name, "name", "a string")?.unwrap_or_default();
        let name = NetworkName::new(&name).map_err(|e| refuse("name", e))?;
        field::<String>(self.r#type, "type", "a string")?;
        let socket = field::<String>(self.socket, "socket", "a string")?.unwrap_or_default();
        let mtu = field::<u32>(self.mtu, "mtu", "a whole number of bytes")?.unwrap_or_default();
        if mtu != 0 && !MTU.contains(&mtu) {
            return Err(refuse("mtu", format_args!("{mtu} is not from {} to {}", MTU.start(), MTU.end())));
        }
        if self.dns.is_some_and(|raw| raw.get().len() > MAX_DNS) {
            return Err(refuse("dns", format_args!("it is longer than {MAX_DNS} bytes")));
        }
        let dns = "an object with \"nameservers\", \"domain\", \"search\", \"options\"";
        Ok(Netconf {
            name,
            socket: checked_socket(socket)?,
            mtu,
            dns: field(self.dns, "dns", dns)?.unwrap_or_default(),
            has_prev_result: self.prev_result.is_some(),
        })
    }

    /// Those annotations of the pod that tell of its VIF; none at all if the runtime does not hand them over. Only ADD
    /// needs them.
    ///
    /// # Errors
    /// If they are not texts, or too long.
    pub(crate) fn annotations(&self) -> Result<Option<Annotations>, CniError> {
        annotations::parse(self.runtime_config)
    }

    /// Name resolution for the pod: as configured, completed by what the runtime says of the pod. Only ADD needs it.
    ///
    /// # Errors
    /// If the runtime's is malformed, or if it asks for something else that this plugin does not do.
    pub(crate) fn dns_for_pod(&self, configured: &Dns) -> Result<Dns, CniError> {
        capabilities::complete(self.runtime_config, configured)
    }

    /// The result of the chain's ADD. Only CHECK needs it.
    ///
    /// # Errors
    /// If there is none, or if it is malformed or of another version than the one `asked` for.
    pub(crate) fn previous(&self, asked: CniVersion) -> Result<AddResult, CniError> {
        previous::parse(self.prev_result, asked)
    }

    /// The attachments that a GC is to keep. There must be a list, if only `null` (which is how a runtime in Go
    /// writes an empty one): if none at all meant to keep none, a typing error would detach every pod.
    ///
    /// # Errors
    /// If there is no list, or something in it is not an attachment.
    pub(crate) fn valid_attachments(&self) -> Result<Vec<(ContainerId, IfName)>, CniError> {
        const FIELD: &str = "cni.dev/valid-attachments";
        let Some(raw) = self.valid_attachments else {
            return Err(refuse(FIELD, "it is missing, and GC would detach every container"));
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

// === impl Dns ===

impl Dns {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Decodes one field; `null` is as good as none.
fn field<T: DeserializeOwned>(
    raw: Option<&RawValue>,
    name: &str,
    expected: &str,
) -> Result<Option<T>, CniError> {
    let Some(raw) = raw else { return Ok(None) };
    serde_json::from_str(raw.get())
        .map_err(|_| refuse(name, format_args!("{} is not {expected}", Shown(raw.get()))))
}

/// Keeps a `null`, which [`Option`] by itself would take for a field that is not there.
fn even_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn checked_socket(path: String) -> Result<String, CniError> {
    let shown = Shown(&path);
    if path.is_empty() {
        return Ok(ferrule_proto::DEFAULT_SOCKET.to_owned());
    }
    if !path.starts_with('/') || path.contains(char::is_control) {
        return Err(refuse(
            "socket",
            format_args!("{shown} is not an absolute path of printable characters"),
        ));
    }
    if path.len() > MAX_SOCKET {
        return Err(refuse("socket", format_args!("{shown} is longer than {MAX_SOCKET} bytes")));
    }
    Ok(path)
}

fn refuse(name: &str, why: impl std::fmt::Display) -> CniError {
    let msg = format!("reading \"{name}\" of the network configuration: {why}");
    CniError::new(Code::InvalidNetworkConfig, msg, "correct the file in /etc/cni/net.d")
}

#[cfg(test)]
mod tests;
