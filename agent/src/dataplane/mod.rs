//! The eBPF programs and their maps.

mod encode;
mod entries;
mod inherit;
mod layout;
mod log;
mod maps;
mod memory;
mod pins;
mod reader;

use std::{
    collections::HashMap,
    fs, io,
    os::{fd::AsFd as _, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use agent_common::Counters;
use aya::{
    Ebpf, EbpfError, EbpfLoader,
    programs::{ProgramError, ProgramFd, ProgramInfo, SchedClassifier, TcAttachType},
};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

pub use entries::{Entries, Entry};
pub use layout::LayoutError;
pub use log::LogLevel;
pub use maps::{MapFailure, Recorded};
pub use pins::PinFailure;

use crate::{
    crash::{self, Step},
    plug::filter::Filters,
    registry::Attachment,
};
use encode::endpoint_keys;
use ferrule_vif::Addresses;
use inherit::Earlier;
use maps::Maps;
use pins::{PinLock, Pins};
use reader::Reader;

/// The loaded programs and their maps.
pub struct Dataplane {
    from_pod: Loaded,
    to_pod: Loaded,
    maps: Mutex<Maps>,
    reader: Reader,
    pins: PathBuf,
    pinned: Pins,
    earlier: Earlier,
    /// Until the agent ends.
    _lock: PinLock,
}

/// A program in the kernel.
struct Loaded {
    fd: ProgramFd,
    id: u32,
}

/// The dataplane cannot be loaded or changed.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    /// Pins need a BPF file system.
    #[error("{path:?} is not on a BPF file system; mount one: mount -t bpf bpf /sys/fs/bpf")]
    NotBpffs { path: PathBuf },
    /// The pins' directory cannot be made or read.
    #[error("cannot use the directory for pins {path:?}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// One of another network namespace: two in the same one never come here.
    #[error(
        "another agent uses the maps that are pinned below {path:?}; agents belong into the node's network namespace (hostNetwork: true), and \
         those of several nodes on one machine each to a directory of its own: --bpf-dir"
    )]
    SecondAgent { path: PathBuf },
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The kernel refused the object.
    #[error(
        "cannot load the eBPF object: it takes Linux 5.10 with BTF, and the capabilities BPF and NET_ADMIN"
    )]
    Load(#[from] EbpfError),
    /// The verifier refused a program, or the object is not the one that belongs to this agent.
    #[error("cannot load the eBPF program {name}")]
    Program {
        name: &'static str,
        #[source]
        source: ProgramError,
    },
    #[error(transparent)]
    Map(#[from] MapFailure),
}

// === impl Dataplane ===

impl Dataplane {
    /// Loads the object. Maps that are pinned below `directory` already are taken over with all they hold; the
    /// programs are new, and replace those of an earlier agent when they are attached.
    ///
    /// # Errors
    /// If the kernel refuses, another agent has the maps, or a pinned map is not this version's.
    pub fn load(object: &[u8], directory: &Path, log_level: LogLevel) -> Result<Self, DataplaneError> {
        let pins = directory.join(format!("v{}", layout::version()));
        make_pin_directory(&pins)?;
        let lock = PinLock::take(directory)?;
        let mut loader = EbpfLoader::new();
        let level = log_level.as_u8();
        loader.override_global(aya_log::LEVEL, &level, true);
        for map in layout::PINNED {
            map.check(&pins)?;
            loader.map_pin_path(map.name, map.path(&pins));
        }
        let mut ebpf = loader.load(object)?;
        crash::point(Step::MapsPinned);
        if log_level != LogLevel::Off {
            log::follow(&mut ebpf);
        }
        let from_pod = load_program(&mut ebpf, "from_pod")?;
        let to_pod = load_program(&mut ebpf, "to_pod")?;
        let maps = Maps::open(&mut ebpf)?;
        let (reader, pinned) = (Reader::open(&pins)?, Pins::open(&pins)?);
        drop((ebpf, loader));
        memory::give_back();
        let earlier = Earlier::beside(&pins);
        Ok(Self { from_pod, to_pod, maps: Mutex::new(maps), reader, pins, pinned, earlier, _lock: lock })
    }

    /// Copies what only the maps of another version know, while all attachments are in this one's and their filters are not
    /// replaced yet. What cannot be copied is said.
    pub fn inherit(&self) {
        self.earlier.copy_counters(&self.pins);
        self.earlier.copy_flows(&self.pins);
    }

    /// Does away with the maps of another version, once the filters are replaced.
    pub fn disinherit(&self) {
        // What came since.
        self.earlier.copy_flows(&self.pins);
        self.earlier.remove();
    }

    /// The programs, to be attached to a pod's host interface.
    pub fn filters(&self) -> Filters<'_> {
        Filters { from_pod: self.from_pod.fd.as_fd(), to_pod: self.to_pod.fd.as_fd() }
    }

    /// The kernel's IDs of the programs: `from_pod`, `to_pod`.
    pub fn program_ids(&self) -> [u32; 2] {
        [self.from_pod.id, self.to_pod.id]
    }

    /// Where the maps are pinned.
    pub fn pins(&self) -> &Path {
        &self.pins
    }

    /// The maps whose pins are gone, by which the next agent would find them.
    pub fn lost_pins(&self) -> Vec<&'static str> {
        self.pinned.lost()
    }

    /// Pins a map again, if its pin is gone.
    ///
    /// # Errors
    /// If there is something else at its place, or no BPF file system any more.
    pub fn renew_pin(&self, map: &str) -> Result<(), PinFailure> {
        self.pinned.renew(map)
    }

    /// Lets packets of nobody be counted, if they are not.
    ///
    /// # Errors
    /// If the map is full.
    pub fn count_nobody(&self) -> Result<(), DataplaneError> {
        Ok(self.maps().count_nobody()?)
    }

    /// Lets an attachment's packets pass and be delivered, through a host interface.
    ///
    /// # Errors
    /// If a map is full; then none has an entry of it.
    pub fn insert(&self, ifindex: u32, attachment: &Attachment) -> Result<(), DataplaneError> {
        Ok(self.maps().insert(ifindex, attachment)?)
    }

    /// The same for an attachment that may have its entries: those that are right are left alone, and packets do not notice.
    ///
    /// # Errors
    /// If a map is full.
    pub fn keep(&self, ifindex: u32, attachment: &Attachment) -> Result<(), DataplaneError> {
        Ok(self.maps().keep(ifindex, attachment)?)
    }

    /// Ends what [`Self::insert`] began; nothing new gets in first. What is not there is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self, ifindex: u32, addresses: Addresses) -> Result<(), DataplaneError> {
        Ok(self.maps().remove(ifindex, addresses)?)
    }

    /// What was counted for a host interface, on all CPUs together; `None` if nothing counts for it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counters(&self, ifindex: u32) -> Result<Option<Counters>, DataplaneError> {
        Ok(self.maps().counters(ifindex)?)
    }

    /// What the maps say of a host interface; `None` if they have no entry for it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn recorded(&self, ifindex: u32) -> Result<Option<Recorded>, DataplaneError> {
        Ok(self.maps().recorded(ifindex)?)
    }

    /// Whether the maps have an attachment's entries, as [`Self::insert`] wrote them.
    ///
    /// # Errors
    /// What differs, in words.
    pub fn verify(&self, ifindex: u32, attachment: &Attachment) -> Result<(), String> {
        self.maps().verify(ifindex, attachment)
    }

    /// All that the maps have. Nobody who writes waits for it.
    pub fn entries(&self) -> Entries {
        self.reader.all()
    }

    /// What the maps have of an interface and of addresses.
    pub fn entries_of(&self, ifindex: u32, addresses: Addresses) -> Entries {
        self.reader.one(ifindex, endpoint_keys(addresses))
    }

    /// Removes an entry that nobody owns, if it still is what a snapshot has.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget(&self, entry: Entry, seen: &Entries) -> Result<(), DataplaneError> {
        Ok(self.maps().forget(entry, seen)?)
    }

    /// Other people's tcx programs on an interface, by the pod's direction: IDs. None where the kernel knows no tcx.
    pub fn tcx(&self, ifname: &str) -> [Vec<u32>; 2] {
        [TcAttachType::Ingress, TcAttachType::Egress].map(|hook| {
            let programs = SchedClassifier::query_tcx(ifname, hook).map(|(_, programs)| programs);
            programs.unwrap_or_default().iter().map(ProgramInfo::id).collect()
        })
    }

    /// Removes the entries of interfaces and addresses that no attachment has, as a crash can leave them.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn retain(&self, live: &HashMap<u32, Addresses>) -> Result<(), DataplaneError> {
        Ok(self.maps().retain(live)?)
    }

    /// Held for the length of a map operation, which waits for nothing.
    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_pin_directory(pins: &Path) -> Result<(), DataplaneError> {
    let failed = |source| DataplaneError::Directory { path: pins.to_owned(), source };
    // Looked at before anything is made: the nearest part of the path that is there.
    let there = pins.ancestors().find(|part| part.exists()).unwrap_or(pins);
    let is_bpffs = statfs(there).map_err(|errno| failed(errno.into()))?.filesystem_type() == BPF_FS_MAGIC;
    if !is_bpffs {
        return Err(DataplaneError::NotBpffs { path: pins.to_owned() });
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(pins).map_err(failed)?;
    crash::point(Step::PinsMade);
    Ok(())
}

/// A program is kept by its descriptor and by the filters that it is attached to; it needs no pin.
fn load_program(ebpf: &mut Ebpf, name: &'static str) -> Result<Loaded, DataplaneError> {
    let mut load = || {
        let program = ebpf.program_mut(name).ok_or(ProgramError::UnexpectedProgramType)?;
        let program: &mut SchedClassifier = program.try_into()?;
        program.load()?;
        Ok(Loaded { fd: program.fd()?.try_clone()?, id: program.info()?.id() })
    };
    load().map_err(|source: ProgramError| DataplaneError::Program { name, source })
}
