//! The layout of each map: type, sizes, and the fields of key and value.
//!
//! aya compares a pinned map's sizes with the object's, and no fields; and nothing of a map that it opens by
//! its pin alone. With larger values than expected, the kernel would write past the end of a buffer, in safe
//! code; with other fields, the agent would misread every entry.

use std::{
    collections::HashMap,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use agent_common::ABI_VERSION;
use aya::maps::{MapData, MapError};
use aya_obj::{Object, ParseError, generated::bpf_map_type};

use super::{
    bpf,
    btf::{Btf, BtfError, Field},
    maps::{MapSpec, PINNED},
};

/// The layouts that the eBPF object of this build declares.
pub(super) struct Layouts(HashMap<&'static str, Layout>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Layout {
    /// `enum bpf_map_type`.
    kind: u32,
    /// Bytes.
    key_size: u32,
    /// Bytes.
    value_size: u32,
    key: Vec<Field>,
    value: Vec<Field>,
}

/// A pinned map that this build cannot use.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("cannot parse the eBPF object")]
    Object(#[from] ParseError),
    #[error("the eBPF object does not declare the map {0}")]
    Undeclared(&'static str),
    #[error("cannot parse the BTF of the map {map}")]
    Btf {
        map: &'static str,
        #[source]
        source: BtfError,
    },
    #[error("cannot read the pinned map {path:?}; remove it if it is no map of the agent")]
    Read {
        path: PathBuf,
        #[source]
        source: MapError,
    },
    #[error(
        "the pinned map {path:?} has {found}, but version {ABI_VERSION} of the maps has {expected}; another program \
         pinned the map, or a build changed the layout without a new ABI_VERSION: remove {path:?} when no pod on this \
         node needs it"
    )]
    Differs { path: PathBuf, found: String, expected: String },
}

/// The version in the path of the pins. A test build can claim another version.
pub(super) fn version() -> u32 {
    #[cfg(feature = "crash-points")]
    if let Some(other) = std::env::var("FERRULE_ABI_VERSION").ok().and_then(|text| text.parse().ok()) {
        return other;
    }
    ABI_VERSION
}

// === impl Layouts ===

impl Layouts {
    /// # Errors
    /// If the object is invalid or lacks a map.
    pub(super) fn of_object(object: &[u8]) -> Result<Self, LayoutError> {
        let object = Object::parse(object)?;
        let bytes = object.btf.as_ref().map(aya_obj::btf::Btf::to_bytes).unwrap_or_default();
        let layouts = PINNED.iter().map(|map| {
            let name = map.name;
            let declared = object.maps.get(name).ok_or(LayoutError::Undeclared(name))?;
            let aya_obj::Map::Btf(typed) = declared else { return Err(LayoutError::Undeclared(name)) };
            let kind = declared.map_type();
            // The kernel keeps neither sizes nor types of a ring buffer.
            if kind == bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32 {
                return Ok((name, Layout { kind, ..Layout::default() }));
            }
            let (key_size, value_size) = (declared.key_size(), declared.value_size());
            let (key, value) = fields(&bytes, typed.def.btf_key_type_id, typed.def.btf_value_type_id)
                .map_err(|source| LayoutError::Btf { map: name, source })?;
            Ok((name, Layout { kind, key_size, value_size, key, value }))
        });
        Ok(Self(layouts.collect::<Result<_, _>>()?))
    }

