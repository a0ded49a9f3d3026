//! The formats of Kuryr-Kubernetes of all releases: first a pod annotation, later a KuryrPort.
//!
//! All formats contain os_vif objects, serialized with class and version (see `ovo.rs`), in different
//! envelopes.

mod ovo;
mod vif;

use crate::{
    Format, InterfaceRequest, Source, VifError, VifRequest,
    cursor::{Cursor, Object},
    error::FieldError,
    json::Json,
    rules,
};

/// Bytes.
const MAX_TEXT: usize = 256 * 1024;
/// Per pod, like the next two.
const MAX_INTERFACES: usize = 16;
const MAX_ADDRESSES: usize = 64;
const MAX_ROUTES: usize = 256;
/// The default interface of formats that do not mark it.
const DEFAULT_NAME: &str = "eth0";

/// Decodes the value of the annotation [`crate::KURYR_ANNOTATION`] of any release.
///
/// # Errors
/// If the text is not in a format of Kuryr.
pub fn from_annotation(text: &str) -> Result<VifRequest, VifError> {
    decode_annotation(text).map_err(|error| error.in_source(Source::KuryrAnnotation))
}

/// Decodes the VIFs of a KuryrPort: the JSON of its `spec.vifs` and `status.vifs`.
///
/// Returns `None` if Kuryr's controller has not written them yet.
///
/// # Errors
/// If a text is not in a format of Kuryr.
pub fn from_vifs(spec_vifs: Option<&str>, status_vifs: Option<&str>) -> Result<Option<VifRequest>, VifError> {
    let of_status = decode_vifs(status_vifs, "status.vifs", Format::KuryrPort);
    let decoded = match of_status {
        Ok(None) => decode_vifs(spec_vifs, "spec.vifs", Format::KuryrPortSpec),
        decoded => decoded,
    };
    decoded.map_err(|error| error.in_source(Source::KuryrPort))
}

/// The interfaces of a pod: the default one, if it is marked, and the others.
#[derive(Default)]
struct Interfaces {
    default: Option<InterfaceRequest>,
    others: Vec<InterfaceRequest>,
}

fn decode_annotation(text: &str) -> Result<VifRequest, FieldError> {
    let json = Json::parse(text, MAX_TEXT, "")?;
    let root = Cursor::root(&json, "");
    let object = root.object()?;
    let (format, interfaces) = match ovo::class(&object)? {
        Some("PodState") => (Format::KuryrPodState, pod_state(&ovo::named(&root, "PodState")?)?),
        Some(_) => (Format::KuryrVif, Interfaces::of_one(vif::decode(&root, DEFAULT_NAME.to_owned())?)),
        None => (Format::KuryrVifMap, vif_map(&object)?),
    };
    interfaces.into_request(format, &root)
}

fn pod_state(state: &Object<'_>) -> Result<Interfaces, FieldError> {
    let default = vif::decode(&state.require("default_vif")?, DEFAULT_NAME.to_owned())?;
    let mut interfaces = Interfaces::of_one(default);
    if let Some(additional) = state.get("additional_vifs") {
        for (name, at) in bounded(&additional)?.entries() {
            if name == DEFAULT_NAME {
                return Err(at.error(format_args!("{name} is the name of the default VIF, expected another")));
            }
            interfaces.others.push(vif::decode(&at, interface_name(&at, name)?)?);
        }
    }
    Ok(interfaces)
}

fn vif_map(map: &Object<'_>) -> Result<Interfaces, FieldError> {
    let mut interfaces = Interfaces::default();
    check_count(map)?;
    for (name, at) in map.entries() {
        interfaces.others.push(vif::decode(&at, interface_name(&at, name)?)?);
    }
    Ok(interfaces)
}

/// The VIFs of a KuryrPort: a map whose entries have a field `default`.
fn decode_vifs(text: Option<&str>, path: &str, format: Format) -> Result<Option<VifRequest>, FieldError> {
    let Some(text) = text else { return Ok(None) };
    let json = Json::parse(text, MAX_TEXT, path)?;
    if json == Json::Null {
        return Ok(None);
    }
    let root = Cursor::root(&json, path);
    let map = bounded(&root)?;
    let mut interfaces = Interfaces::default();
    for (name, at) in map.entries() {
        let entry = at.object()?;
        let interface = vif::decode(&entry.require("vif")?, interface_name(&at, name)?)?;
        let is_default = entry.get("default");
        if !is_default.as_ref().map_or(Ok(false), Cursor::bool)? {
            interfaces.others.push(interface);
        } else if interfaces.default.replace(interface).is_some() {
            return Err(root.error("found a second default VIF, expected one"));
        }
    }
    if interfaces.default.is_none() && interfaces.others.is_empty() {
        return Ok(None);
    }
    interfaces.into_request(format, &root).map(Some)
}

fn interface_name(at: &Cursor<'_>, name: &str) -> Result<String, FieldError> {
    rules::interface_name(name).map_err(|reason| at.error(reason))
}

fn bounded<'v>(at: &Cursor<'v>) -> Result<Object<'v>, FieldError> {
    let map = at.object()?;
    check_count(&map)?;
    Ok(map)
}

fn check_count(map: &Object<'_>) -> Result<(), FieldError> {
    let count = map.entries().count();
    if count > MAX_INTERFACES {
        return Err(map.error(format_args!("found {count} VIFs, expected at most {MAX_INTERFACES}")));
    }
    Ok(())
}

// === impl Interfaces ===

impl Interfaces {
    fn of_one(default: InterfaceRequest) -> Self {
        Self { default: Some(default), others: Vec::new() }
    }

    /// Moves the default interface to the front, and checks the limits of the pod.
    fn into_request(self, format: Format, root: &Cursor<'_>) -> Result<VifRequest, FieldError> {
        let Self { default, mut others } = self;
        let default = match default {
            Some(default) => default,
            None => match others.iter().position(|interface| interface.name == DEFAULT_NAME) {
                Some(index) => others.remove(index),
                None if others.len() == 1 => others.remove(0),
                None if others.is_empty() => return Err(root.error("found no VIF, expected at least one")),
                None => return Err(root.error("found no default VIF, expected one marked or named eth0")),
            },
        };
        others.insert(0, default);
        let count = |of: fn(&InterfaceRequest) -> usize| others.iter().map(of).sum::<usize>();
        for (what, count, max) in [
            ("interfaces", others.len(), MAX_INTERFACES),
            ("addresses", count(|it| it.addresses.len()), MAX_ADDRESSES),
            ("routes", count(|it| it.routes.len()), MAX_ROUTES),
        ] {
            if count > max {
                return Err(root.error(format_args!("found {count} {what}, expected at most {max}")));
            }
        }
        Ok(VifRequest { format, interfaces: others })
    }
}

#[cfg(test)]
mod tests;
