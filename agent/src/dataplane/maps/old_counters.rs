//! The counters of interfaces in maps of another directory: of another capacity, or of an earlier version.

use std::path::Path;

use agent_common::{DropReason, Dropped, Drops, Passed, Traffic, VifEntry, VifKey, Volume};
use aya::maps::{HashMap as BpfHashMap, MapData, MapError, PerCpuHashMap};

use super::{
    table::{MapFailure, Table as _},
    vif_counters::VifCounters,
    vif_traffic::VifTraffic,
    vifs::Vifs,
};

/// The open maps.
pub enum OldCounters {
    Same(Box<Same>),
    V1(PerCpuHashMap<MapData, VifKey, V1>),
    V2(PerCpuHashMap<MapData, VifKey, V2>),
    V3(PerCpuHashMap<MapData, VifKey, V3>),
    V4(PerCpuHashMap<MapData, VifKey, V4>),
    V5(PerCpuHashMap<MapData, VifKey, V5>),
}

/// Maps of this version.
pub struct Same {
    vifs: BpfHashMap<MapData, VifKey, VifEntry>,
    traffic: VifTraffic,
    drops: PerCpuHashMap<MapData, VifKey, Dropped>,
}

/// Both directions' packets and bytes, then the drops of both directions by reason, of which there were
/// fewer.
type V1 = [u64; 4 + 13];
type V2 = [u64; 4 + 16];
/// For each direction packets, bytes and drops, by more reasons in each version.
type V3 = [u64; 2 * (2 + 16)];
type V4 = [u64; 2 * (2 + 20)];
type V5 = [u64; 2 * (2 + 24)];

/// What one CPU has counted.
pub type OfCpu = (Passed, Dropped);

// === impl OldCounters ===

impl OldCounters {
    pub fn open(directory: &Path) -> Result<Self, MapFailure> {
        let open = || VifCounters::SPEC.open_pin(directory);
        // aya compares the sizes of key and value.
        if let Ok(first) = open()?.try_into() {
            return Ok(Self::V1(first));
        }
        if let Ok(second) = open()?.try_into() {
            return Ok(Self::V2(second));
        }
        if let Ok(third) = open()?.try_into() {
            return Ok(Self::V3(third));
        }
        if let Ok(fourth) = open()?.try_into() {
            return Ok(Self::V4(fourth));
        }
        if let Ok(fifth) = open()?.try_into() {
            return Ok(Self::V5(fifth));
        }
        Ok(Self::Same(Box::new(Same {
            vifs: Vifs::SPEC.open_pin(directory)?.try_into().map_err(Vifs::SPEC.failure("open"))?,
            traffic: VifTraffic::open(directory, [].into_iter())?,
            drops: open()?.try_into().map_err(VifCounters::SPEC.failure("open"))?,
        })))
    }

    /// The counts of each CPU; `None` if the interface has none.
    pub fn get(&self, key: VifKey) -> Result<Option<Vec<OfCpu>>, MapFailure> {
        let read = match self {
            Self::Same(same) => {
                let slot = found(same.vifs.get(&key, 0))?.map_or(0, |row| row.slot);
                let passed = same.traffic.get(slot)?;
                let dropped = found(same.drops.get(&key, 0))?;
                return Ok(dropped.map(|it| passed.iter().copied().zip(it.iter().copied()).collect()));
            }
            Self::V1(map) => map.get(&key, 0).map(|all| all.iter().map(|one| split(one)).collect()),
            Self::V2(map) => map.get(&key, 0).map(|all| all.iter().map(|one| split(one)).collect()),
            Self::V3(map) => map.get(&key, 0).map(|all| all.iter().map(|one| both(one)).collect()),
            Self::V4(map) => map.get(&key, 0).map(|all| all.iter().map(|one| both(one)).collect()),
            Self::V5(map) => map.get(&key, 0).map(|all| all.iter().map(|one| both(one)).collect()),
        };
        found(read)
    }
}

fn found<V>(read: Result<V, MapError>) -> Result<Option<V>, MapFailure> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(VifCounters::SPEC.failure("read")(error)),
    }
}

/// Counters of versions 3 to 5.
fn both(old: &[u64]) -> OfCpu {
    let (egress, ingress) = old.split_at(old.len() / 2);
    let [egress, ingress] = [egress, ingress].map(traffic);
    let volume = |Traffic { packets, bytes, .. }| Volume { packets, bytes };
    (
        Passed { egress: volume(egress), ingress: volume(ingress) },
        Dropped { egress: egress.drops, ingress: ingress.drops },
    )
}

/// One direction, with the drops of the first reasons.
pub fn traffic(old: &[u64]) -> Traffic {
    let [packets, bytes, drops @ ..] = old else { return Traffic::default() };
    let mut traffic = Traffic { packets: *packets, bytes: *bytes, drops: Drops::default() };
    DropReason::ALL.iter().zip(drops).for_each(|(reason, packets)| traffic.drops.add(*reason, *packets));
    traffic
}

/// Counters of versions 1 and 2. Their drops were not split by direction: nearly all are the pod's own
/// packets.
fn split(old: &[u64]) -> OfCpu {
    let volume = |at| match old.get(at..at + 2) {
        Some([packets, bytes]) => Volume { packets: *packets, bytes: *bytes },
        _ => Volume::default(),
    };
    let mut dropped = Dropped::default();
    for (reason, packets) in DropReason::ALL.iter().zip(old.get(4..).unwrap_or_default()) {
        match reason {
            DropReason::NotForPod => dropped.ingress.add(*reason, *packets),
            _ => dropped.egress.add(*reason, *packets),
        }
    }
    (Passed { egress: volume(0), ingress: volume(2) }, dropped)
}
