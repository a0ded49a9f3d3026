//! Tools that cargo builds from source, at a pinned version, into `target/tools`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{run::Step, workspace::Workspace};

/// A binary crate on crates.io.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CargoTool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// More options for `cargo install`.
    pub(crate) options: &'static [&'static str],
    /// How the binary prints its version.
    pub(crate) ask_version: &'static [&'static str],
}

/// For tools that compile longer than they run.
pub(crate) const UNOPTIMISED: &[&str] = &["--debug", "--config", "profile.dev.debug=false"];

// === impl CargoTool ===

impl CargoTool {
    /// Returns the path of the binary; installs the pinned version first if it is missing.
    ///
    /// # Errors
    /// If `cargo install` fails.
    pub(crate) fn need(&self, ws: &Workspace) -> Result<PathBuf> {
        self.need_with(ws, &[])
    }

    /// As [`need`](Self::need), for a tool whose build reads variables of the environment.
    ///
    /// # Errors
    /// As those of `need`.
    pub(crate) fn need_with(&self, ws: &Workspace, variables: &[(&str, &Path)]) -> Result<PathBuf> {
        let Self { name, version, options, .. } = *self;
        let path = ws.tools().join("bin").join(name);
        if !self.is_installed(&path) {
            let step = ws.cargo(
                "install",
                format!("installing {name} {version} into {} (minutes, once)", ws.show(&ws.tools())),
                "check the network and free disk space",
            );
            let step = variables.iter().fold(step, |step, (name, value)| step.env(name, value));
            step.args([name, "--version", version, "--locked", "--force", "--root"])
                .arg(ws.tools())
                .args(options)
                .run()?;
        }
        Ok(path)
    }

    fn is_installed(&self, path: &Path) -> bool {
        path.is_file()
            && Step::new(path, format!("reading the version of {}", self.name), "install it again")
                .args(self.ask_version)
                .ask()
                .is_ok_and(|version| version.split_whitespace().last() == Some(self.version))
    }
}
