//! The eBPF programs and their maps.

mod layout;
mod log;

use std::{
    fs, io,
    os::fd::AsFd as _,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use agent_common::{ABI_VERSION, Counters, DropReason, Endpoint, EndpointKey, Vif as VifEntry, VifKey};
use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{HashMap, MapData, MapError, PerCpuHashMap, PerCpuValues},
    programs::{ProgramError, ProgramFd, SchedClassifier},
};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

pub use layout::LayoutError;
pub use log::LogLevel;

use crate::{
    plug::filter::Filters,
    registry::{Attachment, Pod},
    vif::Addresses,
};

/// The loaded programs and their maps.
pub struct Dataplane {
    from_pod: ProgramFd,
    to_pod: ProgramFd,
    maps: Mutex<Maps>,
    pins: PathBuf,
}

struct Maps {
    vifs: HashMap<MapData, VifKey, VifEntry>,
    endpoints: HashMap<MapData, EndpointKey, Endpoint>,
    counters: PerCpuHashMap<MapData, VifKey, Counters>,
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
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The kernel refused the object.
    #[error(
        "cannot load the eBPF object: it takes Linux 5.10 with BTF, and the capabilities BPF and NET_ADMIN"
    )]
    Load(#[from] EbpfError),
    /// The verifier refused a program.
    #[error("cannot load the eBPF program {name}")]
    Program {
        name: &'static str,
        #[source]
        source: ProgramError,
    },
    /// The object is not the one that belongs to this agent.
    #[error("the eBPF object has no {0}")]
    Missing(&'static str),
    /// A map cannot be changed.
    #[error("cannot {what} the map {map}{}", if is_full(source) { ": it is full; the node has as many pods as it can have" } else { "" })]
    Map {
        what: &'static str,
        map: &'static str,
        #[source]
        source: MapError,
    },
}

/// Insert only what is not there (`BPF_NOEXIST` in `linux/bpf.h`).
const BPF_NOEXIST: u64 = 1;
/// Where packets are counted that belong to no attachment.
const UNKNOWN: VifKey = VifKey { ifindex: 0 };

// === impl Dataplane ===

impl Dataplane {
    /// Loads the object. Maps that are pinned below `directory` already are taken over with all they hold; the
    /// programs are new, and replace those of an earlier agent when they are attached.
    ///
    /// # Errors
    /// If the kernel refuses, or a pinned map is not this version's.
    pub fn load(object: &[u8], directory: &Path, log_level: LogLevel) -> Result<Self, DataplaneError> {
        let pins = directory.join(format!("v{ABI_VERSION}"));
        make_pin_directory(&pins)?;
        let mut loader = EbpfLoader::new();
        let level = log_level.as_u8();
        loader.override_global(aya_log::LEVEL, &level, false);
        for map in layout::PINNED {
            map.check(&pins)?;
            loader.map_pin_path(map.name, map.path(&pins));
        }
        let mut ebpf = loader.load(object)?;
        if log_level != LogLevel::Off {
            log::follow(&mut ebpf);
        }
        let from_pod = load_program(&mut ebpf, "from_pod")?;
        let to_pod = load_program(&mut ebpf, "to_pod")?;
        let mut maps = Maps {
            vifs: take_map(&mut ebpf, "VIFS")?,
            endpoints: take_map(&mut ebpf, "ENDPOINTS")?,
            counters: take_map(&mut ebpf, "VIF_COUNTERS")?,
        };
        maps.start_counting(UNKNOWN)?;
        Ok(Self { from_pod, to_pod, maps: Mutex::new(maps), pins })
    }

    /// The programs, to be attached to a pod's host interface.
    pub fn filters(&self) -> Filters<'_> {
        Filters { from_pod: self.from_pod.as_fd(), to_pod: self.to_pod.as_fd() }
    }

    /// Where the maps are pinned.
    pub fn pins(&self) -> &Path {
        &self.pins
    }

    /// Lets an attachment's packets pass and be delivered, through a host interface.
    ///
    /// # Errors
    /// If a map is full; then none has an entry of it.
    pub fn insert(&self, ifindex: u32, attachment: &Attachment) -> Result<(), DataplaneError> {
        let mut maps = self.maps();
        let result = maps.insert(ifindex, attachment);
        if result.is_err() {
            // The error at hand says more than one of the clean-up would.
            let _ = maps.remove(ifindex, attachment.vif.addresses);
        }
        result
    }

    /// Ends what [`Self::insert`] began; nothing new gets in first. What is not there is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self, ifindex: u32, addresses: Addresses) -> Result<(), DataplaneError> {
        self.maps().remove(ifindex, addresses)
    }

    /// What was counted for a host interface, on all CPUs together; `None` if nothing counts for it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counters(&self, ifindex: u32) -> Result<Option<Counters>, DataplaneError> {
        match self.maps().counters.get(&VifKey { ifindex }, 0) {
            Ok(per_cpu) => Ok(Some(sum(&per_cpu))),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(DataplaneError::Map { what: "read", map: "VIF_COUNTERS", source }),
        }
    }

    /// Whether the maps have an attachment's entries, as [`Self::insert`] wrote them; says what differs.
    pub fn verify(&self, ifindex: u32, attachment: &Attachment) -> Result<(), String> {
        let maps = self.maps();
        if maps.vifs.get(&VifKey { ifindex }, 0).ok() != Some(vif_entry(attachment)) {
            return Err(format!("the map VIFS has no right entry for interface {ifindex}"));
        }
        let endpoint = endpoint(ifindex, attachment);
        for key in endpoint_keys(attachment.vif.addresses) {
            if maps.endpoints.get(&key, 0).ok() != Some(endpoint) {
                return Err(format!(
                    "the map ENDPOINTS has no right entry for an address of interface {ifindex}"
                ));
            }
        }
        Ok(())
    }

    /// Removes the entries of interfaces and addresses that no attachment has, as a crash can leave them.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn retain(&self, live: &std::collections::HashMap<u32, Addresses>) -> Result<(), DataplaneError> {
        let mut maps = self.maps();
        let addresses: std::collections::HashSet<EndpointKey> =
            live.values().flat_map(|addresses| endpoint_keys(*addresses)).collect();
        for key in maps.endpoints.keys().filter_map(Result::ok).collect::<Vec<_>>() {
            if !addresses.contains(&key) {
                forget("ENDPOINTS", maps.endpoints.remove(&key))?;
            }
        }
        for key in maps.vifs.keys().filter_map(Result::ok).collect::<Vec<_>>() {
            if !live.contains_key(&key.ifindex) {
                forget("VIFS", maps.vifs.remove(&key))?;
            }
        }
        for key in maps.counters.keys().filter_map(Result::ok).collect::<Vec<_>>() {
            if key != UNKNOWN && !live.contains_key(&key.ifindex) {
                forget("VIF_COUNTERS", maps.counters.remove(&key))?;
            }
        }
        Ok(())
    }

    /// Held for the length of a map operation, which waits for nothing.
    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Maps ===

