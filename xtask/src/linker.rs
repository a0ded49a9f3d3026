//! bpf-linker, which links LLVM bitcode, and so has to fit the compiler's LLVM.
//!
//! The linker is built against the very library that the toolchain brings, and again when the toolchain has
//! changed. A toolchain with the next LLVM needs a linker that knows it.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    cargo_tool::{CargoTool, UNOPTIMISED},
    failure::{Failure, OrFail as _},
    toolchain,
    workspace::Workspace,
};

/// Knows the LLVM of the pinned Rust. Unoptimised, which halves the time of the build: nearly all the work is
/// LLVM's.
const LINKER: CargoTool =
    CargoTool { name: "bpf-linker", version: "0.13.0", options: UNOPTIMISED, ask_version: &["--version"] };
/// The environment variable that overrides the path of bpf-linker.
pub(crate) const LINKER_VARIABLE: &str = "FERRULE_BPF_LINKER";

/// Returns the path of bpf-linker; installs it if it is missing, or if the compiler's LLVM is another since.
///
/// # Errors
/// If [`LINKER_VARIABLE`] names no file, the toolchain has no LLVM of its own, or `cargo install` fails.
pub(crate) fn need(ws: &Workspace) -> Result<PathBuf> {
    let Some(given) = env::var_os(LINKER_VARIABLE) else {
        let llvm = llvm_prefix(ws)?;
        return LINKER.need_with(ws, &[("LLVM_PREFIX", &llvm)]);
    };
    let given = ws.root.join(given);
    if given.is_file() {
        return Ok(given);
    }
    Err(Failure {
        attempted: format!("using the linker that {LINKER_VARIABLE} names"),
        why: format!("there is no file {}", given.display()),
        remedy: format!("correct the path, or unset {LINKER_VARIABLE} to install {}", LINKER.name),
    }
    .into())
}

/// A folder as an installation of LLVM has it, with links to the toolchain's library: `libLLVM.so`, for which
/// bpf-linker's build asks, and the name that the library gives itself, for which the loader asks. Another
/// toolchain's library has another name: its linker then does not start, and is installed again.
fn llvm_prefix(ws: &Workspace) -> Result<PathBuf> {
    let library = llvm(ws)?;
    let prefix = ws.tools().join("llvm");
    let folder = prefix.join("lib");
    let own = library.file_name().context("a library without a name")?;
    if folder.join(own).exists() && fs::read_link(folder.join(own)).is_ok_and(|to| to == library) {
        return Ok(prefix);
    }
    let attempted = || format!("linking {} into {}", library.display(), ws.show(&folder));
    let remedy = "remove target/tools/llvm by hand";
    if folder.exists() {
        fs::remove_dir_all(&folder).or_fail(attempted(), remedy)?;
    }
    fs::create_dir_all(&folder).or_fail(attempted(), remedy)?;
    for name in [Path::new("libLLVM.so"), Path::new(own)] {
        symlink(&library, folder.join(name)).or_fail(attempted(), remedy)?;
    }
    Ok(prefix)
}

/// The LLVM of the active compiler, a library such as `libLLVM.so.23.1-rust-1.99.1-stable`.
fn llvm(ws: &Workspace) -> Result<PathBuf> {
    let folder = toolchain::sysroot(ws)?.join("lib");
    let attempted = || format!("looking for the compiler's LLVM in {}", folder.display());
    let remedy = format!(
        "use a Rust from rustup, or set {LINKER_VARIABLE} to a bpf-linker for this compiler's LLVM (`rustc -vV`)"
    );
    let entries = fs::read_dir(&folder).or_fail(attempted(), &remedy)?;
    let is_llvm = |path: &PathBuf| {
        path.file_name()
            .and_then(|it| it.to_str())
            .is_some_and(|it| it.starts_with("libLLVM.so.") && it.contains("-rust-"))
    };
    let found = entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_llvm);
    found.context("no libLLVM.so.*-rust-*").or_fail(attempted(), &remedy)
}
