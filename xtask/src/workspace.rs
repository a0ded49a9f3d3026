//! Where things are in the workspace, and its cargo.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{failure::OrFail as _, run::Step};

/// The workspace that this xtask belongs to.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where cargo builds for the host. People may move it, with CARGO_TARGET_DIR.
    target: PathBuf,
}

// === impl Workspace ===

impl Workspace {
    /// Finds the workspace from what cargo says of this crate.
    ///
    /// # Errors
    /// If there is no parent folder.
    pub(crate) fn find() -> Result<Self> {
        // What cargo says now, and not at compile time: a workspace can be moved along with its target
        // folder.
        let here = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = PathBuf::from(here)
            .parent()
            .map(Path::to_owned)
            .context("the folder of xtask has no parent")
            .or_fail("finding the workspace", "run it as `cargo xtask` inside the workspace")?;
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        Ok(Self { root, target })
    }

    /// The eBPF object. Not moved by CARGO_TARGET_DIR: the agent's build script looks for it here.
    pub(crate) fn bpf_object(&self) -> PathBuf {
        self.bpf_target().join("ferrule.o")
    }

    /// Where cargo builds for the BPF target.
    pub(crate) fn bpf_target(&self) -> PathBuf {
        self.root.join("target/bpf")
    }

    /// Where the release binaries go.
    pub(crate) fn dist(&self) -> PathBuf {
        self.root.join("target/dist")
    }

    /// Where tools that are built from source go: `bin/` below it.
    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join("target/tools")
    }

    /// Where cargo builds for the host.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// `path` as people want to read it.
    pub(crate) fn show(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    /// `cargo <verb>` in the workspace.
    pub(crate) fn cargo(&self, verb: &str, doing: impl Into<String>, remedy: impl Into<String>) -> Step {
        Step::new(cargo(), doing, remedy).current_dir(&self.root).arg(verb)
    }

    /// `cargo <verb>` in the workspace, for a verb that builds for the host. The target folder is given in so
    /// many words, so that we know where the result is whatever the user's own cargo configuration says.
    pub(crate) fn cargo_host(&self, verb: &str, doing: impl Into<String>, remedy: impl Into<String>) -> Step {
        self.cargo(verb, doing, remedy).arg("--target-dir").arg(&self.target)
    }
}

/// The cargo that started us, else the one in PATH.
fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
