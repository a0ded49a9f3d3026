//! The metadata that the server gives to objects.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::{resource::Resource, status::Status};

/// The letters of generated names: none that make words or are misread.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The metadata of an object; made if it has none.
///
/// # Errors
/// If it is not an object.
pub(super) fn metadata(value: &mut Value) -> Result<&mut Map<String, Value>, Status> {
    value
        .as_object_mut()
        .map(|object| object.entry("metadata").or_insert_with(|| json!({})))
        .and_then(Value::as_object_mut)
        .ok_or_else(|| Status::bad_request("metadata is not an object"))
}

/// Whether changes of the spec are counted.
pub(super) const fn has_generation(resource: Resource) -> bool {
    matches!(resource, Resource::Pods | Resource::KuryrPorts)
}

/// Whether somebody has to be done with an object before it goes.
pub(super) fn has_finalizers(metadata: &Map<String, Value>) -> bool {
    metadata.get("finalizers").and_then(Value::as_array).is_some_and(|finalizers| !finalizers.is_empty())
}

/// A name that starts with a prefix.
pub(super) fn generated_name(prefix: &str) -> String {
    let letters = (0..5).filter_map(|_| fastrand::choice(LETTERS)).map(|byte| char::from(*byte));
    prefix.chars().chain(letters).collect()
}

/// A new identity.
pub(super) fn uid() -> String {
    // Version 4, variant 1.
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

/// The time as objects have it.
pub(super) fn now() -> String {
    in_seconds(0)
}

/// A time to come.
pub(super) fn in_seconds(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let now = Timestamp::now();
    now.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(now)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
