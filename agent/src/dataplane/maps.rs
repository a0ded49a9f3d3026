//! The maps: what the programs may let through, where they deliver it, and what they counted.

use std::{
    collections::{HashMap as StdHashMap, HashSet},
    io,
    net::IpAddr,
};

use agent_common::{Counters, Endpoint, EndpointKey, VifEntry, VifKey};
use aya::{
    Ebpf,
    maps::{HashMap, Map, MapData, MapError, PerCpuHashMap, PerCpuValues},
};
use nix::errno::Errno;

use super::{
    encode::{UNKNOWN, addresses, endpoint, endpoint_key, endpoint_keys, vif_entry},
    entries::{Entries, Entry},
    layout,
};
use crate::{
    crash::{self, Step},
    registry::Attachment,
};
use ferrule_vif::Addresses;

/// The pinned maps, open.
pub(super) struct Maps {
    vifs: HashMap<MapData, VifKey, VifEntry>,
    endpoints: HashMap<MapData, EndpointKey, Endpoint>,
    counters: PerCpuHashMap<MapData, VifKey, Counters>,
}

/// What the maps say of a host interface, as an earlier agent has written it.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub vif: VifEntry,
    /// The interface's addresses, and the index of the interface that each of them is delivered to.
    pub owners: Vec<(IpAddr, u32)>,
}

/// A map that cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the map {map}{}", if is_full(source) { ": it is full; the node has as many pods as it can have" } else { "" })]
pub struct MapFailure {
    what: &'static str,
    map: &'static str,
    #[source]
    source: MapError,
}

const VIFS: &str = layout::VIFS.name;
const ENDPOINTS: &str = layout::ENDPOINTS.name;
const VIF_COUNTERS: &str = layout::COUNTERS.name;
/// Insert only what is not there (`BPF_NOEXIST` in `linux/bpf.h`).
const BPF_NOEXIST: u64 = 1;

// === impl MapFailure ===

impl MapFailure {
    pub(super) fn new(what: &'static str, map: &'static str, source: MapError) -> Self {
        Self { what, map, source }
    }
}

// === impl Maps ===

impl Maps {
    /// Takes the maps out of a loaded object.
    pub(super) fn open(ebpf: &mut Ebpf) -> Result<Self, MapFailure> {
        let mut maps = Self {
            vifs: take(ebpf, VIFS)?,
            endpoints: take(ebpf, ENDPOINTS)?,
            counters: take(ebpf, VIF_COUNTERS)?,
        };
        maps.count_nobody()?;
        Ok(maps)
    }

    /// Makes the entry by which packets of nobody are counted, if it is not there.
    pub(super) fn count_nobody(&mut self) -> Result<(), MapFailure> {
        self.start_counting(UNKNOWN)
    }

    /// Writes all entries of an attachment, or none.
    pub(super) fn insert(&mut self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        let result = self.try_insert(ifindex, attachment);
        if result.is_err() {
            // The error at hand says more than one of the clean-up would.
            let _ = self.remove(ifindex, attachment.vif.addresses);
        }
        result
    }

    /// Writes those entries of an attachment that are not right.
    ///
    /// The others are not touched: the kernel uses the memory of an entry that is replaced again at once, for the next one that
    /// is written, while a program on another CPU may still be reading it. That one would see another pod's.
    pub(super) fn keep(&mut self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        let key = VifKey { ifindex };
        self.start_counting(key)?;
        if self.vifs.get(&key, 0).ok() != Some(vif_entry(attachment)) {
            self.write_vif(key, attachment)?;
        }
        for key in endpoint_keys(attachment.vif.addresses) {
            if self.endpoints.get(&key, 0).ok() != Some(endpoint(ifindex, attachment)) {
                self.write_endpoint(key, ifindex, attachment)?;
            }
        }
        Ok(())
    }

    /// Removes all entries of an attachment; those by which packets get in go first.
    pub(super) fn remove(&mut self, ifindex: u32, addresses: Addresses) -> Result<(), MapFailure> {
        for key in endpoint_keys(addresses) {
            // The address may have another interface by now.
            if self.endpoints.get(&key, 0).is_ok_and(|endpoint| endpoint.ifindex == ifindex) {
                forget(ENDPOINTS, self.endpoints.remove(&key))?;
            }
        }
        let key = VifKey { ifindex };
        forget(VIFS, self.vifs.remove(&key))?;
        forget(VIF_COUNTERS, self.counters.remove(&key))
    }

    /// What was counted for an interface, on all CPUs together; `None` if nothing counts for it.
    pub(super) fn counters(&self, ifindex: u32) -> Result<Option<Counters>, MapFailure> {
        match self.counters.get(&VifKey { ifindex }, 0) {
            Ok(per_cpu) => Ok(Some(sum(&per_cpu))),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(MapFailure { what: "read", map: VIF_COUNTERS, source }),
        }
    }

    /// What they say of an interface.
    pub(super) fn recorded(&self, ifindex: u32) -> Result<Option<Recorded>, MapFailure> {
        let vif = match self.vifs.get(&VifKey { ifindex }, 0) {
            Ok(vif) => vif,
            Err(MapError::KeyNotFound) => return Ok(None),
            Err(source) => return Err(MapFailure { what: "read", map: VIFS, source }),
        };
        let addresses = addresses(&vif);
        let mut owners = Vec::new();
        for (address, key) in addresses.iter().zip(endpoint_keys(addresses)) {
            match self.endpoints.get(&key, 0) {
                Ok(endpoint) => owners.push((address, endpoint.ifindex)),
                Err(MapError::KeyNotFound) => owners.push((address, ifindex)),
                Err(source) => return Err(MapFailure { what: "read", map: ENDPOINTS, source }),
            }
        }
        Ok(Some(Recorded { vif, owners }))
    }

