//! Reading and replacing files.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

use anyhow::Result;

use crate::failure::OrFail as _;

/// Whether [`replace_if_changed`] wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Changed,
    Unchanged,
}

/// Reads a whole file.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn read(path: &Path, remedy: &str) -> Result<Vec<u8>> {
    fs::read(path).or_fail(format!("reading {}", path.display()), remedy)
}

/// Makes `path` hold `content`, atomically. A file that already does is not touched, so that what is built
/// from it is not built again.
///
/// # Errors
/// If the folder cannot be written.
pub(crate) fn replace_if_changed(path: &Path, content: &[u8]) -> Result<Written> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(Written::Unchanged);
    }
    replace(path, |new| fs::write(new, content))?;
    Ok(Written::Changed)
}

/// Makes `to` a copy of `from`, permissions included, atomically: a binary that runs is not written to.
///
/// # Errors
/// If `from` cannot be read or `to`'s folder cannot be written.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    replace(to, |new| fs::copy(from, new).map(drop))
}

fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let new = beside(path);
    let replaced = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| write(&new))
        .and_then(|()| fs::rename(&new, path));
    if replaced.is_err() {
        // What is reported is the first error; a temporary file that cannot be removed adds nothing to it.
        let _ = fs::remove_file(&new);
    }
    replaced.or_fail(
        format!("writing {}", path.display()),
        "make room on the disk, and see that the folder belongs to you",
    )
}

/// A temporary name in the same folder, hence on the same file system, and of this process only.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn only_a_change_touches_the_file() {
        let dir = env::temp_dir().join(format!("xtask-files-{}", process::id()));
        let path = dir.join("deep/file");
        assert_eq!(replace_if_changed(&path, b"one").unwrap(), Written::Changed);
        let first = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(replace_if_changed(&path, b"one").unwrap(), Written::Unchanged);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), first);
        assert_eq!(replace_if_changed(&path, b"two").unwrap(), Written::Changed);
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(left, 1, "no temporary file stays");
    }
}
