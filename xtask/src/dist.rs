//! The release binaries, collected in `target/dist/`.
//!
//! All are static: they run on the node whatever its C library is, and in an image that has none. The same
//! ones are tested, measured and shipped.

use std::{
    fs,
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
    progress::{Stages, beside},
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

/// The profiles in `Cargo.toml`.
const RELEASE: &str = "release";
const SHIM: &str = "shim";

const BINARIES: [Binary; 3] = [
    Binary { package: AGENT, name: AGENT, profile: RELEASE },
    Binary { package: "ferrulectl", name: "ferrulectl", profile: RELEASE },
    Binary { package: "ferrule-shim", name: "ferrule", profile: SHIM },
];

/// Only an agent with crash points contains this name of a variable (`agent/src/crash.rs`).
const CRASH_POINTS: &[u8] = b"FERRULE_CRASH_POINTS";
/// Cargo's arguments for an agent with crash points.
pub(crate) const CRASHING: [&str; 2] = ["--features", "ferrule-agent/crash-points"];
/// A position-independent binary applies its relocations at start, and keeps the pages. Packed relocations
/// take a sixtieth of the space, which saves 750 kB. Musl supports them since 1.2.4.
const PACKED_RELOCATIONS: &str = "-Clink-arg=-Wl,-z,pack-relative-relocs";
/// The linker of the toolchain, which knows all targets; called by rustc itself, without a C compiler.
const CROSS_LINKER: [&str; 3] = ["-Clinker=rust-lld", "-Clink-arg=-z", "-Clink-arg=pack-relative-relocs"];
/// The eBPF programs, the binaries, and their collection.
const STAGES: usize = 3;
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
    let mut stages = Stages::of(STAGES);
    stages.run("building the eBPF programs", || {
        prepare(ws)?;
        ebpf::build(ws)
    })?;
    // Only for these calls, which build for a target of their own, so that other builds stay valid. Overrides
    // RUSTFLAGS, and allows spaces in paths.
    let mut flags = remap::flags(ws, ws.target())?;
    flags.push(PACKED_RELOCATIONS.to_owned());
    // Overrides CC, which may be set for another C library.
    compile(ws, &mut stages, &toolchain::musl_target(), &ws.dist(), &flags, &[("CC", "musl-gcc".to_owned())])
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
    prepare_for(ws, arch)?;
    let mut stages = Stages::of(STAGES);
    stages.run("building the eBPF programs", || ebpf::build(ws))?;
    let mut flags = remap::flags(ws, ws.target())?;
    flags.extend(CROSS_LINKER.map(ToOwned::to_owned));
    compile(ws, &mut stages, &arch.target(), &folder(ws, arch), &flags, &cross_tools(arch))
}

/// Installs what [`build_for`] needs for another architecture.
fn prepare_for(ws: &Workspace, arch: Arch) -> Result<()> {
    tools::need(tools::cross(arch))?;
    toolchain::need(ws, &[Part::MuslOf(arch)])
}

/// Installs what [`check_others`] needs.
///
/// # Errors
/// If something cannot be installed.
pub(crate) fn prepare_others(ws: &Workspace) -> Result<()> {
    Arch::others().try_for_each(|arch| prepare_for(ws, arch))
}

/// Checks that what nodes run compiles for the architectures of other nodes, without building anything.
///
/// # Errors
/// If something does not compile.
pub(crate) fn check_others(ws: &Workspace) -> Result<()> {
    Arch::others().try_for_each(|arch| {
        let step = ws
            .cargo_host(
                "check",
                format!("checking the binaries for {}", arch.oci()),
                "repair what the compiler names",
            )
            // Nearly all that the other commands select, so that procedural macros are the same ones.
            .args(debug::ALL)
            .args(["--exclude", "ferrule-tests", "--exclude", "xtask", "--bins", "--target", &arch.target()]);
        let tools = cross_tools(arch);
        tools.iter().fold(step, |step, (name, tool)| step.env(&of_target(name, &arch.target()), tool)).run()
    })
}

/// Debian's cross compiler, by the names that build scripts ask for.
fn cross_tools(arch: Arch) -> [(&'static str, String); 2] {
    let tool = |name| format!("{}-linux-gnu-{name}", arch.rust());
    [("CC", tool("gcc")), ("AR", tool("ar"))]
}

/// A variable of build scripts that holds for a target only.
fn of_target(name: &str, target: &str) -> String {
    format!("{name}_{}", target.replace('-', "_"))
}

/// Compiles the binaries for a target, and collects them in a folder. Linking occupies one core for minutes:
/// cargo compiles what the agent and ferrulectl share once, and links both at once; the shim's profile has a
/// directory of its own, and so a lock of its own.
fn compile(
    ws: &Workspace,
    stages: &mut Stages,
    target: &str,
    folder: &Path,
    flags: &[String],
    tools: &[(&str, String)],
) -> Result<()> {
    let flags = flags.join("\u{1f}");
    let build = |profile: &str| {
        let binaries = || BINARIES.iter().filter(|it| it.profile == profile);
        let names: Vec<_> = binaries().map(|it| it.name).collect();
        let doing = format!("building {} (profile {profile}, {target})", names.join(" and "));
        let step = ws
            .cargo_host("build", doing, "repair what the compiler names")
            .args(binaries().flat_map(|it| ["--package", it.package, "--bin", it.name]))
            .args(["--profile", profile, "--target", target])
            .env("CARGO_ENCODED_RUSTFLAGS", &flags)
            // mimalloc embeds the time of compilation, which would make builds differ.
            .env("SOURCE_DATE_EPOCH", "0");
        tools.iter().fold(step, |step, (name, tool)| step.env(&of_target(name, target), tool)).run()
    };
    stages.run("building the binaries", || beside("building the shim", || build(SHIM), || build(RELEASE)))?;
    stages.run("collecting the binaries", || {
        BINARIES.into_iter().try_for_each(|binary| binary.ship(ws, target, folder))
    })
}

/// Builds an agent with crash points into `target/dist/test/`: not static, never shipped.
///
/// # Errors
/// If it does not build.
pub(crate) fn build_crashing(ws: &Workspace) -> Result<()> {
    debug::build(ws, "building an agent with crash points", &[AGENT]).args(CRASHING).run()?;
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
        if let Some(folder) = remap::named_folder(ws, &files::read(&built, "build again")?)? {
            return Err(Failure {
                attempted: format!("looking for paths of this machine in {}", built.display()),
                why: format!(
                    "a binary to ship names {}: other machines would build other bytes",
                    folder.display()
                ),
                remedy: "add what it names to xtask/src/remap.rs; `strings` shows it".to_owned(),
            }
            .into());
        }
        let to = folder.join(self.name);
        files::copy(&built, &to)?;
        let size =
            fs::metadata(&to).or_fail(format!("reading the size of {}", to.display()), "build again")?.len();
        say(format!("{}: {size} bytes, static", ws.show(&to)));
        Ok(())
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