    /// Whether an attachment has its entries; says what differs.
    pub(super) fn verify(&self, ifindex: u32, attachment: &Attachment) -> Result<(), String> {
        if self.vifs.get(&VifKey { ifindex }, 0).ok() != Some(vif_entry(attachment)) {
            return Err(format!("the map {VIFS} has no right entry for interface {ifindex}"));
        }
        for key in endpoint_keys(attachment.vif.addresses) {
            if self.endpoints.get(&key, 0).ok() != Some(endpoint(ifindex, attachment)) {
                return Err(format!(
                    "the map {ENDPOINTS} has no right entry for an address of interface {ifindex}"
                ));
            }
        }
        Ok(())
    }

    /// Removes the entries of interfaces and addresses that are not live.
    pub(super) fn retain(&mut self, live: &StdHashMap<u32, Addresses>) -> Result<(), MapFailure> {
        let addresses: HashSet<_> = live.values().flat_map(|addresses| endpoint_keys(*addresses)).collect();
        // Collected first: a walk over a hash map that is changed meanwhile begins anew.
        let endpoints: Vec<_> = self.endpoints.keys().filter_map(Result::ok).collect();
        for key in endpoints.iter().filter(|key| !addresses.contains(key)) {
            forget(ENDPOINTS, self.endpoints.remove(key))?;
        }
        let vifs: Vec<_> = self.vifs.keys().filter_map(Result::ok).collect();
        for key in vifs.iter().filter(|key| !live.contains_key(&key.ifindex)) {
            forget(VIFS, self.vifs.remove(key))?;
        }
        let counters: Vec<_> = self.counters.keys().filter_map(Result::ok).collect();
        for key in counters.iter().filter(|key| **key != UNKNOWN && !live.contains_key(&key.ifindex)) {
            forget(VIF_COUNTERS, self.counters.remove(key))?;
        }
        Ok(())
    }

    /// Removes an entry if it still is what a snapshot has: somebody may have written another one meanwhile.
    pub(super) fn forget(&mut self, entry: Entry, seen: &Entries) -> Result<(), MapFailure> {
        match entry {
            Entry::Vif(ifindex) => {
                let key = VifKey { ifindex };
                if self.vifs.get(&key, 0).ok().as_ref() == seen.vifs.get(&ifindex) {
                    forget(VIFS, self.vifs.remove(&key))?;
                }
            }
            Entry::Endpoint(address) => {
                let key = endpoint_key(address);
                if self.endpoints.get(&key, 0).ok().as_ref() == seen.endpoints.get(&key) {
                    forget(ENDPOINTS, self.endpoints.remove(&key))?;
                }
            }
            Entry::Counters(ifindex) => forget(VIF_COUNTERS, self.counters.remove(&VifKey { ifindex }))?,
        }
        Ok(())
    }

    fn try_insert(&mut self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        let key = VifKey { ifindex };
        self.start_counting(key)?;
        self.write_vif(key, attachment)?;
        endpoint_keys(attachment.vif.addresses)
            .try_for_each(|key| self.write_endpoint(key, ifindex, attachment))
    }

    fn write_vif(&mut self, key: VifKey, attachment: &Attachment) -> Result<(), MapFailure> {
        self.vifs.insert(key, vif_entry(attachment), 0).map_err(|source| write(VIFS, source))?;
        crash::point(Step::MapWritten);
        Ok(())
    }

    fn write_endpoint(
        &mut self,
        key: EndpointKey,
        ifindex: u32,
        attachment: &Attachment,
    ) -> Result<(), MapFailure> {
        let endpoint = endpoint(ifindex, attachment);
        self.endpoints.insert(key, endpoint, 0).map_err(|source| write(ENDPOINTS, source))?;
        crash::point(Step::MapWritten);
        Ok(())
    }

    /// Does nothing if it counts already: an earlier agent's counts go on.
    fn start_counting(&mut self, key: VifKey) -> Result<(), MapFailure> {
        let failed = |source| write(VIF_COUNTERS, source);
        let cpus = aya::util::nr_cpus().map_err(|(_, source)| failed(MapError::IoError(source)))?;
        let zero = PerCpuValues::try_from(vec![Counters::default(); cpus])
            .map_err(|source| failed(source.into()))?;
        match self.counters.insert(key, zero, BPF_NOEXIST) {
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(())
            }
            result => {
                crash::point(Step::MapWritten);
                result.map_err(failed)
            }
        }
    }
}

fn take<M: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, map: &'static str) -> Result<M, MapFailure> {
    let found = ebpf.take_map(map).ok_or_else(|| MapError::InvalidName { name: map.to_owned() });
    found.and_then(M::try_from).map_err(|source| MapFailure { what: "open", map, source })
}

fn sum(per_cpu: &PerCpuValues<Counters>) -> Counters {
    per_cpu.iter().fold(Counters::default(), |mut all, one| {
        all += one;
        all
    })
}

fn write(map: &'static str, source: MapError) -> MapFailure {
    MapFailure { what: "write to", map, source }
}

fn forget(map: &'static str, result: Result<(), MapError>) -> Result<(), MapFailure> {
    match result {
        Ok(()) => {
            crash::point(Step::MapRemoved);
            Ok(())
        }
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(MapFailure { what: "remove from", map, source }),
    }
}

/// `E2BIG`, which reads as "argument list too long".
fn is_full(error: &MapError) -> bool {
    let errno = |error: &io::Error| error.raw_os_error() == Some(Errno::E2BIG as i32);
    matches!(error, MapError::SyscallError(error) if errno(&error.io_error))
}
