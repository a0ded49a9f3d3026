//! The release binaries under test.

use std::{env, path::PathBuf};

use anyhow::{Context as _, ensure};

/// Path of a binary in `target/dist`.
///
/// # Errors
/// If the binary has not been built.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let dist =
        env::var_os("FERRULE_DIST").context("FERRULE_DIST is not set: run this through `cargo xtask`")?;
    let path = PathBuf::from(dist).join(name);
    ensure!(path.exists(), "{} is missing: run this through `cargo xtask`", path.display());
    Ok(path)
}

/// The eBPF object that the agent embeds.
///
/// # Errors
/// If the object has not been built.
pub fn ebpf_object() -> anyhow::Result<Vec<u8>> {
    let path = env::var_os("FERRULE_BPF_OBJECT")
        .context("FERRULE_BPF_OBJECT is not set: run this through `cargo xtask`")?;
    std::fs::read(&path).with_context(|| format!("cannot read the eBPF object {}", path.display()))
}
