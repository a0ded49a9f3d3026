//! Keeps the machine's paths out of what is built, so that every machine builds the same bytes.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{failure::OrFail as _, toolchain, workspace::Workspace};

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
