//! What the maps of another version know, and the registry does not: flows, and what was counted.
//!
//! Each [`ABI_VERSION`](agent_common::ABI_VERSION) has a directory of pins of its own, so that no agent ever works on maps of
//! another layout. A new agent writes the entries of all attachments into maps of its own, copies what only the old ones
//! know as far as it has the same layout there, replaces the filters, and removes the old pins. It does not matter which of
//! the two versions is the older one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use agent_common::{Counters, Flow, FlowKey, MAX_FLOWS, VifKey};
use aya::{
    Pod,
    maps::{HashMap, Map, MapData, MapError, PerCpuHashMap, PerCpuValues},
};

use super::layout::{self, Layout, LayoutError};
use crate::{
    chain::chain,
    crash::{self, Step},
};

/// The directories of pins of other versions.
pub(super) struct Earlier(Vec<PathBuf>);

/// Why something of another version is lost. Its pods are not.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("cannot copy its entries")]
    Copy(#[from] MapError),
}

// === impl Earlier ===

impl Earlier {
    /// Looks beside the directory of this version's pins.
    pub(super) fn beside(pins: &Path) -> Self {
        let entries = pins.parent().and_then(|directory| fs::read_dir(directory).ok());
        let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        Self(paths.filter(|path| path != pins && is_of_a_version(path)).collect())
    }

    /// Copies what was counted for the interfaces that this version counts for. To be done before its programs are attached,
    /// which count on: what the others count from here on is lost.
    pub(super) fn copy_counters(&self, to: &Path) {
        self.copy(&layout::COUNTERS, |from| copy_counters(from, &layout::COUNTERS.path(to)));
    }

    /// Copies the flows that are in the stack's hands. To be done before the programs are attached, and once more after.
    pub(super) fn copy_flows(&self, to: &Path) {
        self.copy(&layout::FLOWS, |from| copy_all::<FlowKey, Flow>(from, &layout::FLOWS.path(to)));
    }

    /// Removes the pins. The kernel keeps the maps for as long as a filter uses them.
    pub(super) fn remove(&self) {
        for directory in &self.0 {
            match remove_pins(directory) {
                Ok(()) => {
                    tracing::info!(?directory, "the maps of another version are no longer needed: removed")
                }
                Err(error) => tracing::warn!(?directory, %error, "cannot remove the maps of another version"),
            }
        }
    }

    fn copy(&self, layout: &Layout, copy: impl Fn(&Path) -> Result<(), MapError>) {
        for directory in &self.0 {
            let from = layout.path(directory);
            let copied = layout
                .check(directory)
                .map_err(Lost::from)
                .and_then(|()| if from.exists() { Ok(copy(&from)?) } else { Ok(()) });
            if let Err(error) = copied {
                tracing::warn!(?from, error = chain(&error), "what this map knew is not taken over");
            }
        }
    }
}

fn copy_all<K: Pod, V: Pod>(from: &Path, to: &Path) -> Result<(), MapError> {
    let from: HashMap<_, K, V> = HashMap::try_from(Map::LruHashMap(MapData::from_pin(from)?))?;
    let mut to: HashMap<_, K, V> = HashMap::try_from(Map::LruHashMap(MapData::from_pin(to)?))?;
    // More than there are at once: while others come and go, a walk could go on for ever.
    from.iter().take(2 * MAX_FLOWS).try_for_each(|entry| {
        let (key, value) = entry?;
        to.insert(key, value, 0)
    })
}

fn copy_counters(from: &Path, to: &Path) -> Result<(), MapError> {
    let open =
        |path| PerCpuHashMap::<_, VifKey, Counters>::try_from(Map::PerCpuHashMap(MapData::from_pin(path)?));
    let (from, mut to) = (open(from)?, open(to)?);
    let keys: Vec<VifKey> = to.keys().filter_map(Result::ok).collect();
    keys.into_iter().try_for_each(|key| match from.get(&key, 0) {
        // Else they were copied before, by an agent that did not get as far as to remove the others.
        Ok(counted) if is_zero(&to.get(&key, 0)?) => to.insert(key, counted, 0),
        Ok(_) => Ok(()),
        Err(MapError::KeyNotFound) => Ok(()),
        Err(error) => Err(error),
    })
}

fn is_zero(counted: &PerCpuValues<Counters>) -> bool {
    counted.iter().all(|it| *it == Counters::default())
}

/// Its name says so, and the map in it that each version has; or it is empty, as a crash leaves one.
fn is_of_a_version(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_numbered =
        name.and_then(|name| name.strip_prefix('v')).is_some_and(|number| number.parse::<u32>().is_ok());
    let is_empty = || fs::read_dir(path).is_ok_and(|mut pins| pins.next().is_none());
    is_numbered && (layout::VIFS.path(path).exists() || is_empty())
}

/// The map that tells whose the directory is goes last: a removal that was cut short is taken up again.
fn remove_pins(directory: &Path) -> io::Result<()> {
    let vifs = layout::VIFS.path(directory);
    for pin in fs::read_dir(directory)? {
        let pin = pin?.path();
        if pin != vifs {
            fs::remove_file(pin)?;
            crash::point(Step::PinRemoved);
        }
    }
    if vifs.exists() {
        fs::remove_file(vifs)?;
        crash::point(Step::PinRemoved);
    }
    fs::remove_dir(directory)?;
    crash::point(Step::PinRemoved);
    Ok(())
}
