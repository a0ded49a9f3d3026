//! Takes over the contents of maps that the new programs cannot use: those of another ABI version, and those
//! of another capacity.
//!
//! Each [`ABI_VERSION`](agent_common::ABI_VERSION) has a directory of pins, `v<ABI_VERSION>`, so that no
//! agent works on maps of another layout. When a configured capacity differs from that of a pinned map, the
//! directory is renamed to `v<ABI_VERSION>-old-<n>`, which the start then treats like one of another version:
//!
//! 1. create and pin new maps; copy `VIFS`, `ENDPOINTS`, `NODES`, `LINK_COUNTERS` and the policy maps, if the
//!    directory is of this version; of an earlier one with the same policy maps, these, and what judges pods;
//! 2. write the rows of all attachments; let those of a version without policies pass everything;
//!    copy counters and flows from each map with the same layout;
//! 3. replace the filters, which until then use the old maps;
//! 4. copy the flows once more, and remove the old pins.
//!
//! The index of `NODES` is made from the copied rows. Not copied are the rows of `UNDERLAY`: until the nodes
//! are known, packets of the tunnel take the kernel's tunnel device.
//!
//! Every step can be repeated: after a crash, the next start begins with step 1 and finds the old directory.

use std::{
    fs, io, iter,
    path::{Path, PathBuf},
};

use super::{
    capacity::Capacities,
    layout::{self, LayoutError, Layouts},
    maps::{self, MapFailure, MapSpec, Maps, PINNED, PolicyMaps, Subjects, old_subjects, policy_flows},
    pins::{self, PinDirectoryError, SET_ASIDE},
};
use crate::{
    chain::chain,
    crash::{self, Step},
};

/// Directories of pins whose contents this agent takes over.
pub(super) struct Predecessors {
    pins: PathBuf,
    directories: Vec<PathBuf>,
    layouts: Layouts,
}

/// A map that cannot get its configured capacity.
#[derive(Debug, thiserror::Error)]
pub enum CapacityError {
    #[error(
        "cannot set the capacity of the map {map} to {capacity}: {used} entries are in use in {path:?}; set {setting} to at \
         least {used}"
    )]
    TooSmall { map: &'static str, used: usize, capacity: u32, setting: &'static str, path: PathBuf },
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Map(#[from] MapFailure),
    #[error("cannot rename the directory of pins {path:?}")]
    Rename {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Directory(#[from] PinDirectoryError),
}

/// The contents of one map are not taken over. Attachments are not affected.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Map(#[from] MapFailure),
}

/// The version whose agents were the first to judge pods by policies.
const FIRST_WITH_POLICIES: u32 = 5;

// === impl Predecessors ===

impl Predecessors {
    /// Finds the directories beside `pins`. Sets `pins` itself aside if a map in it has another capacity than
    /// configured, so that `pins` can get new maps.
    ///
    /// # Errors
    /// If a pinned map has another layout, or more entries than its configured capacity; nothing is changed
    /// then.
    pub(super) fn prepare(
        pins: &Path,
        layouts: Layouts,
        capacities: &Capacities,
    ) -> Result<Self, CapacityError> {
        let mut has_capacities = true;
        for map in &PINNED {
            let capacity = (map.capacity)(capacities);
            let pinned = layouts.check(map, pins)?;
            has_capacities &= pinned.is_none_or(|pinned| pinned == capacity);
        }
        let before = Self { pins: pins.to_owned(), directories: beside(pins), layouts };
        before.refuse_to_shrink(capacities)?;
        if has_capacities {
            return Ok(before);
        }
        set_aside(pins)?;
        Ok(Self { directories: beside(pins), ..before })
    }

    /// Adds rows of `VIFS`, `ENDPOINTS`, `NODES`, `LINK_COUNTERS` and the policy maps that are in maps of
    /// this version and another capacity, the policy maps of another version with the same layout, and the
    /// counts of links of earlier versions. Only rows that are missing are added: present rows may be newer,
    /// after an interrupted start.
    pub(super) fn copy_rows(&self, to: &mut Maps, policy: &mut PolicyMaps, subjects: &Subjects) {
        let own = self.pins.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let prefix = format!("{own}{SET_ASIDE}");
        let is_of_this_version = |directory: &Path| {
            directory.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix))
        };
        self.copy(&maps::VIFS, is_of_this_version, |from| to.copy_vifs(from));
        self.copy(&maps::ENDPOINTS, is_of_this_version, |from| to.copy_endpoints(from));
        self.copy(&maps::NODES, is_of_this_version, |from| to.copy_nodes(from));
        self.copy(
            &maps::LINK_COUNTERS,
            |from| is_of_this_version(from) || is_earlier_version(from),
            |from| to.copy_links(from),
        );
        for map in &maps::POLICY {
            self.copy(map, |from| self.has_policy_rows(from), |from| policy.copy(map, from));
        }
        let has_subjects = |from: &Path| matches!(self.layouts.check(&maps::VIFS, from), Ok(Some(_)));
        self.copy(
            &maps::VIFS,
            |from| self.has_policy_rows(from) && has_subjects(from),
            |from| subjects.adopt(from),
        );
        self.copy(
            &old_subjects::SPEC,
            |from| self.has_policy_rows(from) && old_subjects::SPEC.path(from).exists(),
            |from| old_subjects::copy(from, subjects),
        );
    }

    /// Whether a directory has all maps of policies, in the layout of this version: a part of them would be
    /// another policy.
    fn has_policy_rows(&self, directory: &Path) -> bool {
        maps::POLICY.iter().all(|map| matches!(self.layouts.check(map, directory), Ok(Some(_))))
    }

    /// Whether an agent without policies has attached pods.
    pub(super) fn judge_nothing(&self) -> bool {
        let has_none = |directory: &PathBuf| {
            version_of(directory).is_some_and(|it| it < FIRST_WITH_POLICIES)
                && maps::VIFS.path(directory).exists()
        };
        self.directories.iter().any(has_none)
    }

    /// Copies counters for the interfaces in `to`. Call before the filters are replaced: the new programs
    /// count on, and what the old programs count after the copy is lost.
    pub(super) fn copy_counters(&self, to: &mut Maps) {
        self.copy(&maps::VIF_COUNTERS, |_| true, |from| to.copy_counters(from));
    }

    /// Copies the flows that the stack translates, and those that policies have judged. Call before the
    /// filters are replaced, and again after.
    pub(super) fn copy_flows(&self, to: &mut Maps) {
        self.copy(&maps::STACK_FLOWS, |_| true, |from| to.copy_flows(from));
        let judged = [policy_flows::PENDING, policy_flows::FLOWS, policy_flows::PLACES];
        for map in judged {
            self.copy(
                &map,
                |from| self.has_policy_rows(from),
                |from| policy_flows::copy(&map, from, &self.pins),
            );
        }
    }

    /// Removes the pins. The kernel keeps the maps while a filter uses them.
    pub(super) fn remove(&self) {
        for directory in &self.directories {
            match remove_pins(directory) {
                Ok(()) => tracing::info!(?directory, "removed the pins of replaced maps"),
                Err(error) => tracing::warn!(?directory, %error, "cannot remove the pins of replaced maps"),
            }
        }
    }

    fn copy(
        &self,
        map: &MapSpec,
        is_source: impl Fn(&Path) -> bool,
        mut copy: impl FnMut(&Path) -> Result<(), MapFailure>,
    ) {
        for directory in self.directories.iter().filter(|directory| is_source(directory)) {
            let copied = match self.layouts.check(map, directory) {
                Ok(None) => Ok(()),
                Ok(Some(_)) => copy(directory).map_err(CopyError::from),
                // The contents of earlier versions are converted, after a comparison of the sizes.
                Err(_) if is_earlier_version(directory) => copy(directory).map_err(CopyError::from),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = copied {
                let (map, error) = (map.name, chain(&error));
                tracing::warn!(map, ?directory, error, "the contents of a replaced map are not taken over");
            }
        }
    }

    fn refuse_to_shrink(&self, capacities: &Capacities) -> Result<(), CapacityError> {
        for (map, directory) in PINNED.iter().flat_map(|map| {
            iter::once(&self.pins).chain(&self.directories).map(move |directory| (map, directory))
        }) {
            let capacity = (map.capacity)(capacities);
            // A map of another version can have another layout: its contents are not taken over.
            let Ok(Some(pinned)) = self.layouts.check(map, directory) else { continue };
            if pinned <= capacity {
                continue;
            }
            let used = (map.count)(map.open_pin(directory)?).map_err(map.failure("read"))?;
            if used > capacity as usize {
                let (path, setting) = (map.path(directory), map.setting);
                return Err(CapacityError::TooSmall { map: map.name, used, capacity, setting, path });
            }
        }
        Ok(())
    }
}

