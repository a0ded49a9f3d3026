//! Unoptimised builds, for lint, the tests and the demo.
//!
//! Cargo compiles a dependency again for each combination of features, and which features it has depends on
//! the packages that a command selects. So all of these commands select the same ones.

use std::path::PathBuf;

use crate::{run::Step, workspace::Workspace};

/// All packages, but the one that only compiles for the BPF target.
pub(crate) const ALL: [&str; 3] = ["--workspace", "--exclude", "agent-ebpf"];
/// Makes cargo choose the features of `cargo test` for `cargo build` too; there are no examples.
const AS_TESTED: &str = "--examples";

/// `cargo test`.
pub(crate) fn test(ws: &Workspace, doing: &str, remedy: &str) -> Step {
    ws.cargo_host("test", doing, remedy).args(ALL)
}

/// `cargo build` of binaries, into [`folder`].
pub(crate) fn build(ws: &Workspace, doing: &str, binaries: &[&str]) -> Step {
    let binaries = binaries.iter().flat_map(|name| ["--bin", name]);
    ws.cargo_host("build", doing, "repair what the compiler names").args(ALL).arg(AS_TESTED).args(binaries)
}

/// Where [`build`] leaves the binaries.
pub(crate) fn folder(ws: &Workspace) -> PathBuf {
    ws.target().join("debug")
}
