//! The JSON of the annotation, as types. `docs/vif-v1.schema.json` is generated from them.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_path_to_error::{Path, Segment};

#[cfg(test)]
use super::validate::{ADVMSS, MAX_INTERFACES, MAX_ROUTES, PRIORITY};
#[cfg(test)]
use crate::rules::{MAX_ROUTE_MTU, MTU};
use crate::{cursor::push_key, error::FieldError, json::check_length};

/// The interfaces that a pod should get. The rules that a schema cannot express are in vif.md.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Annotation {
    /// The first is the pod's default interface: the runtime names it, and only it gets default routes.
    #[cfg_attr(test, schemars(
        with = "Vec<Interface>",
        length(min = 1, max = MAX_INTERFACES),
        transform = super::tests::schema::require_names_but_first,
    ))]
    pub(super) interfaces: Vec<Object<Interface>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Interface {
    /// Unique in the pod. Default for the first interface: "eth0".
    #[cfg_attr(test, schemars(
        regex(pattern = "^[!-$&-.0-9;-~]{1,15}$"),
        extend("not" = {"enum": [".", "..", "lo", "all", "default"]}),
    ))]
    pub(super) name: Option<String>,
    /// The kind of interface to create. Default: "veth".
    #[cfg_attr(test, schemars(regex(pattern = "^[a-zA-Z0-9_.-]{1,64}$")))]
    pub(super) kind: Option<String>,
    /// One IPv4 address, one IPv6 address, or one of each. A prefix length is informational.
    #[cfg_attr(
        test,
        schemars(length(min = 1, max = 2), inner(regex(pattern = "^[0-9a-fA-F.:]+(/[0-9]{1,3})?$")),)
    )]
    pub(super) addresses: Vec<String>,
    /// At most one of each family. Default: the agent's own link-local gateways.
    #[cfg_attr(test, schemars(length(max = 2), inner(regex(pattern = "^[0-9a-fA-F.:]+$"))))]
    pub(super) gateways: Option<Vec<String>>,
    /// Routes other than the default routes.
    #[cfg_attr(test, schemars(with = "Option<Vec<Route>>", length(max = MAX_ROUTES)))]
    pub(super) routes: Option<Vec<Object<Route>>>,
    /// A unicast MAC other than zero. Default: derived from the addresses.
    #[cfg_attr(test, schemars(
        regex(pattern = "^[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}$"),
        extend("not" = {"const": "00:00:00:00:00:00"}),
    ))]
    pub(super) mac: Option<String>,
    /// Bytes; at least 1280 with an IPv6 address. Default: the uplink's MTU.
    #[cfg_attr(test, schemars(range(min = *MTU.start(), max = *MTU.end())))]
    pub(super) mtu: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    /// A network without host bits; not a default route.
    #[cfg_attr(test, schemars(regex(pattern = "^[0-9a-fA-F.:]+/[0-9]{1,3}$")))]
    pub(super) dst: String,
    /// Next hop, of the family of dst. Default: the gateway of that family.
    #[cfg_attr(test, schemars(regex(pattern = "^[0-9a-fA-F.:]+$")))]
    pub(super) gw: Option<String>,
    /// Largest packet to these destinations, in bytes; at most the interface's MTU, for IPv6 at least 1280.
    #[cfg_attr(test, schemars(range(min = *MTU.start(), max = MAX_ROUTE_MTU)))]
    pub(super) mtu: Option<u64>,
    /// Maximum segment size that TCP advertises to these destinations, in bytes.
    #[cfg_attr(test, schemars(range(min = *ADVMSS.start(), max = *ADVMSS.end())))]
    pub(super) advmss: Option<u64>,
    /// Metric: of several routes to a destination, the kernel uses the one with the lowest priority value.
    #[cfg_attr(test, schemars(range(min = *PRIORITY.start(), max = *PRIORITY.end())))]
    pub(super) priority: Option<u64>,
}

/// Decodes a struct from a JSON object only. A derived `Deserialize` also accepts an array of the fields.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

/// Bytes.
const MAX_TEXT: usize = 64 * 1024;
/// Characters of serde's messages, which quote the text without a limit.
const MAX_REASON: usize = 200;

/// Parses the JSON.
pub(super) fn parse(text: &str) -> Result<Annotation, FieldError> {
    check_length(text, MAX_TEXT, "")?;
    let invalid = |error| FieldError::new("", format_args!("invalid JSON: {error}"));
    let mut json = serde_json::Deserializer::from_str(text);
    let Object(annotation) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        if !error.inner().is_data() {
            return invalid(error.into_inner());
        }
        FieldError::new(path(error.path()), shorten(&error.inner().to_string()))
    })?;
    json.end().map_err(invalid)?;
    Ok(annotation)
}

fn path(segments: &Path) -> String {
    let mut path = String::new();
    for segment in segments {
        match segment {
            Segment::Seq { index } => path.push_str(&format!("[{index}]")),
            Segment::Map { key } => push_key(&mut path, key),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    path
}

/// Escapes control characters and cuts the middle of a long message, which keeps found and expected values.
fn shorten(message: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let escaped: String = message.chars().map(escape).collect();
    let (half, count) = (MAX_REASON / 2, escaped.chars().count());
    if count <= MAX_REASON {
        return escaped;
    }
    escaped.chars().take(half).chain("...".chars()).chain(escaped.chars().skip(count - half)).collect()
}

// === impl Object ===

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}
