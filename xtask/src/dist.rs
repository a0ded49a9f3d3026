//! The release binaries, collected in `target/dist/`.

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
    ebpf,
    failure::{Failure, OrFail as _},
    files,
    run::{Step, say},
    toolchain::{self, Part},
    workspace::Workspace,
};

/// A binary that we ship.
#[derive(Debug, Clone, Copy)]
struct Binary {
    package: &'static str,
    name: &'static str,
    linkage: Linkage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linkage {
    /// Against the system's C library, in cargo's release profile.
    Dynamic,
    /// Against nothing, in the profile `shim`: what runs on a host whose libraries we do not know.
    Static,
}

const AGENT: Binary = Binary { package: "ferrule-agent", name: "ferrule-agent", linkage: Linkage::Dynamic };
const CTL: Binary = Binary { package: "ferrulectl", name: "ferrulectl", linkage: Linkage::Dynamic };
const SHIM: Binary = Binary { package: "ferrule-cni", name: "ferrule", linkage: Linkage::Static };

/// Names `target/dist` to the tests, the demo and the benchmarks.
const DIST_VARIABLE: &str = "FERRULE_DIST";
/// Names the eBPF object to them.
const OBJECT_VARIABLE: &str = "FERRULE_BPF_OBJECT";

/// Builds the eBPF programs, then the binaries into `target/dist/`.
///
/// # Errors
/// If something does not build, or the shim is not static.
pub(crate) fn build(ws: &Workspace) -> Result<()> {
    ebpf::build(ws)?;
    toolchain::need(ws, &[Part::Musl])?;
    let remedy = "repair what the compiler names";
    for binary in [AGENT, CTL, SHIM] {
        ws.cargo_host("build", format!("building {binary}"), remedy).args(binary.cargo_args()).run()?;
    }
    for binary in [AGENT, CTL, SHIM] {
        binary.ship(ws)?;
    }
    Ok(())
}

/// Tells `step` where the results of [`build`] are.
pub(crate) fn tell(ws: &Workspace, step: Step) -> Step {
    step.env(DIST_VARIABLE, ws.dist()).env(OBJECT_VARIABLE, ws.bpf_object())
}

// === impl Binary ===

impl Binary {
    fn cargo_args(self) -> Vec<String> {
        let mut args = vec!["--package".to_owned(), self.package.to_owned(), "--bin".to_owned()];
        args.push(self.name.to_owned());
        match self.linkage {
            Linkage::Dynamic => args.push("--release".to_owned()),
            Linkage::Static => args
                .extend(["--profile", "shim", "--target", &toolchain::musl_target()].map(ToOwned::to_owned)),
        }
        args
    }

    /// Where cargo puts it.
    fn built(self, ws: &Workspace) -> PathBuf {
        let folder = match self.linkage {
            Linkage::Dynamic => ws.target().join("release"),
            Linkage::Static => ws.target().join(toolchain::musl_target()).join("shim"),
        };
        folder.join(self.name)
    }

    fn ship(self, ws: &Workspace) -> Result<()> {
        let built = self.built(ws);
        if self.linkage == Linkage::Static {
            check_static(&built)?;
        }
        let to = ws.dist().join(self.name);
        files::copy(&built, &to)?;
        let size = fs::metadata(&to).or_fail(format!("looking at {}", to.display()), "build again")?.len();
        say(format!("{}: {size} bytes, {}", ws.show(&to), self.linkage));
        Ok(())
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { package, name, linkage } = self;
        write!(f, "{name} (package {package}, {linkage})")
    }
}

// === impl Linkage ===

impl fmt::Display for Linkage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dynamic => "dynamic",
            Self::Static => "static",
        })
    }
}

/// Fails unless the binary runs on any host: the shim is executed on the node, not in our image.
fn check_static(path: &Path) -> Result<()> {
    let attempted = || format!("checking that {} is static", path.display());
    let bytes = files::read(path, "build again")?;
    match interpreter(&bytes).or_fail(attempted(), "see what kind of file it is, with `file`")? {
        None => Ok(()),
        Some(interpreter) => Err(Failure {
            attempted: attempted(),
            why: format!("it asks for the dynamic linker {interpreter}"),
            remedy: "look for `-C target-feature=-crt-static` in RUSTFLAGS and in cargo's configuration"
                .to_owned(),
        }
        .into()),
    }
}

/// The dynamic linker that an ELF file asks for.
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
    fn dynamic_binaries_are_told_from_others() {
        // The test itself, built for a host with a dynamic linker or without one.
        let own = fs::read("/proc/self/exe").unwrap();
        let dynamic = cfg!(not(target_feature = "crt-static"));
        assert_eq!(interpreter(&own).unwrap().is_some(), dynamic);
        assert!(interpreter(b"#!/bin/sh\n").is_err());
    }

    #[test]
    fn the_shim_is_built_static() {
        let args = SHIM.cargo_args().join(" ");
        assert!(args.ends_with("-unknown-linux-musl") && args.contains("--profile shim"), "{args}");
    }
}
