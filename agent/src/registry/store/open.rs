//! Opening a store that may be damaged.
//!
//! A file is first looked at in a copy, in memory: redb repairs and writes to what it opens, and may panic over pages that are not
//! what they say (it verifies them only when it is told to). So whatever is wrong with a file, it is there as it was: set aside, for
//! people to look at, or left alone where it is not damaged but cannot be used: the disk is full, or a newer agent wrote it.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
};

use redb::{Database, ReadableDatabase as _, StorageBackend as _, backends::InMemoryBackend};

use super::{
    super::durable::{Durable, builder, quietly},
    Contents, Identity, Store, StoreError, begin, commit, identity, layout, read,
    schema::{Migration, migrate, needed, newest},
};
use crate::crash::{self, Step};

/// An open store, and what was in it.
pub struct Opened {
    pub store: Store,
    pub contents: Contents,
    pub condition: Condition,
}

/// How the store was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// As an earlier agent left it.
    Intact,
    /// There was none.
    New,
    /// It was damaged. What could be read of it was kept.
    Damaged { why: String, aside: PathBuf },
    /// An earlier agent found none, or a damaged one, and could not make all attachments anew.
    Incomplete,
}

/// Why a file is not opened as it is.
enum Unfit {
    /// There is none, or nothing in it.
    Empty,
    Damaged {
        why: String,
        salvaged: Box<Contents>,
    },
    Refused(StoreError),
}

/// A registry has a few megabytes: what is larger is none, and is not read into memory.
const LARGEST: u64 = 256 << 20;
/// So many damaged files are kept, the youngest ones.
const KEPT: usize = 3;
const READ_AT_ONCE: usize = 1 << 20;

/// Opens a store, with the migrations to its newest layout, for an agent of this identity.
pub(super) fn open(path: &Path, migrations: &[Migration], own: &Identity) -> Result<Opened, StoreError> {
    let condition = match examine(path, migrations, own) {
        Ok(()) => None,
        Err(Unfit::Refused(error)) => return Err(error),
        Err(Unfit::Empty) => {
            make(path, migrations, &Contents::default())
                .and_then(|new| Ok(place(&new, path)?))
                .map_err(|source| StoreError::Open { path: path.to_owned(), source: Box::new(source) })?;
            Some(Condition::New)
        }
        Err(Unfit::Damaged { why, salvaged }) => {
            let aside = make(path, migrations, &salvaged).and_then(|new| Ok(set_aside(path, &new)?));
            let aside = aside.map_err(|source| StoreError::SetAside {
                path: path.to_owned(),
                why: why.clone(),
                source: Box::new(source),
            })?;
            Some(Condition::Damaged { why, aside })
        }
    };
    let (database, contents) = quietly(|| use_file(path, migrations, own))
        .map_err(|source| StoreError::Open { path: path.to_owned(), source: Box::new(source) })?;
    let found = if contents.is_incomplete { Condition::Incomplete } else { Condition::Intact };
    let store = Store {
        database: Durable::new(database, path),
        swept: AtomicU64::new(0),
        trouble: Default::default(),
    };
    Ok(Opened { store, contents, condition: condition.unwrap_or(found) })
}

/// Looks at a copy of a file, with everything that opening it would do.
fn examine(path: &Path, migrations: &[Migration], own: &Identity) -> Result<(), Unfit> {
    let copy = match copy(path) {
        Ok(copy) => copy,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unfit::Empty),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            return Err(Unfit::Damaged { why: error.to_string(), salvaged: Box::default() });
        }
        Err(source) => {
            let source = Box::new(source.into());
            return Err(Unfit::Refused(StoreError::Open { path: path.to_owned(), source }));
        }
    };
    let Some(copy) = copy else { return Err(Unfit::Empty) };
    let damaged = |why: String| Unfit::Damaged { why, salvaged: Box::default() };
    match quietly(|| examine_copy(path, copy, migrations, own)) {
        // In memory nothing fails but for what is in it.
        Err(error) => Err(damaged(crate::chain::chain(&error))),
        Ok(verdict) => verdict,
    }
}

