//! Examining a store before it is opened, in a copy in memory.
//!
//! redb repairs and writes to a file that it opens, verifies checksums only on request, and may panic on
//! corrupt pages. A copy keeps the file as it was: for the quarantine if the file is damaged, for the agent
//! that wrote it if it is refused.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use redb::{Database, ReadableDatabase as _, StorageBackend as _, backends::InMemoryBackend};

use super::{
    contents::{Contents, layout, read},
    error::StoreError,
    identity::Identity,
    schema::{Migration, migrate, needed, newest},
};
use crate::{chain::chain, durable::catch_panic};

/// Why a file is not opened as it is.
pub(super) enum Unfit {
    /// The file is missing or empty.
    Missing,
    Damaged {
        why: String,
        salvaged: Box<Contents>,
    },
    Refused(StoreError),
}

/// The largest file that is read into memory, in bytes. A registry has a few megabytes.
const MAX_BYTES: u64 = 256 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// Does to a copy of the file all that opening would do to the file.
pub(super) fn examine(path: &Path, migrations: &[Migration], own: &Identity) -> Result<(), Unfit> {
    let copy = match copy(path) {
        Ok(copy) => copy,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unfit::Missing),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            return Err(Unfit::Damaged { why: error.to_string(), salvaged: Box::default() });
        }
        Err(source) => {
            let source = Box::new(source.into());
            return Err(Unfit::Refused(StoreError::Open { path: path.to_owned(), source }));
        }
    };
    let Some(copy) = copy else { return Err(Unfit::Missing) };
    match catch_panic(|| examine_copy(path, copy, migrations, own)) {
        // Memory does not fail, so the content is at fault.
        Err(error) => Err(Unfit::Damaged { why: chain(&error), salvaged: Box::default() }),
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
    let has_sound_checksums = database.check_integrity()?;
    let Some(found) = layout(&database.begin_read()?)? else {
        return Err(redb::Error::Corrupted("the file has no tables".to_owned()));
    };
    if needed(found, migrations).is_none() {
        if !has_sound_checksums {
            let why = format!("wrong checksums, and the layout {found} is unknown");
            return Ok(Err(Unfit::Damaged { why, salvaged: Box::default() }));
        }
        let (path, newest) = (path.to_owned(), newest(migrations));
        return Ok(Err(Unfit::Refused(StoreError::Layout { path, found, newest })));
    }
    let transaction = database.begin_write()?;
    migrate(&transaction, found, migrations)?;
    transaction.commit()?;
    let salvaged = Box::new(read(&database.begin_read()?)?);
    // Also for a damaged store: its missing records cannot be rebuilt from this namespace.
    if let Some(recorded) = salvaged.identity.as_ref().filter(|it| own.is_elsewhere(it)) {
        let (path, recorded, own) = (path.to_owned(), recorded.netns.clone(), own.netns.clone());
        return Ok(Err(Unfit::Refused(StoreError::OtherNetns { path, recorded, own })));
    }
    let why = match salvaged.unreadable.as_slice() {
        [] if has_sound_checksums => return Ok(Ok(())),
        [] => "wrong checksums; redb fell back to an earlier transaction".to_owned(),
        [first, ..] => format!("{} unreadable records, the first: {first}", salvaged.unreadable.len()),
    };
    Ok(Err(Unfit::Damaged { why, salvaged }))
}

/// Reads a file into memory; `None` if it is empty.
fn copy(path: &Path) -> io::Result<Option<InMemoryBackend>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > MAX_BYTES {
        let why = format!("the file has {length} bytes, and a registry has at most {MAX_BYTES}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    let memory = InMemoryBackend::new();
    memory.set_len(length)?;
    let (mut buffer, mut offset) = (vec![0; CHUNK_BYTES], 0);
    while offset < length {
        let read = file.read(&mut buffer)?;
        let room = usize::try_from(length - offset).unwrap_or(usize::MAX);
        let Some(bytes) = buffer.get(..read.min(room)).filter(|bytes| !bytes.is_empty()) else { break };
        memory.write(offset, bytes)?;
        offset += bytes.len() as u64;
    }
    Ok(Some(memory).filter(|_| length > 0))
}