    /// The capacity of the map that is pinned in `directory`, in entries; `None` if none is.
    ///
    /// # Errors
    /// If the layout of the pinned map differs from this build's.
    pub(super) fn check(&self, map: &MapSpec, directory: &Path) -> Result<Option<u32>, LayoutError> {
        let path = map.path(directory);
        if !path.exists() {
            return Ok(None);
        }
        let read = |source| LayoutError::Read { path: path.clone(), source };
        let expected = self.0.get(map.name).ok_or(LayoutError::Undeclared(map.name))?;
        let pinned = MapData::from_pin(&path).map_err(read)?;
        let info = bpf::map_info(pinned.fd().as_fd()).map_err(|error| read(MapError::IoError(error)))?;
        let (kind, key_size, value_size) = (info.type_, info.key_size, info.value_size);
        let mut found = Layout { kind, key_size, value_size, key: Vec::new(), value: Vec::new() };
        if found.has_sizes_of(expected) && info.btf_value_type_id != 0 {
            let bytes = bpf::btf(info.btf_id).map_err(|error| read(MapError::IoError(error)))?;
            (found.key, found.value) = fields(&bytes, info.btf_key_type_id, info.btf_value_type_id)
                .map_err(|source| LayoutError::Btf { map: map.name, source })?;
        }
        match expected.difference(&found) {
            None => Ok(Some(info.max_entries)),
            Some((expected, found)) => Err(LayoutError::Differs { path, found, expected }),
        }
    }
}

// === impl Layout ===

impl Layout {
    fn has_sizes_of(&self, other: &Self) -> bool {
        let sizes = |it: &Self| (it.kind, it.key_size, it.value_size);
        sizes(self) == sizes(other)
    }

    /// The first difference, in words: this layout's side, the other's side.
    fn difference(&self, other: &Self) -> Option<(String, String)> {
        if !self.has_sizes_of(other) {
            return Some((self.describe(), other.describe()));
        }
        let parts = [("key", &self.key, &other.key), ("value", &self.value, &other.value)];
        parts.into_iter().find_map(|(part, own, others)| {
            let index = (0..own.len().max(others.len())).find(|at| own.get(*at) != others.get(*at))?;
            let describe = |fields: &[Field]| match fields.get(index) {
                Some(field) => format!("the {part} {field}"),
                None => {
                    format!("no {} {part} field", if fields.is_empty() { "described" } else { "further" })
                }
            };
            Some((describe(own), describe(others)))
        })
    }

    fn describe(&self) -> String {
        let kind = bpf_map_type::try_from(self.kind)
            .map_or_else(|_| self.kind.to_string(), |kind| format!("{kind:?}"));
        format!("type {kind}, keys of {} and values of {} bytes", self.key_size, self.value_size)
    }
}

fn fields(btf: &[u8], key: u32, value: u32) -> Result<(Vec<Field>, Vec<Field>), BtfError> {
    let btf = Btf::parse(btf)?;
    Ok((btf.fields(key as usize)?, btf.fields(value as usize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(key: &[(&str, usize)], value: &[(&str, usize)]) -> Layout {
        let field =
            |(name, offset): &(&str, usize)| Field { path: (*name).to_owned(), offset: *offset, size: 4 };
        let fields = |all: &[(&str, usize)]| all.iter().map(field).collect();
        Layout { kind: 1, key_size: 4, value_size: 8, key: fields(key), value: fields(value) }
    }

    #[test]
    fn the_first_difference_is_named() {
        let own = layout(&[("ifindex", 0)], &[("ipv4", 0), ("flags", 4)]);
        assert_eq!(own.difference(&layout(&[("ifindex", 0)], &[("ipv4", 0), ("flags", 4)])), None);
        let words = |other: Layout| own.difference(&other).unwrap();
        let (expected, found) = words(layout(&[("ifindex", 0)], &[("flags", 0), ("ipv4", 4)]));
        assert!(
            expected.contains("value field \"ipv4\"") && found.contains("value field \"flags\""),
            "{found}"
        );
        let (expected, found) = words(layout(&[("index", 0)], &[]));
        assert!(
            expected.contains("key field \"ifindex\"") && found.contains("key field \"index\""),
            "{found}"
        );
        assert_eq!(words(layout(&[("ifindex", 0)], &[("ipv4", 0)])).1, "no further value field");
        assert_eq!(words(layout(&[], &[])).1, "no described key field");
        let larger = Layout { value_size: 12, ..layout(&[("ifindex", 0)], &[("ipv4", 0), ("flags", 4)]) };
        assert!(words(larger).1.ends_with("keys of 4 and values of 12 bytes"));
    }
}
