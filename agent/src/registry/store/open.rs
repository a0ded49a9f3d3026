//! Opening a store whose files may be missing, damaged, of another layout, or another agent's. Each file is
//! judged by itself, and all of them before the first change.

use std::path::{Path, PathBuf};

use super::{
    error::StoreError,
    files::{Store, failed},
    identity::Identity,
    layout::{MIGRATIONS, Migration, OLDEST, newest},
    record::{self, Kept, MAX_BYTES, META, Meta, Record, Unfit},
};
use crate::{durable::Directory, registry::Key};

/// An open store and its records.
pub struct Opened {
    pub store: Store,
    pub records: Vec<(Key, Kept)>,
    pub condition: Condition,
}

/// How the store was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Every attachment of the kernel has a record.
    Intact,
    /// No store existed, or one without its mark of completeness.
    New,
    /// An earlier build ran last, and has left its database, which this agent does not read.
    Upgraded,
    /// Files were damaged. They are quarantined, the first of them at this path.
    Damaged { why: String, quarantined: PathBuf },
    /// An earlier agent found no store or a damaged one, and did not rebuild all attachments; or the records
    /// were those of an earlier boot.
    Incomplete,
}

/// The files of a store, judged.
#[derive(Default)]
struct Found {
    mark: Option<Meta>,
    kept: Vec<(Key, Kept)>,
    /// Keys with a record of an earlier layout.
    outdated: Vec<Key>,
    /// Names of files of an earlier boot.
    expired: Vec<String>,
    /// Names of files that a power cut has damaged: of an earlier boot, too.
    cut: Vec<String>,
    /// Names and reasons.
    damaged: Vec<(String, String)>,
}

/// The directory of the records, in the state directory.
const DIRECTORY: &str = "attachments";
/// The store of builds with a database, in the state directory.
const EARLIER: &str = "registry.redb";

/// Opens or creates the store in a state directory. Damaged files are quarantined; records of an earlier boot
/// are removed.
///
/// # Errors
/// If the store cannot be read or written, or has records of a later layout or of another network namespace;
/// then nothing was changed.
pub fn open(state_dir: &Path, own: &Identity) -> Result<Opened, StoreError> {
    open_with(state_dir, MIGRATIONS, own)
}

pub(super) fn open_with(
    state_dir: &Path,
    migrations: &[Migration],
    own: &Identity,
) -> Result<Opened, StoreError> {
    let directory = Directory::open(&state_dir.join(DIRECTORY)).map_err(StoreError::Directory)?;
    let found = judge(&directory, migrations, own)?.without_cut(own);
    let earlier = state_dir.join(EARLIER);
    let was_complete = found.mark.as_ref().is_some_and(|it| it.of == *own && it.complete);
    let condition = match (&found.mark, found.damaged.as_slice()) {
        (_, [(first, why), ..]) => {
            let count = found.damaged.len();
            let why = format!("{count} damaged files, the first: {first:?}: {why}");
            Condition::Damaged { why, quarantined: PathBuf::new() }
        }
        (_, []) if earlier.is_file() => Condition::Upgraded,
        (None, []) => Condition::New,
        (Some(_), []) if was_complete => Condition::Intact,
        (Some(_), []) => Condition::Incomplete,
    };
    let store = Store::new(directory, earlier, own);
    let condition = store.adopt(&found, condition)?;
    Ok(Opened { store, records: found.kept, condition })
}

