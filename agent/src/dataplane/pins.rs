//! The pins of the maps, by which the next agent finds them.

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use aya::{
    maps::{MapData, MapError, MapInfo},
    pin::PinError,
};

use super::{
    DataplaneError,
    layout::{Layout, PINNED},
    make_pin_directory,
    maps::MapFailure,
};
use crate::crash::{self, Step};

/// The maps with their pins, open so that these can be made anew.
pub(super) struct Pins {
    directory: PathBuf,
    maps: Vec<(Layout, MapData)>,
}

/// The right to the pins below a directory, in whatever network namespaces there are agents that share the file system.
pub(super) struct PinLock(#[expect(dead_code, reason = "it is given back when the file is closed")] File);

/// A pin that is gone and cannot be made anew.
#[derive(Debug, thiserror::Error)]
pub enum PinFailure {
    /// No directory for it.
    #[error(transparent)]
    Directory(#[from] Box<DataplaneError>),
    /// The kernel refused. Somebody else's file of that name is left.
    #[error("cannot pin the map {map}")]
    Pin {
        map: &'static str,
        #[source]
        source: PinError,
    },
}

/// An agent that was killed is not always gone when the next one comes.
const LOOKS: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);

// === impl PinLock ===

impl PinLock {
    /// Takes the right, before any of the maps is opened.
    ///
    /// # Errors
    /// If another agent has it.
    pub(super) fn take(directory: &Path) -> Result<Self, DataplaneError> {
        let failed = |source| DataplaneError::Directory { path: directory.to_owned(), source };
        let held = File::open(directory).map_err(failed)?;
        for _ in 0..LOOKS {
            match held.try_lock() {
                Ok(()) => return Ok(Self(held)),
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(DataplaneError::SecondAgent { path: directory.to_owned() })
    }
}

// === impl Pins ===

impl Pins {
    /// Opens what was loaded and pinned.
    pub(super) fn open(directory: &Path) -> Result<Self, MapFailure> {
        let open = |map: &Layout| {
            let opened = MapData::from_pin(map.path(directory));
            opened.map(|data| (*map, data)).map_err(|source| MapFailure::new("open", map.name, source))
        };
        let maps = PINNED.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { directory: directory.to_owned(), maps })
    }

    /// The maps whose pins are gone, or are another map's. Where the kernel does not tell, nothing is said.
    pub(super) fn lost(&self) -> Vec<&'static str> {
        self.maps.iter().filter(|(map, data)| self.is_lost(map, data)).map(|(map, _)| map.name).collect()
    }

    /// Pins a map again, if its pin is gone.
    pub(super) fn renew(&self, name: &str) -> Result<(), PinFailure> {
        make_pin_directory(&self.directory).map_err(Box::new)?;
        let lost = self.maps.iter().filter(|(map, data)| map.name == name && self.is_lost(map, data));
        lost.into_iter().try_for_each(|(map, data)| {
            data.pin(map.path(&self.directory))
                .map_err(|source| PinFailure::Pin { map: map.name, source })?;
            crash::point(Step::MapsPinned);
            Ok(())
        })
    }

    fn is_lost(&self, map: &Layout, data: &MapData) -> bool {
        let path = map.path(&self.directory);
        if !path.exists() {
            return true;
        }
        let ids = || Ok::<_, MapError>((MapInfo::from_pin(&path)?.id(), data.info()?.id()));
        ids().is_ok_and(|(pinned, ours)| pinned != ours)
    }
}
