//! A power cut, where the store is on a disk: of what was written since it was last made durable, any part may be there, each sector of
//! a write by itself.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use redb::{Database, StorageBackend};

use super::*;

/// What a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;
/// Power cuts of each kind.
const CUTS: usize = 120;

/// A disk that remembers what was done to it.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<History>>);

#[derive(Debug, Default)]
struct History {
    now: Vec<u8>,
    done: Vec<Act>,
}

#[derive(Debug)]
enum Act {
    SetLength(usize),
    Write { offset: usize, sector: Vec<u8> },
    Sync,
}

/// Which of the acts that were not made durable are on the disk.
#[derive(Debug, Clone, Copy)]
enum Survives {
    None,
    All,
    Any,
}

#[test]
fn a_power_cut_at_any_moment_loses_nothing_that_was_promised() {
    let disk = Disk::default();
    let database = Database::builder().create_with_backend(disk.clone()).unwrap();
    let transaction = database.begin_write().unwrap();
    begin(&transaction, schema::newest(schema::MIGRATIONS), &Contents::default()).unwrap();
    commit(transaction).unwrap();
    let store = Store {
        database: Durable::new(database, Path::new("on a disk")),
        swept: AtomicU64::new(0),
        trouble: Default::default(),
    };
    store.adopt(&[], &[], true).unwrap();
    // What was promised, and how much had been done by then.
    let mut promises = vec![(disk.history().done.len(), store.load().unwrap().attachments)];
    for number in 2..20 {
        store.put(&attachment(number)).unwrap();
        promises.push((disk.history().done.len(), store.load().unwrap().attachments));
        if number % 3 == 0 {
            let gone = attachment(number - 1);
            store.remove(&gone.key, gone.vif.addresses, Duration::from_secs(9), Duration::ZERO).unwrap();
            promises.push((disk.history().done.len(), store.load().unwrap().attachments));
        }
    }
    let history = disk.history();
    let (first, _) = promises[0];
    let mut lost_something = 0;
    let mut random = fastrand::Rng::with_seed(7);
    for cut in 0..CUTS {
        let at = first + (history.done.len() - first) * cut / CUTS;
        let promised = promises.iter().rposition(|(by, _)| *by <= at).unwrap();
        let held: Vec<_> =
            promises[promised..].iter().take(2).map(|(_, attachments)| attachments.clone()).collect();
        for survives in [Survives::None, Survives::All, Survives::Any, Survives::Any] {
            let bytes = history.after_a_cut(at, survives, &mut random);
            let what =
                format!("cut after {at} of {} acts, of the last ones: {survives:?}", history.done.len());
            let (_directory, Opened { contents, condition, .. }) = opened(&bytes);
            assert_eq!(condition, Condition::Intact, "{what}");
            assert!(held.contains(&contents.attachments), "{what}: {:?}", contents.attachments.len());
            lost_something +=
                u32::from(contents.attachments == held[0] && held.len() > 1 && held[0] != held[1]);
        }
    }
    assert!(lost_something > 0, "no cut was in the middle of a transaction");
}

// === impl Disk ===

impl Disk {
    fn history(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.history().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.history().now[offset..offset + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.history().act(Act::SetLength(usize::try_from(len).unwrap()));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.history().act(Act::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        assert_eq!(offset % SECTOR, 0, "or a write could leave half of a sector");
        let mut history = self.history();
        for (number, sector) in data.chunks(SECTOR).enumerate() {
            history.act(Act::Write { offset: offset + number * SECTOR, sector: sector.to_vec() });
        }
        Ok(())
    }
}

// === impl History ===

impl History {
    fn act(&mut self, act: Act) {
        act.apply(&mut self.now);
        self.done.push(act);
    }

    /// What is on the disk if the power went after so many acts.
    fn after_a_cut(&self, at: usize, survives: Survives, random: &mut fastrand::Rng) -> Vec<u8> {
        let done = &self.done[..at];
        let durable = done.iter().rposition(|act| matches!(act, Act::Sync)).map_or(0, |sync| sync + 1);
        let mut bytes = Vec::new();
        for (number, act) in done.iter().enumerate() {
            let is_there = match survives {
                Survives::None => false,
                Survives::All => true,
                Survives::Any => random.bool(),
            };
            if number < durable || is_there {
                act.apply(&mut bytes);
            }
        }
        bytes
    }
}

// === impl Act ===

impl Act {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::SetLength(length) => bytes.resize(*length, 0),
            Self::Write { offset, sector } => {
                let end = offset + sector.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset..end].copy_from_slice(sector);
            }
            Self::Sync => (),
        }
    }
}