/// Reads all files, and changes nothing.
fn judge(directory: &Directory, migrations: &[Migration], own: &Identity) -> Result<Found, StoreError> {
    let mut found = Found::default();
    for name in directory.names().map_err(|it| failed(directory, "read", it))? {
        let name = name.to_string_lossy();
        let key = record::key(&name);
        if key.is_none() && name != META {
            tracing::warn!(directory = ?directory.path(), file = %name, "ignoring a file that is not the registry's");
            continue;
        }
        let bytes = directory.read(&name, MAX_BYTES).map_err(|it| failed(directory, "read", it))?;
        let bytes = bytes.unwrap_or_default();
        let path = || directory.path().join(&*name);
        let judged = match key {
            None => Meta::decode(&bytes, migrations).map(|mark| {
                let of = mark.of.clone();
                found.mark = Some(mark);
                of
            }),
            Some(key) => Record::decode(&bytes, &key, migrations).map(|(record, is_outdated)| {
                let of = record.of.clone().into_owned();
                if of.boot == own.boot {
                    found.outdated.extend(is_outdated.then(|| key.clone()));
                    found.kept.push((key, record.kept()));
                } else {
                    found.expired.push(name.clone().into_owned());
                }
                of
            }),
        };
        match judged {
            Ok(of) if of.boot == own.boot && of.netns != own.netns => {
                let (recorded, own) = (of.netns, own.netns.clone());
                return Err(StoreError::OtherNetns { path: path(), recorded, own });
            }
            Ok(_) => {}
            Err(Unfit::Layout(layout)) => {
                let (oldest, newest) = (OLDEST, newest(migrations));
                return Err(StoreError::Layout { path: path(), found: layout, oldest, newest });
            }
            Err(Unfit::Damaged(why)) => found.damaged.push((name.into_owned(), why)),
        }
    }
    Ok(found)
}

// === impl Found ===

impl Found {
    /// Each agent writes the mark before its first record: beside the mark of an earlier boot, every record
    /// is of an earlier boot. No write waits for a disk, so that a power cut leaves some empty or full of
    /// zeros.
    fn without_cut(mut self, own: &Identity) -> Self {
        if self.mark.as_ref().is_some_and(|mark| mark.of.boot != own.boot) {
            self.cut = self.damaged.drain(..).map(|(name, _)| name).collect();
        }
        self
    }
}

// === impl Store ===

impl Store {
    /// Brings the files up to date. The mark is first: after a crash in between, the next agent rebuilds what
    /// is missing. A missing mark says the same.
    fn adopt(&self, found: &Found, mut condition: Condition) -> Result<Condition, StoreError> {
        let (directory, mark) = (self.directory(), Meta::new(&self.own, false).encode());
        let wrote = |source| failed(&directory, "write to", source);
        directory.clear().map_err(wrote)?;
        // Before the mark: beside the one of this boot, an agent that starts after a crash in between would
        // call them damaged.
        for name in &found.cut {
            // A directory in the place of a file can only be renamed.
            directory.remove(name).or_else(|_| directory.quarantine(name).map(drop)).map_err(wrote)?;
        }
        if let Condition::Damaged { why, quarantined } = &mut condition {
            let path = directory.path();
            let stays = |source| StoreError::Quarantine { path: path.to_owned(), why: why.clone(), source };
            let (marks, records): (Vec<_>, Vec<_>) = found.damaged.iter().partition(|(name, _)| name == META);
            for (name, _) in marks {
                *quarantined = directory.quarantine(name).map_err(stays)?;
            }
            directory.write(META, &mark).map_err(stays)?;
            for (name, _) in records.iter().rev() {
                *quarantined = directory.quarantine(name).map_err(stays)?;
            }
        } else if condition != Condition::Intact {
            directory.write(META, &mark).map_err(wrote)?;
        }
        for name in &found.expired {
            directory.remove(name).map_err(wrote)?;
        }
        for (key, kept) in found.kept.iter().filter(|(key, _)| found.outdated.contains(key)) {
            self.put(key, kept)?;
        }
        let (readable, unreadable) = (found.expired.len(), found.cut.len());
        if readable + unreadable > 0 {
            tracing::info!(
                records = readable + unreadable,
                unreadable,
                "discarded the records from before the reboot"
            );
        }
        if !found.outdated.is_empty() {
            tracing::info!(
                records = found.outdated.len(),
                "migrated the registry's store to the newest layout"
            );
        }
        Ok(condition)
    }
}
