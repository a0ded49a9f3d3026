//! Whether a pinned map is the one that this build would make.
//!
//! aya opens a pinned map without comparing it with the one in the object. A value that is larger in the kernel than
//! here would be written past the end of a buffer, in safe code.

use std::path::{Path, PathBuf};

use agent_common::{
    ABI_VERSION, Counters, Endpoint, EndpointKey, Flow, FlowKey, MAX_ENDPOINTS, MAX_FLOWS, MAX_VIFS,
    VifEntry, VifKey,
};
use aya::maps::{MapError, MapInfo, MapType};

/// A map as this build makes it.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub name: &'static str,
    kind: MapType,
    key: usize,
    value: usize,
    entries: usize,
}

/// A pin that this build cannot use.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("cannot read the pinned map {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: MapError,
    },
    #[error(
        "the pinned map {path:?} has {found}, but version {ABI_VERSION} of the maps has {expected}; it is not Ferrule's, \
         or was made by a build that forgot to raise its version: remove it when no pod of this node needs it"
    )]
    Differs { path: PathBuf, found: String, expected: String },
}

/// Every version has it, by this name.
pub const VIFS: Layout = Layout::new::<VifKey, VifEntry>("VIFS", MapType::Hash, MAX_VIFS);
pub const ENDPOINTS: Layout = Layout::new::<EndpointKey, Endpoint>("ENDPOINTS", MapType::Hash, MAX_ENDPOINTS);
pub const COUNTERS: Layout = Layout::new::<VifKey, Counters>("VIF_COUNTERS", MapType::PerCpuHash, MAX_VIFS);
/// Younger than the others: an earlier agent's pins can lack it.
pub const FLOWS: Layout = Layout::new::<FlowKey, Flow>("STACK_FLOWS", MapType::LruHash, MAX_FLOWS);

/// The maps that outlive the agent.
pub const PINNED: [Layout; 4] = [VIFS, ENDPOINTS, COUNTERS, FLOWS];

/// Of all maps. A test build can be told to be of another one.
pub fn version() -> u32 {
    #[cfg(feature = "crash-points")]
    if let Some(other) = std::env::var("FERRULE_ABI_VERSION").ok().and_then(|text| text.parse().ok()) {
        return other;
    }
    ABI_VERSION
}

// === impl Layout ===

impl Layout {
    const fn new<K, V>(name: &'static str, kind: MapType, entries: usize) -> Self {
        Self { name, kind, key: size_of::<K>(), value: size_of::<V>(), entries }
    }

    /// Where the map is pinned.
    pub fn path(&self, pins: &Path) -> PathBuf {
        pins.join(self.name)
    }

    /// Compares the pinned map, if there is one.
    ///
    /// # Errors
    /// If there is another map than this build would make.
    pub fn check(&self, pins: &Path) -> Result<(), LayoutError> {
        let path = self.path(pins);
        if !path.exists() {
            return Ok(());
        }
        let read = |source| LayoutError::Read { path: path.clone(), source };
        let info = MapInfo::from_pin(&path).map_err(read)?;
        let kind = info.map_type().map_err(read)?;
        let describe = |kind, key, value, entries| {
            format!(
                "type {kind:?}, keys of {key} and values of {value} bytes, and room for {entries} entries"
            )
        };
        let found =
            describe(kind, info.key_size() as usize, info.value_size() as usize, info.max_entries() as usize);
        let expected = describe(self.kind, self.key, self.value, self.entries);
        if found == expected { Ok(()) } else { Err(LayoutError::Differs { path, found, expected }) }
    }
}
