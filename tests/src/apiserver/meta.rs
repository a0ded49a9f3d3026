//! Metadata that the server sets on objects.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::{resource::Resource, status::Status};

/// Kubernetes' alphabet of generated names: no vowels and no ambiguous characters.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The metadata of an object, created if missing.
///
/// # Errors
/// If the metadata is not a JSON object.
pub(super) fn metadata(value: &mut Value) -> Result<&mut Map<String, Value>, Status> {
    value
        .as_object_mut()
        .map(|object| object.entry("metadata").or_insert_with(|| json!({})))
        .and_then(Value::as_object_mut)
        .ok_or_else(|| Status::bad_request("metadata is not an object"))
}

/// Whether the server counts changes of the spec in `metadata.generation`.
pub(super) const fn has_generation(resource: Resource) -> bool {
    matches!(resource, Resource::Pods | Resource::KuryrPorts)
}

/// Whether finalizers delay the object's deletion.
pub(super) fn has_finalizers(metadata: &Map<String, Value>) -> bool {
    metadata.get("finalizers").and_then(Value::as_array).is_some_and(|finalizers| !finalizers.is_empty())
}

pub(super) fn generated_name(prefix: &str) -> String {
    let letters = (0..5).filter_map(|_| fastrand::choice(LETTERS)).map(|byte| char::from(*byte));
    prefix.chars().chain(letters).collect()
}

pub(super) fn uid() -> String {
    // RFC 9562: version 4, variant 1.
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        bits >> 96,
        (bits >> 80) & 0xffff,
        (bits >> 64) & 0xffff,
        (bits >> 48) & 0xffff,
        bits & 0xffff_ffff_ffff
    )
}

/// RFC 3339, in seconds, as objects carry it.
pub(super) fn now() -> String {
    in_seconds(0)
}

pub(super) fn in_seconds(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let now = Timestamp::now();
    now.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(now)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
