//! Opening a store that may be missing, damaged, of an earlier layout, or another agent's.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use redb::{Database, ReadableDatabase as _, WriteTransaction};

use super::{
    contents::{Contents, initialize, layout, read},
    error::StoreError,
    examine::{Unfit, examine},
    identity::{self, Identity},
    quarantine::{self, place},
    schema::{Migration, migrate, newest},
};
use crate::{
    crash::{self, Step},
    durable::{DurableDb, builder, catch_panic},
};

/// An open file and its records.
pub(super) struct OpenFile {
    pub database: DurableDb,
    pub contents: Contents,
    pub condition: Condition,
}

/// How the store was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Every attachment of the kernel has a record.
    Intact,
    /// No store existed.
    New,
    /// The file was damaged. The readable records were salvaged into a new store.
    Damaged { why: String, quarantined: PathBuf },
    /// An earlier agent found no store or a damaged one, and did not rebuild all attachments.
    Incomplete,
}

/// Opens a store, and migrates it to the newest layout, for an agent of this identity.
pub(super) fn open(path: &Path, migrations: &[Migration], own: &Identity) -> Result<OpenFile, StoreError> {
    let condition = match examine(path, migrations, own) {
        Ok(()) => None,
        Err(Unfit::Refused(error)) => return Err(error),
        Err(Unfit::Missing) => {
            create(path, migrations, &Contents::default())
                .and_then(|new| Ok(place(&new, path)?))
                .map_err(|source| StoreError::Open { path: path.to_owned(), source: Box::new(source) })?;
            Some(Condition::New)
        }
        Err(Unfit::Damaged { why, salvaged }) => {
            let replaced =
                create(path, migrations, &salvaged).and_then(|new| Ok(quarantine::replace(path, &new)?));
            let quarantined = replaced.map_err(|source| StoreError::Quarantine {
                path: path.to_owned(),
                why: why.clone(),
                source: Box::new(source),
            })?;
            Some(Condition::Damaged { why, quarantined })
        }
    };
    let (database, contents) = catch_panic(|| open_file(path, migrations, own))
        .map_err(|source| StoreError::Open { path: path.to_owned(), source: Box::new(source) })?;
    let found = if contents.is_incomplete { Condition::Incomplete } else { Condition::Intact };
    let database = DurableDb::new(database, path);
    Ok(OpenFile { database, contents, condition: condition.unwrap_or(found) })
}

/// Opens the file itself, with a write, so that a store that is not writable fails now and not at the first
/// ADD.
fn open_file(
    path: &Path,
    migrations: &[Migration],
    own: &Identity,
) -> Result<(Database, Contents), redb::Error> {
    let database = builder().open(path)?;
    let found = layout(&database.begin_read()?)?.unwrap_or_else(|| newest(migrations));
    let transaction = database.begin_write()?;
    migrate(&transaction, found, migrations)?;
    let discarded = identity::adopt(&transaction, own)?;
    commit(transaction)?;
    if let Some(identity::Discarded { attachments, cooldown }) = discarded {
        tracing::info!(attachments, cooldown, "discarded the records from before the reboot");
    }
    if found != newest(migrations) {
        tracing::info!(
            ?path,
            found,
            now = newest(migrations),
            "migrated the registry's store to the newest layout"
        );
    }
    let contents = read(&database.begin_read()?)?;
    Ok((database, contents))
}

/// Creates a complete store beside a path, or nothing.
fn create(path: &Path, migrations: &[Migration], contents: &Contents) -> Result<PathBuf, redb::Error> {
    let new = path.with_extension("redb.new");
    let write = || -> Result<(), redb::Error> {
        let database = builder().create(&new)?;
        crash::point(Step::StoreOpened);
        let transaction = database.begin_write()?;
        initialize(&transaction, newest(migrations), contents)?;
        commit(transaction)
    };
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => crash::point(Step::StorePathCleared),
    }
    match write() {
        Ok(()) => Ok(new),
        Err(error) => {
            // The next start would remove a half-written file too.
            let _ = fs::remove_file(&new);
            crash::point(Step::StorePathCleared);
            Err(error)
        }
    }
}

pub(super) fn commit(transaction: WriteTransaction) -> Result<(), redb::Error> {
    crash::point(Step::StoreWritten);
    transaction.commit()?;
    crash::point(Step::StoreCommitted);
    Ok(())
}
