//! The release binaries, collected in `target/dist/`.
//!
//! All are static: they run on the node whatever its C library is, and in an image that has none. The same
//! ones are tested, measured and shipped.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use object::{
    Endianness, elf,
    read::elf::{ElfFile64, ProgramHeader as _},
};

use crate::{
    debug, ebpf,
    failure::{Failure, OrFail as _},
    files,
    progress::Stages,
    remap,
    run::{Step, say},
    toolchain::{self, Arch, Part},
    tools,
    workspace::Workspace,
};

/// A shipped binary.
#[derive(Debug, Clone, Copy)]
struct Binary {
    package: &'static str,
    name: &'static str,
    /// The cargo profile.
    profile: &'static str,
}

/// The package and binary that contains the eBPF programs.
pub(crate) const AGENT: &str = "ferrule-agent";

const BINARIES: [Binary; 3] = [
    Binary { package: AGENT, name: AGENT, profile: "release" },
    Binary { package: "ferrulectl", name: "ferrulectl", profile: "release" },
    Binary { package: "ferrule-shim", name: "ferrule", profile: "shim" },
];

/// Only an agent with crash points contains this name of a variable (`agent/src/crash.rs`).
const CRASH_POINTS: &[u8] = b"FERRULE_CRASH_POINTS";
/// A position-independent binary applies its relocations at start, and keeps the pages. Packed relocations
/// take a sixtieth of the space, which saves 750 kB. Musl supports them since 1.2.4.
const PACKED_RELOCATIONS: &str = "-Clink-arg=-Wl,-z,pack-relative-relocs";
/// The linker of the toolchain, which knows all targets; called by rustc itself, without a C compiler.
const CROSS_LINKER: [&str; 3] = ["-Clinker=rust-lld", "-Clink-arg=-z", "-Clink-arg=pack-relative-relocs"];
/// Names `target/dist` to the tests, the demo and the benchmarks.
const DIST_VARIABLE: &str = "FERRULE_DIST";
/// Names the eBPF object to them.
const OBJECT_VARIABLE: &str = "FERRULE_BPF_OBJECT";

/// Installs what [`build`] needs.
///
/// # Errors
/// If something cannot be installed.
pub(crate) fn prepare(ws: &Workspace) -> Result<()> {
    tools::need(tools::BUILD)?;
    toolchain::need(ws, &[Part::Musl])
}

/// Builds the eBPF programs, then the binaries into `target/dist/`.
///
/// # Errors
/// If a binary does not build, or is not static.
pub(crate) fn build(ws: &Workspace) -> Result<()> {
    let mut stages = Stages::of(2 + BINARIES.len());
    stages.run("building the eBPF programs", || {
        prepare(ws)?;
        ebpf::build(ws)
    })?;
    // Only for these calls, which build for a target of their own, so that other builds stay valid. Overrides
    // RUSTFLAGS, and allows spaces in paths.
    let mut flags = remap::flags(ws, ws.target())?;
    flags.push(PACKED_RELOCATIONS.to_owned());
    let flags = flags.join("\u{1f}");
    let target = toolchain::musl_target();
    for binary in BINARIES {
        let doing = format!("building {binary}");
        let step = ws
            .cargo_host("build", &doing, "repair what the compiler names")
            .args(["--package", binary.package, "--bin", binary.name])
            .args(["--profile", binary.profile, "--target", &target])
            .env("CARGO_ENCODED_RUSTFLAGS", &flags)
            // Overrides CC, which may be set for another C library.
            .env(&format!("CC_{}", target.replace('-', "_")), "musl-gcc")
            // mimalloc embeds the time of compilation, which would make builds differ.
            .env("SOURCE_DATE_EPOCH", "0");
        stages.run(&doing, || step.run())?;
    }
    stages.run("collecting the binaries", || {
        BINARIES.into_iter().try_for_each(|binary| binary.ship(ws, &target, &ws.dist()))
    })
}

/// Where [`build_for`] puts binaries.
pub(crate) fn folder(ws: &Workspace, arch: Arch) -> PathBuf {
    if Some(arch) == Arch::native() { ws.dist() } else { ws.dist().join(arch.oci()) }
}

/// Builds the binaries of an architecture. Those of another one than this machine's are cross-compiled:
/// linked by the toolchain's own linker, their C code compiled by Debian's cross compiler.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_for(ws: &Workspace, arch: Arch) -> Result<()> {
    if Some(arch) == Arch::native() {
        return build(ws);
    }
    tools::need(tools::cross(arch))?;
    toolchain::need(ws, &[Part::MuslOf(arch)])?;
    let mut stages = Stages::of(2 + BINARIES.len());
    stages.run("building the eBPF programs", || ebpf::build(ws))?;
    let mut flags = remap::flags(ws, ws.target())?;
    flags.extend(CROSS_LINKER.map(ToOwned::to_owned));
    let flags = flags.join("\u{1f}");
    let target = arch.target();
    for binary in BINARIES {
        let doing = format!("building {binary} for {}", arch.oci());
        let step = ws
            .cargo_host("build", &doing, "repair what the compiler names")
            .args(["--package", binary.package, "--bin", binary.name])
            .args(["--profile", binary.profile, "--target", &target])
            .env("CARGO_ENCODED_RUSTFLAGS", &flags)
            .env(&format!("CC_{}", target.replace('-', "_")), format!("{}-linux-gnu-gcc", arch.rust()))
            .env(&format!("AR_{}", target.replace('-', "_")), format!("{}-linux-gnu-ar", arch.rust()))
            .env("SOURCE_DATE_EPOCH", "0");
        stages.run(&doing, || step.run())?;
    }
    stages.run("collecting the binaries", || {
        BINARIES.into_iter().try_for_each(|binary| binary.ship(ws, &target, &folder(ws, arch)))
    })
}