impl Maps {
    fn insert(&mut self, ifindex: u32, attachment: &Attachment) -> Result<(), DataplaneError> {
        let key = VifKey { ifindex };
        self.start_counting(key)?;
        self.vifs.insert(key, vif_entry(attachment), 0).map_err(|source| write("VIFS", source))?;
        let endpoint = endpoint(ifindex, attachment);
        for key in endpoint_keys(attachment.vif.addresses) {
            self.endpoints.insert(key, endpoint, 0).map_err(|source| write("ENDPOINTS", source))?;
        }
        Ok(())
    }

    fn remove(&mut self, ifindex: u32, addresses: Addresses) -> Result<(), DataplaneError> {
        for key in endpoint_keys(addresses) {
            // The address may have another interface by now.
            if self.endpoints.get(&key, 0).is_ok_and(|endpoint| endpoint.ifindex == ifindex) {
                forget("ENDPOINTS", self.endpoints.remove(&key))?;
            }
        }
        let key = VifKey { ifindex };
        forget("VIFS", self.vifs.remove(&key))?;
        forget("VIF_COUNTERS", self.counters.remove(&key))
    }

    /// Does nothing if it counts already: an earlier agent's counts go on.
    fn start_counting(&mut self, key: VifKey) -> Result<(), DataplaneError> {
        let failed = |source| write("VIF_COUNTERS", source);
        let cpus = aya::util::nr_cpus().map_err(|(_, source)| failed(MapError::IoError(source)))?;
        let zero = PerCpuValues::try_from(vec![Counters::default(); cpus])
            .map_err(|source| failed(source.into()))?;
        match self.counters.insert(key, zero, BPF_NOEXIST) {
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(())
            }
            result => result.map_err(failed),
        }
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
    fs::DirBuilder::new().recursive(true).mode(0o700).create(pins).map_err(failed)
}