fn is_earlier_version(directory: &Path) -> bool {
    version_of(directory).is_some_and(|version| version < layout::version())
}

fn version_of(directory: &Path) -> Option<u32> {
    let name = directory.file_name()?.to_str()?.strip_prefix('v')?;
    name.split_once(SET_ASIDE).map_or(name, |(version, _)| version).parse().ok()
}

fn set_aside(pins: &Path) -> Result<(), CapacityError> {
    let name = pins.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let free = (1_u32..).map(|number| pins.with_file_name(format!("{name}{SET_ASIDE}{number}")));
    let Some(path) = free.into_iter().find(|path| !path.exists()) else { return Ok(()) };
    fs::rename(pins, &path).map_err(|source| CapacityError::Rename { path: pins.to_owned(), source })?;
    crash::point(Step::PinsSetAside);
    tracing::info!(set_aside = ?path, "a map capacity was changed: replacing the maps");
    Ok(pins::make_directory(pins)?)
}

fn beside(pins: &Path) -> Vec<PathBuf> {
    let read = |directory| {
        let warn =
            |error: &_| tracing::warn!(?directory, %error, "cannot look for the pins of other versions");
        fs::read_dir(directory).inspect_err(warn).ok()
    };
    let entries = pins.parent().and_then(read);
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path != pins && is_ferrules(path)).collect()
}

/// Whether a directory has the name of a version's pins, and contains a map of Ferrule. A crash can leave an
/// empty directory.
fn is_ferrules(path: &Path) -> bool {
    let is_named = path.file_name().is_some_and(pins::is_version);
    let is_empty = || fs::read_dir(path).is_ok_and(|mut pins| pins.next().is_none());
    is_named && (PINNED.iter().any(|map| map.path(path).exists()) || is_empty())
}

/// Removes `VIFS`, by which the directory is recognized, last, so that an interrupted removal is resumed.
fn remove_pins(directory: &Path) -> io::Result<()> {
    let vifs = maps::VIFS.path(directory);
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
