//! Components of the pinned Rust toolchain that rustup may not have installed.
//!
//! `rust-toolchain.toml` names the components, but RUSTUP_AUTO_INSTALL=0, or a toolchain that was installed
//! before the file named them, leaves them out.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::{failure::OrFail as _, files, run::Step, workspace::Workspace};

/// A component or target of the toolchain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Rustfmt,
    Clippy,
    /// The source of `core`, which is built for the BPF target.
    RustSrc,
    /// `std` for static binaries.
    Musl,
    /// `std` for static binaries of another machine.
    MuslOf(Arch),
}

/// An architecture of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

// === impl Arch ===

impl Arch {
    pub(crate) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// That of this machine, if nodes may have it.
    pub(crate) fn native() -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.rust() == std::env::consts::ARCH)
    }

    /// Those that nodes may have, but this machine has not.
    pub(crate) fn others() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|it| Some(*it) != Self::native())
    }

    /// What Rust and Linux call it.
    pub(crate) const fn rust(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// What images and Debian call it.
    pub(crate) const fn oci(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The target of static binaries.
    pub(crate) fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.rust())
    }
}

/// The target of static binaries for this machine.
pub(crate) fn musl_target() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// Adds `parts` to the toolchain if they are missing.
///
/// # Errors
/// If rustup is not there, or cannot download them.
pub(crate) fn need(ws: &Workspace, parts: &[Part]) -> Result<()> {
    let sysroot = sysroot(ws)?;
    for part in parts {
        if sysroot.join(part.evidence()).exists() {
            continue;
        }
        let (kind, name) = part.rustup();
        Step::new(
            "rustup",
            format!("adding the {kind} {name} to the Rust toolchain"),
            format!("check the network, or install {name} for the Rust in {} another way", sysroot.display()),
        )
        .current_dir(&ws.root)
        .args([kind, "add", &name])
        .run()?;
    }
    Ok(())
}

/// The directory of the active toolchain, from the compiler: rustup may be missing.
///
/// # Errors
/// If the compiler fails.
pub(crate) fn sysroot(ws: &Workspace) -> Result<PathBuf> {
    let printed = ask(ws, "asking for the Rust toolchain's folder", &["--print", "sysroot"])?;
    Ok(PathBuf::from(printed.trim_end()))
}

/// The release of the active compiler, such as `rustc 1.99.1`.
///
/// # Errors
/// If the compiler fails.
pub(crate) fn release(ws: &Workspace) -> Result<String> {
    Ok(ask(ws, "asking for the compiler's release", &["-V"])?.trim_end().to_owned())
}

/// The commit of the active compiler; distributions' compilers may have none.
///
/// # Errors
/// If the compiler fails.
pub(crate) fn commit(ws: &Workspace) -> Result<String> {
    let printed = ask(ws, "asking for the compiler's commit", &["-vV"])?;
    let commit = printed.lines().find_map(|line| line.strip_prefix("commit-hash: "));
    Ok(commit.unwrap_or("unknown").to_owned())
}

/// The version of the musl that the toolchain links into static binaries, such as `1.2.5`. It is the same for
/// all targets.
///
/// # Errors
/// If the library cannot be read, or names no version.
pub(crate) fn musl_version(ws: &Workspace, arch: Arch) -> Result<String> {
    need(ws, &[Part::MuslOf(arch)])?;
    let path = sysroot(ws)?.join(Part::MuslOf(arch).evidence()).join("self-contained/libc.a");
    let attempted = format!("looking for the version of musl in {}", path.display());
    let library = files::read(&path, "install the target again with rustup")?;
    // `__libc_version`, a C string of its own object file (`src/internal/version.c`).
    let is_version = |text: &&str| {
        let numbers: Vec<&str> = text.split('.').collect();
        numbers.len() == 3
            && numbers.iter().all(|it| it.parse::<u8>().is_ok())
            && numbers.first() == Some(&"1")
    };
    let texts = library.split(|byte| *byte == 0).filter_map(|text| str::from_utf8(text).ok());
    // The string begins its section, behind bytes of other kinds.
    let tail =
        |text: &'_ str| text.rsplit(|c: char| c != '.' && !c.is_ascii_digit()).next().map(ToOwned::to_owned);
    let found = texts.filter_map(tail).find(|text| is_version(&text.as_str()));
    found.context("the library contains no version").or_fail(attempted, "correct xtask/src/toolchain.rs")
}

fn ask(ws: &Workspace, doing: &str, args: &[&str]) -> Result<String> {
    let remedy = "install the toolchain that rust-toolchain.toml names: `rustup toolchain install <channel>`";
    Step::new("rustc", doing, remedy).current_dir(&ws.root).args(args).ask()
}

// === impl Part ===

impl Part {
    /// A path in the sysroot that exists if the part is installed.
    fn evidence(self) -> String {
        match self {
            Self::Rustfmt => "bin/rustfmt".to_owned(),
            Self::Clippy => "bin/clippy-driver".to_owned(),
            Self::RustSrc => "lib/rustlib/src/rust/library/Cargo.lock".to_owned(),
            Self::Musl => format!("lib/rustlib/{}/lib", musl_target()),
            Self::MuslOf(arch) => format!("lib/rustlib/{}/lib", arch.target()),
        }
    }

    /// The kind and name in rustup.
    fn rustup(self) -> (&'static str, String) {
        match self {
            Self::Rustfmt => ("component", "rustfmt".to_owned()),
            Self::Clippy => ("component", "clippy".to_owned()),
            Self::RustSrc => ("component", "rust-src".to_owned()),
            Self::Musl => ("target", musl_target()),
            Self::MuslOf(arch) => ("target", arch.target()),
        }
    }
}
