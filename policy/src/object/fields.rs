//! Decoding of fields, with paths in the errors.

use std::str::FromStr;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{Effect, Problem};
use crate::{Prefix, Protocol};

/// A field that was not understood.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) field: String,
    pub(super) reason: String,
}

/// A prefix in a field.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Cidr(pub(super) Prefix);

/// The name of a protocol.
#[derive(Clone, Copy, Deserialize)]
pub(super) enum ProtocolName {
    #[serde(rename = "TCP")]
    Tcp,
    #[serde(rename = "UDP")]
    Udp,
    #[serde(rename = "SCTP")]
    Sctp,
}

/// Decodes the JSON of a field.
pub(super) fn decode<T: DeserializeOwned>(field: &str, json: &RawValue) -> Result<T, Wrong> {
    // To follow the path costs as much as to decode, and only errors need it.
    if let Ok(decoded) = serde_json::from_str(json.get()) {
        return Ok(decoded);
    }
    let mut json = serde_json::Deserializer::from_str(json.get());
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let field = match path.as_str() {
            "." => field.to_owned(),
            path if path.starts_with('[') => format!("{field}{path}"),
            path => format!("{field}.{path}"),
        };
        // The position in a part of the object says nothing to a reader.
        let reason = error.into_inner().to_string();
        let reason = reason.rsplit_once(" at line ").map_or(reason.as_str(), |(reason, _)| reason);
        Wrong { field: cut(&field), reason: cut(reason) }
    })
}

/// Whether exactly one of several alternatives is there.
pub(super) fn one_of(found: &[(&str, bool)]) -> Result<(), String> {
    let set: Vec<_> = found.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
    if set.len() == 1 {
        return Ok(());
    }
    let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
    let set = if set.is_empty() { "none".to_owned() } else { set.join(" and ") };
    Err(format!("found {set}, expected exactly one of {}", names.join(", ")))
}

/// A hostile object must not flood a message.
fn cut(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

// === impl Wrong ===

impl Wrong {
    pub(super) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    pub(super) fn with(self, effect: Effect) -> Problem {
        Problem { field: self.field, reason: self.reason, effect }
    }
}

// === impl Cidr ===

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Prefix::from_str(&text).map(Self)
    }
}

// === impl ProtocolName ===

impl From<ProtocolName> for Protocol {
    fn from(name: ProtocolName) -> Self {
        match name {
            ProtocolName::Tcp => Self::Tcp,
            ProtocolName::Udp => Self::Udp,
            ProtocolName::Sctp => Self::Sctp,
        }
    }
}
