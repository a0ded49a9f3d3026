//! The binaries under test: the very ones that are released.

use std::{env, path::PathBuf};

use anyhow::{Context as _, ensure};

/// A binary of `target/dist`.
///
/// # Errors
/// If it has not been built.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let dist = env::var_os("FERRULE_DIST").context("FERRULE_DIST is not set: run this by `cargo xtask`")?;
    let path = PathBuf::from(dist).join(name);
    ensure!(path.exists(), "{} is missing: run this by `cargo xtask`", path.display());
    Ok(path)
}

/// The eBPF object that the agent embeds.
///
/// # Errors
/// If it has not been built.
pub fn ebpf_object() -> anyhow::Result<Vec<u8>> {
    let path = env::var_os("FERRULE_BPF_OBJECT")
        .context("FERRULE_BPF_OBJECT is not set: run this by `cargo xtask`")?;
    std::fs::read(&path).with_context(|| format!("cannot read the eBPF object {}", path.display()))
}
