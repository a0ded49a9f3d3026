//! One field of the network configuration: how it is decoded, and the error for what is wrong with it.

use ferrule_proto::{cni::error::Code, quoted::Quoted};
use serde::{Deserialize as _, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::error::CniError;

/// Decodes one field. `null` counts as missing.
pub(super) fn field<T: DeserializeOwned>(
    raw: Option<&RawValue>,
    name: &str,
    expected: &str,
) -> Result<Option<T>, CniError> {
    let Some(raw) = raw else { return Ok(None) };
    serde_json::from_str(raw.get())
        .map_err(|_| refuse(name, format_args!("found {}, expected {expected}", found(raw))))
}

/// Decodes `null` to `Some`, to tell `null` from a missing field.
pub(super) fn even_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Decodes `null` to nothing, as Go does.
pub(super) fn even_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

/// The error for a field.
pub(super) fn refuse(name: &str, reason: impl std::fmt::Display) -> CniError {
    refuse_with(name, reason, "correct the network configuration in /etc/cni/net.d")
}

/// The error for a field, with a remedy.
pub(super) fn refuse_with(name: &str, reason: impl std::fmt::Display, details: &str) -> CniError {
    let msg = format!("reading \"{name}\" of the network configuration: {reason}");
    CniError::new(Code::InvalidNetworkConfig, msg, details)
}

/// A value as messages show it: a string without the quotes of JSON inside those of the message.
fn found(raw: &RawValue) -> String {
    match serde_json::from_str::<String>(raw.get()) {
        Ok(text) => format!("the string {}", Quoted(&text)),
        Err(_) => Quoted(raw.get()).to_string(),
    }
}