fn examine_copy(
    path: &Path,
    copy: InMemoryBackend,
    migrations: &[Migration],
    own: &Identity,
) -> Result<Result<(), Unfit>, redb::Error> {
    let mut database = Database::builder().create_with_backend(copy)?;
    let is_sound = database.check_integrity()?;
    let Some(found) = layout(&database.begin_read()?)? else {
        return Err(redb::Error::Corrupted("there is nothing in it".to_owned()));
    };
    if needed(found, migrations).is_none() {
        let (path, known) = (path.to_owned(), newest(migrations));
        return Ok(Err(Unfit::Refused(StoreError::Schema { path, found, known })));
    }
    let transaction = database.begin_write()?;
    migrate(&transaction, found, migrations)?;
    transaction.commit()?;
    let salvaged = Box::new(read(&database.begin_read()?)?);
    // Also of a damaged one: what there is in its place says where it belongs, and what is missing is not here to be made anew.
    if let Some(recorded) = salvaged.identity.as_ref().filter(|it| own.is_elsewhere(it)) {
        let (path, recorded, own) = (path.to_owned(), recorded.netns.clone(), own.netns.clone());
        return Ok(Err(Unfit::Refused(StoreError::Elsewhere { path, recorded, own })));
    }
    let why = match salvaged.unreadable.as_slice() {
        [] if is_sound => return Ok(Ok(())),
        [] => "its checksums were wrong in places, and an earlier state of it was found".to_owned(),
        [first, ..] => {
            format!("{} records cannot be read, the first of them {first}", salvaged.unreadable.len())
        }
    };
    Ok(Err(Unfit::Damaged { why, salvaged }))
}

/// A file in memory; `None` if it is empty.
fn copy(path: &Path) -> io::Result<Option<InMemoryBackend>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > LARGEST {
        let why = format!("it has {length} bytes, and a registry has at most {LARGEST}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    let memory = InMemoryBackend::new();
    memory.set_len(length)?;
    let (mut buffer, mut offset) = (vec![0; READ_AT_ONCE], 0);
    while offset < length {
        let read = file.read(&mut buffer)?;
        let room = usize::try_from(length - offset).unwrap_or(usize::MAX);
        let Some(bytes) = buffer.get(..read.min(room)).filter(|bytes| !bytes.is_empty()) else { break };
        memory.write(offset, bytes)?;
        offset += bytes.len() as u64;
    }
    Ok(Some(memory).filter(|_| length > 0))
}

/// Opens the file itself. That it can be written to is found out now, and not by the first pod.
fn use_file(
    path: &Path,
    migrations: &[Migration],
    own: &Identity,
) -> Result<(Database, Contents), redb::Error> {
    let database = builder().open(path)?;
    let found = layout(&database.begin_read()?)?.unwrap_or_else(|| newest(migrations));
    let transaction = database.begin_write()?;
    migrate(&transaction, found, migrations)?;
    let forgotten = identity::adopt(&transaction, own)?;
    commit(transaction)?;
    if let Some(identity::Forgotten { attachments, resting }) = forgotten {
        tracing::info!(attachments, resting, "forgetting what was attached and released before the reboot");
    }
    if found != newest(migrations) {
        tracing::info!(
            ?path,
            found,
            now = newest(migrations),
            "the registry's store was brought to a newer layout"
        );
    }
    let contents = read(&database.begin_read()?)?;
    Ok((database, contents))
}

/// Makes a store beside the one at a path: whole, or not at all.
fn make(path: &Path, migrations: &[Migration], contents: &Contents) -> Result<PathBuf, redb::Error> {
    let new = path.with_extension("redb.new");
    let write = || -> Result<(), redb::Error> {
        let database = builder().create(&new)?;
        crash::point(Step::StoreOpened);
        let transaction = database.begin_write()?;
        begin(&transaction, newest(migrations), contents)?;
        commit(transaction)
    };
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => crash::point(Step::StoreWayMade),
    }
    match write() {
        Ok(()) => Ok(new),
        Err(error) => {
            // Half a store is of no use to anyone; the next start would remove it too.
            let _ = fs::remove_file(&new);
            crash::point(Step::StoreWayMade);
            Err(error)
        }
    }
}

/// Puts a new store in the place of a damaged one, which gets another name.
fn set_aside(path: &Path, new: &Path) -> io::Result<PathBuf> {
    let earlier = aside(path)?;
    let number = earlier.last().map_or(1, |(number, _)| number + 1);
    let to = path.with_extension(format!("redb.corrupt-{number}"));
    // So that there is a store at the path at every moment; where there are no links, the kernel is asked for all of it if this is cut short.
    if fs::hard_link(path, &to).is_err() {
        fs::rename(path, &to)?;
    }
    crash::point(Step::StoreSetAside);
    place(new, path)?;
    for (_, oldest) in earlier.iter().rev().skip(KEPT - 1) {
        if let Err(error) = fs::remove_file(oldest) {
            tracing::warn!(?oldest, %error, "an old damaged store cannot be removed");
        }
        crash::point(Step::StoreForgotten);
    }
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(to)
}

fn place(new: &Path, path: &Path) -> io::Result<()> {
    fs::rename(new, path)?;
    crash::point(Step::StorePlaced);
    Ok(())
}

/// The files that were set aside, the oldest first.
fn aside(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let number = entry
            .file_name()
            .to_str()
            .and_then(|other| other.strip_prefix(name)?.strip_prefix(".corrupt-")?.parse().ok());
        found.extend(number.map(|number: u64| (number, entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}
