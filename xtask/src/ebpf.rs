//! Building the eBPF programs.
//!
//! Both sides of the kernel boundary are compiled by the one pinned toolchain. For the BPF side that takes
//! three things which stable Rust does not do by itself: `core` is built from source (`-Z build-std`),
//! unstable features are let in (`RUSTC_BOOTSTRAP`, for these calls only), and the linker is bpf-linker.

use std::path::Path;

use anyhow::Result;

use crate::{
    btf,
    failure::OrFail as _,
    files::{self, Written},
    linker::{self, LINKER_VARIABLE},
    remap, report,
    run::{Step, say},
    strip,
    toolchain::{self, Part},
    workspace::Workspace,
};

const TARGET: &str = if cfg!(target_endian = "big") { "bpfeb-unknown-none" } else { "bpfel-unknown-none" };
/// The package of the programs.
pub(crate) const PACKAGE: &str = "agent-ebpf";
const BINARY: &str = "ferrule";

/// Builds the eBPF programs into `target/bpf/ferrule.o`.
///
/// # Errors
/// If the toolchain cannot be completed, the programs do not compile or link, or the object is unsound.
pub(crate) fn build(ws: &Workspace) -> Result<()> {
    let doing = format!("building the eBPF programs for {TARGET}");
    let remedy = format!(
        "repair what the compiler names. \"Invalid record\" means that the linker does not fit the compiler's \
         LLVM: unset {LINKER_VARIABLE}, or remove target/tools"
    );
    cargo(ws, "build", &doing, &remedy)?.run()?;

    let built = ws.bpf_target().join(TARGET).join("bpf").join(BINARY);
    let linked = files::read(&built, "see whether cargo put the binary elsewhere; then xtask has to follow")?;
    let object = strip::debug_information(&name_text(ws, &built, linked)?).or_fail(
        format!("taking the debug information out of {}", built.display()),
        "compare with `llvm-strip -g`: either the linker wrote a damaged object, or xtask does not understand it",
    )?;
    let path = ws.bpf_object();
    let written = match files::replace_if_changed(&path, &object)? {
        Written::Changed => "written",
        Written::Unchanged => "as it was",
    };
    say(format!("{}: {} bytes, {written}", ws.show(&path), object.len()));
    Ok(())
}

/// Prints what is in the object that [`build`] made.
///
/// # Errors
/// If the object cannot be read.
pub(crate) fn show(ws: &Workspace) -> Result<()> {
    let path = ws.bpf_object();
    let object = files::read(&path, "build again")?;
    let report = report::of(&object).or_fail(
        format!("reading {}", path.display()),
        "compare with `readelf -SWs`: either it is damaged, or xtask does not understand what LLVM writes",
    )?;
    print!("{report}");
    Ok(())
}

/// Runs clippy over the eBPF programs.
///
/// # Errors
/// If it finds something.
pub(crate) fn clippy(ws: &Workspace) -> Result<()> {
    let doing = format!("clippy on the eBPF programs, for {TARGET}");
    cargo(ws, "clippy", &doing, "do as clippy says")?.args(["--", "-D", "warnings"]).run()
}

/// `cargo <verb>` for the programs, with everything that the BPF target takes.
fn cargo(ws: &Workspace, verb: &str, doing: &str, remedy: &str) -> Result<Step> {
    toolchain::need(ws, &[Part::RustSrc])?;
    let linker = linker::need(ws)?;
    let mut flags = vec![
        "-C".to_owned(),
        format!("linker={}", linker.display()),
        // bpf-linker makes the BTF from it, including that of the map definitions.
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        // Headers lie at any address: without this, LLVM reads their fields byte by byte.
        "-Clink-arg=--cpu-features=+allows-misaligned-mem-access".to_owned(),
    ];
    flags.extend(remap::flags(ws, &ws.bpf_target())?);
    Ok(ws
        .cargo(verb, doing, remedy)
        .args([
            "--profile",
            "bpf",
            "--package",
            PACKAGE,
            "--bin",
            BINARY,
            "--target",
            TARGET,
            "-Zbuild-std=core",
        ])
        .arg("--target-dir")
        .arg(ws.bpf_target())
        .env("RUSTC_BOOTSTRAP", "1")
        // Incremental builds optimise less across functions, and the verifier refuses what comes of it.
        .env("CARGO_INCREMENTAL", "0")
        // Not RUSTFLAGS: this one wins over it, and paths may have spaces.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")))
}

fn name_text(ws: &Workspace, built: &Path, linked: Vec<u8>) -> Result<Vec<u8>> {
    let renamed = btf::name_text(&linked).or_fail(
        format!("naming the text type in the BTF of {}", built.display()),
        "compare with `bpftool btf dump file`: either the linker wrote no BTF, or xtask does not understand it",
    )?;
    match renamed {
        Some(renamed) => {
            say("BTF: i8 is now char, so that bpftool prints text as text");
            Ok(renamed)
        }
        None => {
            say(format!("BTF: no i8 in {}, so there is no text to name", ws.show(built)));
            Ok(linked)
        }
    }
}