/// A program is kept by its descriptor and by the filters that it is attached to; it needs no pin.
fn load_program(ebpf: &mut Ebpf, name: &'static str) -> Result<ProgramFd, DataplaneError> {
    let program = ebpf.program_mut(name).ok_or(DataplaneError::Missing(name))?;
    let mut load = || {
        let program: &mut SchedClassifier = program.try_into()?;
        program.load()?;
        Ok(program.fd()?.try_clone()?)
    };
    load().map_err(|source: ProgramError| DataplaneError::Program { name, source })
}

fn take_map<M: TryFrom<aya::maps::Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<M, DataplaneError> {
    let map = ebpf.take_map(name).ok_or(DataplaneError::Missing(name))?;
    M::try_from(map).map_err(|source| DataplaneError::Map { what: "open", map: name, source })
}

fn vif_entry(attachment: &Attachment) -> VifEntry {
    let Attachment { key, pod, vif, .. } = attachment;
    let Addresses { v4, v6 } = vif.addresses;
    let flag = |present: bool, flag| if present { flag } else { 0 };
    let who = match pod {
        Pod { name, .. } if name.is_empty() => key.container_id.to_string(),
        Pod { namespace, name, .. } if namespace.is_empty() => name.clone(),
        Pod { namespace, name, .. } => format!("{namespace}/{name}"),
    };
    VifEntry {
        ipv4: v4.map(|address| address.octets()).unwrap_or_default(),
        flags: flag(v4.is_some(), VifEntry::HAS_IPV4) | flag(v6.is_some(), VifEntry::HAS_IPV6),
        ipv6: v6.map(|address| address.octets()).unwrap_or_default(),
        mac: vif.mac.0,
        reserved: [0; 2],
        pod: VifEntry::text(&who),
        pod_uid: VifEntry::text(&pod.uid),
        ifname: VifEntry::text(key.ifname.as_str()),
    }
}

fn endpoint(ifindex: u32, attachment: &Attachment) -> Endpoint {
    Endpoint { ifindex, mac: attachment.vif.mac.0, reserved: [0; 2] }
}

fn endpoint_keys(addresses: Addresses) -> impl Iterator<Item = EndpointKey> {
    let v4 = addresses.v4.map(|address| EndpointKey::ipv4(address.octets()));
    v4.into_iter().chain(addresses.v6.map(|address| EndpointKey::ipv6(address.octets())))
}

fn sum(per_cpu: &PerCpuValues<Counters>) -> Counters {
    per_cpu.iter().fold(Counters::default(), |mut all, one| {
        all += one;
        all
    })
}

fn write(map: &'static str, source: MapError) -> DataplaneError {
    DataplaneError::Map { what: "write to", map, source }
}

fn forget(map: &'static str, result: Result<(), MapError>) -> Result<(), DataplaneError> {
    match result {
        Ok(()) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(DataplaneError::Map { what: "remove from", map, source }),
    }
}

/// `E2BIG`, which reads as "argument list too long".
fn is_full(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(error) if error.io_error.raw_os_error() == Some(nix::errno::Errno::E2BIG as i32))
}

/// The reasons that occurred, with their counts.
pub fn drops(counters: &Counters) -> impl Iterator<Item = (DropReason, u64)> {
    DropReason::ALL
        .iter()
        .map(|reason| (*reason, counters.drops.get(*reason)))
        .filter(|(_, count)| *count > 0)
}
