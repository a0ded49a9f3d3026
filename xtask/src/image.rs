//! The image that runs on every node.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::{
    commit::Commit,
    dist,
    failure::OrFail as _,
    files,
    oci::{CREATED, Image, Node, Tree},
    progress::Stages,
    run::say,
    sbom,
    toolchain::{self, Arch},
    workspace::Workspace,
};

/// The options of an image.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Output file [default: target/dist/ferrule-<version>.tar; with --arch, the architecture follows]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Architecture of the nodes; `all`: one image with an index of them [default: this machine's]
    #[arg(long, value_enum)]
    arch: Option<Platforms>,
}

/// The platforms of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Platforms {
    Amd64,
    Arm64,
    All,
}

// === impl Options ===

impl Options {
    /// One image for all architectures, in this file.
    pub(crate) fn for_all(output: PathBuf) -> Self {
        Self { output: Some(output), arch: Some(Platforms::All) }
    }
}

/// The release that is being built.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where images keep the bill of materials.
const SBOM: &str = "usr/share/doc/ferrule/sbom.spdx.json";

/// Builds everything and packs it as an image, into the output or `target/dist/`.
///
/// # Errors
/// If something does not build, or the image cannot be written.
pub(crate) fn image(ws: &Workspace, options: Options) -> Result<()> {
    let mut stages = Stages::of(3);
    let commit = Commit::of(ws)?;
    let listing = "listing what is linked";
    let bill = stages.run(listing, || sbom::generate(ws, VERSION, &commit.revision, &commit.time))?;
    let native = Arch::native().into_iter().collect();
    let archs: Vec<Arch> = match options.arch {
        None => native,
        Some(Platforms::Amd64) => vec![Arch::Amd64],
        Some(Platforms::Arm64) => vec![Arch::Arm64],
        Some(Platforms::All) => Arch::ALL.into(),
    };
    let mut roots = Vec::new();
    stages.run("building the binaries", || {
        for arch in archs {
            dist::build_for(ws, arch)?;
            roots.push((arch, root(ws, arch, &bill)?));
        }
        Ok(())
    })?;
    let image = Image {
        name: "ferrule".to_owned(),
        version: VERSION.to_owned(),
        entrypoint: "/usr/bin/ferrule-agent".to_owned(),
        labels: labels(&commit, &toolchain::release(ws)?),
        roots,
    };
    let packing = "packing the image";
    let packed = stages.run(packing, || image.pack().or_fail(packing, "see which path it names"))?;
    let suffix = options.arch.and_then(|it| it.to_possible_value()).map(|it| format!("-{}", it.get_name()));
    let name = format!("ferrule-{VERSION}{}", suffix.unwrap_or_default());
    files::replace_if_changed(&ws.dist().join(format!("ferrule-{VERSION}.spdx.json")), bill.as_bytes())?;
    let path = options.output.unwrap_or_else(|| ws.dist().join(format!("{name}.tar")));
    files::replace_if_changed(&path, &packed.archive)?;
    say(format!("ferrule:{VERSION} of commit {}", commit.revision));
    println!("{} {} bytes {}", ws.show(&path), packed.archive.len(), packed.digest);
    Ok(())
}

fn root(ws: &Workspace, arch: Arch, bill: &str) -> Result<Tree> {
    let mut root = Tree::new();
    for name in dist::names() {
        // The agent installs the shim that lies beside it.
        let content = files::read(&dist::folder(ws, arch).join(name), "build again")?;
        root.insert(format!("usr/bin/{name}"), Node::Executable(content));
    }
    root.insert(SBOM.to_owned(), Node::File(bill.as_bytes().to_vec()));
    // Runtimes name network namespaces by /var/run/netns, and mount them in /run/netns.
    root.insert("var/run".to_owned(), Node::Link("/run"));
    Ok(root)
}

/// What the image is, and what it was built from and with.
fn labels(commit: &Commit, compiler: &str) -> BTreeMap<String, String> {
    [
        ("org.opencontainers.image.title", "ferrule"),
        ("org.opencontainers.image.description", "CNI agent for Kubernetes that forwards in eBPF"),
        ("org.opencontainers.image.licenses", "Apache-2.0 AND (MIT OR GPL-2.0-only)"),
        ("org.opencontainers.image.version", VERSION),
        ("org.opencontainers.image.revision", &commit.revision),
        (CREATED, &commit.time),
        ("dev.ferrule.build.compiler", compiler),
        ("dev.ferrule.build.command", "cargo xtask image"),
        ("dev.ferrule.sbom", &format!("/{SBOM}")),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}
