//! What Kuryr-Kubernetes wrote of a pod's VIFs, in every era: an annotation of the pod at first, a KuryrPort later.
//!
//! All of it holds os_vif's objects, each serialised with its class and its version: see `ovo.rs`. What differs is what
//! is around them.

mod ovo;
mod vif;

use crate::{
    Format, InterfaceRequest, Source, VifError, VifRequest,
    at::{At, Object},
    error::Wrong,
    json::Json,
    rules,
};

/// The longest text, in bytes.
const MAX_TEXT: usize = 256 * 1024;
/// The most interfaces, addresses and routes of a pod.
const MAX_INTERFACES: usize = 16;
const MAX_ADDRESSES: usize = 64;
const MAX_ROUTES: usize = 256;
/// The default interface's name, where none says that it is the default one.
const DEFAULT_NAME: &str = "eth0";

/// Decodes the value of the annotation [`crate::KURYR_ANNOTATION`], of any era.
///
/// # Errors
/// If it is not what any version of Kuryr wrote.
pub fn from_annotation(text: &str) -> Result<VifRequest, VifError> {
    decode_annotation(text).map_err(|wrong| wrong.of(Source::KuryrAnnotation))
}

/// Decodes the VIFs of a KuryrPort: the JSON of its `spec.vifs` and of its `status.vifs`, as far as they are there.
///
/// `None` means that Kuryr's controller has not written any yet.
///
/// # Errors
/// If they are not what any version of Kuryr wrote.
pub fn from_vifs(spec_vifs: Option<&str>, status_vifs: Option<&str>) -> Result<Option<VifRequest>, VifError> {
    let of_status = decode_vifs(status_vifs, "status.vifs", Format::KuryrPort);
    let decoded = match of_status {
        Ok(None) => decode_vifs(spec_vifs, "spec.vifs", Format::KuryrPortSpec),
        decoded => decoded,
    };
    decoded.map_err(|wrong| wrong.of(Source::KuryrPort))
}

/// The interfaces of a pod: the default one, if it is known which one that is, and the others.
#[derive(Default)]
struct Interfaces {
    default: Option<InterfaceRequest>,
    others: Vec<InterfaceRequest>,
}

fn decode_annotation(text: &str) -> Result<VifRequest, Wrong> {
    let json = Json::parse(text, MAX_TEXT, "")?;
    let root = At::root(&json, "");
    let object = root.object()?;
    let (format, interfaces) = match ovo::class(&object)? {
        Some("PodState") => (Format::KuryrPodState, pod_state(&ovo::named(&root, "PodState")?)?),
        Some(_) => (Format::KuryrVif, Interfaces::of_one(vif::decode(&root, DEFAULT_NAME.to_owned())?)),
        None => (Format::KuryrVifMap, vif_map(&object)?),
    };
    interfaces.into_pod_vif(format, &root)
}

fn pod_state(state: &Object<'_>) -> Result<Interfaces, Wrong> {
    let default = vif::decode(&state.need("default_vif")?, DEFAULT_NAME.to_owned())?;
    let mut interfaces = Interfaces::of_one(default);
    if let Some(additional) = state.get("additional_vifs") {
        for (name, at) in bounded(&additional)?.each() {
            if name == DEFAULT_NAME {
                return Err(at.wrong(format_args!("{name} is the default VIF's name")));
            }
            interfaces.others.push(vif::decode(&at, rules::interface_name(&at, name)?)?);
        }
    }
    Ok(interfaces)
}

fn vif_map(map: &Object<'_>) -> Result<Interfaces, Wrong> {
    let mut interfaces = Interfaces::default();
    check_count(map)?;
    for (name, at) in map.each() {
        interfaces.others.push(vif::decode(&at, rules::interface_name(&at, name)?)?);
    }
    Ok(interfaces)
}

/// The VIFs of a KuryrPort, each with a mark whether it is the default one.
fn decode_vifs(text: Option<&str>, path: &str, format: Format) -> Result<Option<VifRequest>, Wrong> {
    let Some(text) = text else { return Ok(None) };
    let json = Json::parse(text, MAX_TEXT, path)?;
    if json == Json::Null {
        return Ok(None);
    }
    let root = At::root(&json, path);
    let map = bounded(&root)?;
    let mut interfaces = Interfaces::default();
    for (name, at) in map.each() {
        let entry = at.object()?;
        let interface = vif::decode(&entry.need("vif")?, rules::interface_name(&at, name)?)?;
        let mark = entry.get("default");
        if !mark.as_ref().map_or(Ok(false), At::bool)? {
            interfaces.others.push(interface);
        } else if interfaces.default.replace(interface).is_some() {
            return Err(root.wrong("has more than one default VIF"));
        }
    }
    if interfaces.default.is_none() && interfaces.others.is_empty() {
        return Ok(None);
    }
    interfaces.into_pod_vif(format, &root).map(Some)
}

fn bounded<'v>(at: &At<'v>) -> Result<Object<'v>, Wrong> {
    let map = at.object()?;
    check_count(&map)?;
    Ok(map)
}

fn check_count(map: &Object<'_>) -> Result<(), Wrong> {
    let count = map.each().count();
    if count > MAX_INTERFACES {
        return Err(map.wrong(format_args!("has {count} VIFs: {MAX_INTERFACES} are the most")));
    }
    Ok(())
}

// === impl Interfaces ===

impl Interfaces {
    fn of_one(default: InterfaceRequest) -> Self {
        Self { default: Some(default), others: Vec::new() }
    }

    /// Puts the default interface first, and checks what holds for all together.
    fn into_pod_vif(self, format: Format, root: &At<'_>) -> Result<VifRequest, Wrong> {
        let Self { default, mut others } = self;
        let default = match default {
            Some(default) => default,
            None => match others.iter().position(|interface| interface.name == DEFAULT_NAME) {
                Some(index) => others.remove(index),
                None if others.len() == 1 => others.remove(0),
                None if others.is_empty() => return Err(root.wrong("has no VIF")),
                None => return Err(root.wrong("does not say which VIF is the default one, and has no eth0")),
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
                return Err(root.wrong(format_args!("has {count} {what}: {max} are the most")));
            }
        }
        Ok(VifRequest { format, interfaces: others })
    }
}

#[cfg(test)]
mod tests;
