//! Keeps the machine's paths out of what is built, so that every machine builds the same bytes.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{failure::OrFail as _, toolchain, workspace::Workspace};

/// The first folder of this machine that a binary names: the workspace, where cargo builds, or that of
/// cargo's sources.
///
/// # Errors
/// If there is no telling where cargo keeps its sources.
pub(crate) fn named_folder(ws: &Workspace, binary: &[u8]) -> Result<Option<PathBuf>> {
    let folders = [ws.root.clone(), ws.target().to_owned(), cargo_home()?];
    Ok(folders.into_iter().find(|it| names(binary, it)))
}

/// Whether a binary has a path below a folder. Those directly below the root do not count: every path of
/// another source tree may contain their names.
fn names(binary: &[u8], folder: &Path) -> bool {
    // The root itself is a component.
    let is_telling = folder.components().count() > 2;
    let below = format!("{}/", folder.display());
    is_telling && memchr::memmem::find(binary, below.as_bytes()).is_some()
}

/// Flags for rustc that give every source a path that is the same everywhere; `target` is where cargo builds.
///
/// # Errors
/// If the compiler cannot be asked, or there is no telling where cargo keeps its sources.
pub(crate) fn flags(ws: &Workspace, target: &Path) -> Result<Vec<String>> {
    let sysroot = toolchain::sysroot(ws)?.join("lib/rustlib/src/rust");
    // As in the parts of the standard library that are compiled already.
    let std = format!("/rustc/{}", toolchain::commit(ws)?);
    let places = [
        (cargo_home()?, "/cargo"),
        (sysroot, &std),
        (ws.root.clone(), "/ferrule"),
        // The last one that fits counts.
        (target.to_owned(), "/ferrule/target"),
    ];
    Ok(places.iter().map(|(from, to)| flag(from, to)).collect())
}

fn flag(from: &Path, to: &str) -> String {
    format!("--remap-path-prefix={}={to}", from.display())
}

fn cargo_home() -> Result<PathBuf> {
    let given = env::var_os("CARGO_HOME").map(PathBuf::from);
    given
        .or_else(|| Some(env::home_dir()?.join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set")
        .or_fail("finding cargo's sources", "set CARGO_HOME")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_gets_the_path_of_its_innermost_folder() {
        let ws = Workspace::find().unwrap();
        let flags = flags(&ws, &ws.root.join("target")).unwrap();
        // Of several that fit, rustc takes the last one.
        let renamed = |path: &str| {
            let fits = flags.iter().rev().find_map(|flag| {
                let (from, to) = flag.strip_prefix("--remap-path-prefix=")?.split_once('=')?;
                Some(format!("{to}{}", path.strip_prefix(from)?))
            });
            fits.unwrap_or_else(|| path.to_owned())
        };
        let (root, home) = (ws.root.display(), cargo_home().unwrap());
        assert_eq!(renamed(&format!("{root}/agent/src/main.rs")), "/ferrule/agent/src/main.rs");
        assert_eq!(renamed(&format!("{root}/target/out/cni.rs")), "/ferrule/target/out/cni.rs");
        assert_eq!(renamed(&format!("{}/registry/a.rs", home.display())), "/cargo/registry/a.rs");
        let sysroot = toolchain::sysroot(&ws).unwrap();
        let core = format!("{}/lib/rustlib/src/rust/library/core/src/lib.rs", sysroot.display());
        assert!(renamed(&core).starts_with("/rustc/"), "{}", renamed(&core));
    }

    #[test]
    fn a_binary_that_names_a_folder_of_this_machine_is_recognised() {
        let ws = Workspace::find().unwrap();
        let binary =
            |path: &Path| [b"\x7fELF\0", path.display().to_string().as_bytes(), b"/lib.rs\0"].concat();
        let is_deep = |it: &PathBuf| it.components().count() > 2;
        for folder in [ws.root.clone(), cargo_home().unwrap()].into_iter().filter(is_deep) {
            assert_eq!(named_folder(&ws, &binary(&folder)).unwrap(), Some(folder));
        }
        for other in ["/ferrule/agent/src", "/cargo/registry/src", "/rustc/58cf/library"] {
            assert_eq!(named_folder(&ws, &binary(Path::new(other))).unwrap(), None, "{other}");
        }
        assert!(!names(&binary(Path::new("/ferrule/agent/src")), Path::new("/src")));
    }
}
