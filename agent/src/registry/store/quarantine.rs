//! The quarantine of damaged stores: `registry.redb.corrupt-N` beside the store, for people to examine.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use crate::crash::{self, Step};

/// Quarantined files that are kept, the newest ones.
const KEPT: usize = 3;

/// Quarantines the store at a path, puts a new one in its place, and returns the path in the quarantine.
pub(super) fn replace(path: &Path, new: &Path) -> io::Result<PathBuf> {
    let earlier = quarantined(path)?;
    let number = earlier.last().map_or(1, |(number, _)| number + 1);
    let to = path.with_extension(format!("redb.corrupt-{number}"));
    // A link keeps a store at the path at every moment. On a file system without links, a crash in between
    // leaves none, and the next start rebuilds all attachments from the kernel.
    if fs::hard_link(path, &to).is_err() {
        fs::rename(path, &to)?;
    }
    crash::point(Step::StoreQuarantined);
    place(new, path)?;
    for (_, oldest) in earlier.iter().rev().skip(KEPT - 1) {
        if let Err(error) = fs::remove_file(oldest) {
            tracing::warn!(?oldest, %error, "cannot prune a quarantined store");
        }
        crash::point(Step::StoreForgotten);
    }
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(to)
}

/// Moves a new store to its path.
pub(super) fn place(new: &Path, path: &Path) -> io::Result<()> {
    fs::rename(new, path)?;
    crash::point(Step::StorePlaced);
    Ok(())
}

/// The quarantined files, oldest first.
fn quarantined(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
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
