//! The verified programs, pinned beside the maps for the next agent.
//!
//! Verification takes most of a start: half a second on a slow core. A restarted agent of the same build with
//! the same settings uses its predecessor's programs, which are attached already.
//!
//! The symbolic link `programs` has the digest of what they were made from: the object, the settings that
//! are constants in the programs, and the IDs of the pinned maps, which the kernel does not use twice. The
//! link is removed first and made last.

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    maps::{Map, MapData, MapError, MapInfo},
    pin::PinError,
    programs::{ProgramError, SchedClassifier},
};
use sha2::{Digest as _, Sha256};

use super::{
    counted_flows::FLOW_STATS,
    loading::Ready,
    log::LogLevel,
    maps::PINNED,
    programs::{FILTERS, FROM_POD, Loaded, Programs, SET_SUBJECT},
    sampling::FLOW_SAMPLING,
    settings::Settings,
    verification::Verification,
};
use crate::{
    chain::chain,
    crash::{self, Step},
};

/// Where the programs of this agent are pinned, and what they are made from.
pub(super) struct Verified {
    pins: PathBuf,
    /// Of object and settings.
    digest: Sha256,
}

/// Programs cannot be taken over, or not be pinned for the next agent, so that they are verified again.
#[derive(Debug, thiserror::Error)]
enum VerifiedError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("the programs use no map {0}")]
    NoMap(&'static str),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

const LINK: &str = "programs";

/// Removes the pins of programs below a directory of pins. The programs stay while filters use them.
///
/// # Errors
/// If a pin cannot be removed.
pub(super) fn unpin(pins: &Path) -> io::Result<()> {
    for name in [LINK, SET_SUBJECT].into_iter().chain(FILTERS) {
        match fs::remove_file(pins.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
            Ok(()) => crash::point(Step::ProgramUnpinned),
        }
    }
    Ok(())
}

// === impl Verified ===

impl Verified {
    /// `None` if the programs log: their log ends with their agent.
    pub(super) fn of(pins: &Path, object: &[u8], settings: &Settings) -> Option<Self> {
        let digest = || Sha256::new_with_prefix(object).chain_update(format!("{settings:?}"));
        (settings.log == LogLevel::Off).then(|| Self { pins: pins.to_owned(), digest: digest() })
    }

    /// The programs of an earlier agent, if they are the same.
    pub(super) fn take(&self) -> Option<Ready> {
        let left = fs::read_link(self.link()).ok()?;
        if self.digest().ok().is_none_or(|digest| left != Path::new(&digest)) {
            return None;
        }
        let taken = self.open();
        let warn = |error: &VerifiedError| {
            tracing::warn!(pins = ?self.pins, error = chain(error), "the pinned programs are not used");
        };
        taken.inspect_err(warn).ok()
    }

    /// Pins newly loaded programs, instead of earlier ones.
    pub(super) fn leave(&self, ebpf: &mut Ebpf) {
        if let Err(error) = self.pin(ebpf) {
            let error = chain(&error);
            tracing::warn!(pins = ?self.pins, error, "cannot pin the programs: the next agent verifies them again");
        }
    }

    fn open(&self) -> Result<Ready, VerifiedError> {
        let pinned = |name| SchedClassifier::from_pin(self.pins.join(name));
        let open = |name| Loaded::of(name, &pinned(name)?);
        let maps = pinned(FROM_POD)?.info()?.map_ids()?.unwrap_or_default();
        Ok(Ready {
            sampling: named(&maps, FLOW_SAMPLING)?,
            flows: named(&maps, FLOW_STATS)?,
            programs: Verification::of_earlier(Programs::each(open)?),
            set_subject: open(SET_SUBJECT)?,
        })
    }

    fn pin(&self, ebpf: &mut Ebpf) -> Result<(), VerifiedError> {
        unpin(&self.pins)?;
        for (name, program) in ebpf.programs_mut() {
            let program: &mut SchedClassifier = program.try_into()?;
            program.pin(self.pins.join(name))?;
            crash::point(Step::ProgramPinned);
        }
        symlink(self.digest()?, self.link())?;
        crash::point(Step::ProgramsNamed);
        Ok(())
    }

    fn link(&self) -> PathBuf {
        self.pins.join(LINK)
    }

    fn digest(&self) -> Result<String, MapError> {
        let mut digest = self.digest.clone();
        for map in &PINNED {
            digest.update(MapInfo::from_pin(map.path(&self.pins))?.id().to_le_bytes());
        }
        let mut text = String::new();
        for byte in digest.finalize() {
            let _ = write!(text, "{byte:02x}");
        }
        Ok(text)
    }
}

fn named(maps: &[u32], name: &'static str) -> Result<Map, VerifiedError> {
    for id in maps {
        let data = MapData::from_id(*id)?;
        if data.info()?.name_as_str() == Some(name) {
            return Ok(Map::from_map_data(data)?);
        }
    }
    Err(VerifiedError::NoMap(name))
}
