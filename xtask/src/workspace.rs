//! The paths of the workspace, and its cargo.

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
    /// The target directory for the host; CARGO_TARGET_DIR overrides it.
    target: PathBuf,
}

// === impl Workspace ===

impl Workspace {
    /// Finds the workspace by the manifest directory of this crate.
    ///
    /// # Errors
    /// If there is no parent folder.
    pub(crate) fn find() -> Result<Self> {
        // At run time: the workspace can be moved along with its target directory.
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

    /// A checkout elsewhere, with a target directory of its own: in a shared one, cargo takes packages of the
    /// same names for the same, and the older files for compiled.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), target: root.join("target") }
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

    /// The root of tools built from source; binaries are in `bin/`.
    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join("target/tools")
    }

    /// Where cargo builds for the host.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// `path` relative to the workspace, for messages.
    pub(crate) fn show(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    /// `cargo <verb>` in the workspace.
    pub(crate) fn cargo(&self, verb: &str, doing: impl Into<String>, remedy: impl Into<String>) -> Step {
        let step = Step::new(cargo(), doing, remedy).current_dir(&self.root).arg(verb);
        // Those of xtask itself. A build script that reads them, such as ring's, would run again whenever a
        // contributor's own cargo follows xtask, and all that depends on its crate would be compiled again.
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter(|name| is_of_a_package(name)).fold(step, |step, name| step.env_remove(&name))
    }

    /// `cargo <verb>` in the workspace, for a verb that builds for the host. The explicit target
    /// directory overrides the user's cargo configuration.
    pub(crate) fn cargo_host(&self, verb: &str, doing: impl Into<String>, remedy: impl Into<String>) -> Step {
        self.cargo(verb, doing, remedy).arg("--target-dir").arg(&self.target)
    }
}

/// Whether cargo sets this variable for the programs of a package.
fn is_of_a_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// The cargo that started us, else the one in PATH.
fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_variables_of_a_package_are_kept_from_cargo() {
        for own in ["CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR", "CARGO_MANIFEST_DIR"] {
            // Cargo sets them for this test.
            assert!(is_of_a_package(own) && env::var_os(own).is_some(), "{own}");
        }
        for theirs in ["CARGO", "CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_INCREMENTAL", "CARGO_BUILD_JOBS"] {
            assert!(!is_of_a_package(theirs), "{theirs}");
        }
    }
}
