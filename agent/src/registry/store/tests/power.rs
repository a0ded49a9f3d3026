//! Power cuts with the store on a disk: of the writes since the last fsync, any subset of the sectors may
//! have survived.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use redb::{Database, StorageBackend};

use super::*;

/// The unit that a disk writes atomically, in bytes.
const SECTOR: usize = 512;
/// Power cuts of each kind.
const CUTS: usize = 120;

/// A disk that records its history.
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

/// Which of the acts after the last fsync survive.
#[derive(Debug, Clone, Copy)]
enum Survives {
    None,
    All,
    Any,
}

#[test]
fn power_cut_at_any_moment_loses_no_committed_record() {
    let disk = Disk::default();
    let database = Database::builder().create_with_backend(disk.clone()).unwrap();
    let transaction = database.begin_write().unwrap();
    contents::initialize(&transaction, schema::newest(schema::MIGRATIONS), &Contents::default()).unwrap();
    open::commit(transaction).unwrap();
    let store = Store::new(DurableDb::new(database, Path::new("on a disk")));
    store.adopt(&[], &[], true).unwrap();
    // The committed contents, and the length of the history at that moment.
    let mut commits = vec![(disk.history().done.len(), store.load().unwrap().attachments)];
    for number in 2..20 {
        store.put(&attachment(number)).unwrap();
        commits.push((disk.history().done.len(), store.load().unwrap().attachments));
        if number % 3 == 0 {
            let gone = attachment(number - 1);
            store.remove(&gone.key, gone.vif.addresses, Duration::from_secs(9), Duration::ZERO).unwrap();
            commits.push((disk.history().done.len(), store.load().unwrap().attachments));
        }
    }
    let history = disk.history();
    let (first, _) = commits[0];
    let mut interrupted = 0;
    let mut random = fastrand::Rng::with_seed(7);
    for cut in 0..CUTS {
        let at = first + (history.done.len() - first) * cut / CUTS;
        let committed = commits.iter().rposition(|(by, _)| *by <= at).unwrap();
        let held: Vec<_> =
            commits[committed..].iter().take(2).map(|(_, attachments)| attachments.clone()).collect();
        for survives in [Survives::None, Survives::All, Survives::Any, Survives::Any] {
            let bytes = history.after_a_cut(at, survives, &mut random);
            let what =
                format!("cut after {at} of {} acts, of the unsynced ones: {survives:?}", history.done.len());
            let (_directory, Opened { contents, condition, .. }) = opened(&bytes);
            assert_eq!(condition, Condition::Intact, "{what}");
            assert!(held.contains(&contents.attachments), "{what}: {:?}", contents.attachments.len());
            interrupted += u32::from(contents.attachments == held[0] && held.len() > 1 && held[0] != held[1]);
        }
    }
    assert!(interrupted > 0, "no cut interrupted a transaction");
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
        assert_eq!(offset % SECTOR, 0, "a write must begin at a sector");
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

    /// The disk's content after a power cut that follows `at` acts.
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