/// Builds an agent with crash points into `target/dist/test/`: not static, never shipped.
///
/// # Errors
/// If it does not build.
pub(crate) fn build_crashing(ws: &Workspace) -> Result<()> {
    debug::build(ws, "building an agent with crash points", &[AGENT])
        .args(["--features", "ferrule-agent/crash-points"])
        .run()?;
    let built = debug::folder(ws).join(AGENT);
    if !has_crash_points(&built)? {
        let (why, remedy) =
            ("the binary has none", "compare CRASH_POINTS in xtask/src/dist.rs with agent/src/crash.rs");
        return Err(failure(&built, why, remedy).into());
    }
    files::copy(&built, &ws.dist().join("test").join(AGENT))
}

/// The packages that the binaries are of.
pub(crate) fn packages() -> impl Iterator<Item = &'static str> {
    BINARIES.iter().map(|binary| binary.package)
}

/// The paths of the binaries in `target/dist/`.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    BINARIES.iter().map(|binary| binary.name)
}

/// Passes the locations of the results of [`build`] to `step`.
pub(crate) fn tell(ws: &Workspace, step: Step) -> Step {
    tell_of(ws, step, &ws.dist())
}

/// Passes the locations of the binaries and the eBPF object to `step`.
pub(crate) fn tell_of(ws: &Workspace, step: Step, binaries: &Path) -> Step {
    told(ws, binaries).into_iter().fold(step, |step, (name, path)| step.env(name, path))
}

/// The variables by which tests find the binaries and the eBPF object.
pub(crate) fn told(ws: &Workspace, binaries: &Path) -> [(&'static str, PathBuf); 2] {
    [(DIST_VARIABLE, binaries.to_owned()), (OBJECT_VARIABLE, ws.bpf_object())]
}

// === impl Binary ===

impl Binary {
    /// Copies cargo's output for a target into a folder.
    fn ship(self, ws: &Workspace, target: &str, folder: &Path) -> Result<()> {
        let built = ws.target().join(target).join(self.profile).join(self.name);
        check_static(&built)?;
        if has_crash_points(&built)? {
            let remedy =
                "build without the feature crash-points: `cargo tree --edges features` shows what enables it";
            return Err(failure(&built, "a binary to ship has crash points", remedy).into());
        }
        let to = folder.join(self.name);
        files::copy(&built, &to)?;
        let size =
            fs::metadata(&to).or_fail(format!("reading the size of {}", to.display()), "build again")?.len();
        say(format!("{}: {size} bytes, static", ws.show(&to)));
        Ok(())
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { package, name, profile } = self;
        write!(f, "{name} (package {package}, profile {profile}, static)")
    }
}

/// Fails unless the binary is static.
fn check_static(path: &Path) -> Result<()> {
    let attempted = || format!("checking that {} is static", path.display());
    let bytes = files::read(path, "build again")?;
    match interpreter(&bytes).or_fail(attempted(), "see what kind of file it is, with `file`")? {
        None => Ok(()),
        Some(interpreter) => Err(Failure {
            attempted: attempted(),
            why: format!("the binary needs the dynamic linker {interpreter}"),
            remedy: "search the build scripts of linked crates for `crt-static`".to_owned(),
        }
        .into()),
    }
}

/// Whether a binary has crash points.
fn has_crash_points(path: &Path) -> Result<bool> {
    Ok(memchr::memmem::find(&files::read(path, "build again")?, CRASH_POINTS).is_some())
}

fn failure(path: &Path, why: &str, remedy: &str) -> Failure {
    Failure {
        attempted: format!("looking for crash points in {}", path.display()),
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// The dynamic linker that an ELF file names.
fn interpreter(bytes: &[u8]) -> Result<Option<String>> {
    let file = ElfFile64::<Endianness>::parse(bytes).context("not a 64-bit ELF file")?;
    let endian = file.endian();
    let asks = file.elf_program_headers().iter().find(|header| header.p_type(endian) == elf::PT_INTERP);
    let Some(header) = asks else { return Ok(None) };
    let name = header.data(endian, bytes).ok().context("PT_INTERP points out of the file")?;
    Ok(Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_binaries_are_recognised() {
        // The test binary itself, static or dynamic depending on the host target.
        let own = fs::read("/proc/self/exe").unwrap();
        let dynamic = cfg!(not(target_feature = "crt-static"));
        assert_eq!(interpreter(&own).unwrap().is_some(), dynamic);
        assert!(interpreter(b"#!/bin/sh\n").is_err());
    }
}
