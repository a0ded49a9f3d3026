//! The copy of the workspace that mutants are made in: an interrupted run changes no source.
//!
//! Always in the same place, so that builds stay incremental.

use std::{collections::BTreeSet, ffi::OsString, fs, io, path::Path};

use anyhow::Result;

use crate::{failure::OrFail as _, files};

/// Makes `to` hold the files of the workspace at `from`. Unchanged ones are not touched.
///
/// # Errors
/// If a file cannot be copied.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let doing = || format!("copying the workspace to {}", to.display());
    let remedy = "make room on the disk, or remove the copy";
    fs::create_dir_all(to).or_fail(doing(), remedy)?;
    let wanted = names(from).or_fail(doing(), remedy)?;
    for name in names(to).or_fail(doing(), remedy)?.difference(&wanted) {
        let stale = to.join(name);
        let removed = if stale.is_dir() { fs::remove_dir_all(&stale) } else { fs::remove_file(&stale) };
        removed.or_fail(doing(), remedy)?;
    }
    for name in &wanted {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            files::replace_if_changed(&to, &files::read(&from, remedy)?)?;
        }
    }
    Ok(())
}

/// The files and folders in `folder`, except git's and what is built.
fn names(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name != "target" && name != ".git" {
            names.insert(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn a_copy_follows_its_source_undoes_mutants_and_leaves_equal_files_alone() {
        let base = env::temp_dir().join(format!("xtask-tree-{}", process::id()));
        let (from, to) = (base.join("from"), base.join("from/target/mutants/tree"));
        let write = |path: &str, text: &str| {
            let path = from.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/src/lib.rs", "fn a() {}");
        write("a/src/old/mod.rs", "fn old() {}");
        write("Cargo.toml", "[workspace]");
        write(".git/HEAD", "x");
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/src/lib.rs")).unwrap(), "fn a() {}");
        assert!(!to.join(".git").exists() && !to.join("target").exists());
        let first = fs::metadata(to.join("Cargo.toml")).unwrap().modified().unwrap();

        // As a killed run leaves it.
        fs::write(to.join("a/src/lib.rs"), "fn mutant() {}").unwrap();
        fs::remove_dir_all(from.join("a/src/old")).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/src/lib.rs")).unwrap(), "fn a() {}");
        assert!(!to.join("a/src/old").exists());
        assert_eq!(fs::metadata(to.join("Cargo.toml")).unwrap().modified().unwrap(), first);
        fs::remove_dir_all(&base).unwrap();
    }
}
