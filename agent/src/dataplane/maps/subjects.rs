//! What judges each pod: the field `subject` of the rows of `VIFS`.
//!
//! A program changes the field in its row: the kernel replaces a row that user space writes, and reuses the
//! old one's memory while programs on other CPUs may still read it. Writers of a whole row hold
//! [`Subjects::known`], so that no change between is lost.

use std::{
    collections::BTreeMap,
    os::fd::AsFd as _,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use agent_common::{
    VifEntry, VifKey,
    policy::{PackedSubject, Subject, SubjectChange},
};
use aya::{
    maps::{HashMap as BpfHashMap, MapData, MapError},
    programs::ProgramFd,
};
use ferrule_policy::EndpointId;

use super::{
    super::bpf,
    table::{MapFailure, MapSpec, Table as _, max_entries, rows_of_hash, walk_limit},
    vifs::Vifs,
};
use crate::crash::{self, Step};

/// The subjects of all pods, in the kernel and here.
pub struct Subjects {
    vifs: BpfHashMap<MapData, VifKey, VifEntry>,
    walk_limit: usize,
    /// `set_subject`.
    program: ProgramFd,
    known: Mutex<BTreeMap<u32, PackedSubject>>,
}

/// The subjects by host interface: those that rows have, and those of interfaces that have no row yet, or no
/// more.
pub type Known<'a> = MutexGuard<'a, BTreeMap<u32, PackedSubject>>;

const SPEC: MapSpec = Vifs::SPEC;

// === impl Subjects ===

impl Subjects {
    /// Opens the pinned map, whose rows are changed by a program.
    pub fn open(pins: &Path, program: ProgramFd) -> Result<Self, MapFailure> {
        let map = SPEC.open_pin(pins)?;
        let walk_limit = walk_limit(max_entries(&map).map_err(SPEC.failure("read"))?);
        let vifs = map.try_into().map_err(SPEC.failure("open"))?;
        let subjects = Self { vifs, walk_limit, program, known: Mutex::default() };
        subjects.learn()?;
        Ok(subjects)
    }

    /// Knows what the rows say, from now on.
    pub fn learn(&self) -> Result<(), MapFailure> {
        let rows = self.rows()?;
        self.known().extend(rows);
        Ok(())
    }

    /// Takes over what rows of `VIFS` in another directory say, for the rows that are written next.
    pub fn adopt(&self, directory: &Path) -> Result<(), MapFailure> {
        let vifs: BpfHashMap<MapData, VifKey, VifEntry> =
            SPEC.open_pin(directory)?.try_into().map_err(SPEC.failure("read"))?;
        for row in rows_of_hash(&vifs, self.walk_limit) {
            let (key, row) = row.map_err(SPEC.failure("read"))?;
            // A row here is newer.
            if row.subject.is_known() && self.vifs.get(&key, 0).is_err() {
                self.known().entry(key.ifindex).or_insert(row.subject);
            }
        }
        Ok(())
    }

    /// Hold while a row of `VIFS` is written with what is known.
    pub fn known(&self) -> Known<'_> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What judges each interface.
    pub fn all(&self) -> BTreeMap<EndpointId, Subject> {
        let known = self.known();
        known.iter().map(|(ifindex, subject)| (EndpointId(*ifindex), subject.unpack())).collect()
    }

    /// What judges an interface, as its row says; without a row, as its row will say.
    pub fn get(&self, ifindex: u32) -> Result<Option<Subject>, MapFailure> {
        let subject = match self.vifs.get(&VifKey { ifindex }, 0) {
            Ok(row) => Some(row.subject),
            Err(MapError::KeyNotFound) => self.known().get(&ifindex).copied(),
            Err(error) => return Err(SPEC.failure("read")(error)),
        };
        Ok(subject.filter(|it| it.is_known()).map(PackedSubject::unpack))
    }

    /// Changes what judges an interface; without a subject, the interface passes nothing.
    pub fn set(&self, ifindex: u32, subject: Option<Subject>) -> Result<(), MapFailure> {
        let packed = subject.map(|it| it.pack());
        let mut known = self.known();
        let subject = packed.unwrap_or_default();
        let change = SubjectChange { ifindex, subject, ..SubjectChange::default() };
        // An interface without a row passes nothing. The row is written with what is known then.
        let stored = bpf::run(self.program.as_fd(), &change);
        crash::point(Step::MapWritten);
        stored.map_err(MapError::IoError).map_err(SPEC.failure("write to"))?;
        match packed {
            Some(packed) => known.insert(ifindex, packed),
            None => known.remove(&ifindex),
        };
        Ok(())
    }

    /// Sets what judges an interface, unless something does already.
    pub fn add(&self, ifindex: u32, subject: Subject) -> Result<(), MapFailure> {
        if self.get(ifindex)?.is_some() { Ok(()) } else { self.set(ifindex, Some(subject)) }
    }

    /// Removes what judges interfaces that are not live.
    pub fn retain(&self, is_live: impl Fn(u32) -> bool) -> Result<(), MapFailure> {
        let gone: Vec<u32> = self.known().keys().filter(|it| !is_live(**it)).copied().collect();
        gone.into_iter().try_for_each(|ifindex| self.set(ifindex, None))
    }

    /// The interfaces whose rows have a subject, and should have none.
    pub fn strays(&self, is_wanted: impl Fn(u32) -> bool) -> Result<Vec<u32>, MapFailure> {
        Ok(self.rows()?.into_keys().filter(|ifindex| !is_wanted(*ifindex)).collect())
    }

    /// The rows that have a subject. Those that are added or removed meanwhile may be missing.
    fn rows(&self) -> Result<BTreeMap<u32, PackedSubject>, MapFailure> {
        let rows = rows_of_hash(&self.vifs, self.walk_limit).into_iter();
        let rows = rows.map(|row| row.map(|(key, row)| (key.ifindex, row.subject)));
        let rows: BTreeMap<_, _> = rows.collect::<Result<_, _>>().map_err(SPEC.failure("read"))?;
        Ok(rows.into_iter().filter(|(_, subject)| subject.is_known()).collect())
    }
}
