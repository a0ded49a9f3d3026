//! The Debian package for machines without Kubernetes: binaries, systemd unit, and their configuration.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::Args;

use crate::{
    commit::Commit,
    dist,
    failure::{Failure, OrFail as _},
    files,
    image::VERSION,
    oci::{Node, Tree},
    run::{Step, say},
    sbom,
    toolchain::Arch,
    tools::{self, Tool},
    workspace::Workspace,
};

/// The options of a package.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Architecture of the machines [default: this machine's]
    #[arg(long, value_enum)]
    arch: Option<Arch>,
}

// === impl Options ===

impl Options {
    /// A package for an architecture.
    pub(crate) fn of(arch: Arch) -> Self {
        Self { arch: Some(arch) }
    }
}

const TOOLS: &[Tool] = &[Tool::new("dpkg-deb", "dpkg")];
/// The sources of what is neither built nor documentation.
const SOURCES: &str = "deploy/debian";
const UNIT: &str = "deploy/systemd/ferrule-agent.service";
const CONFFILE: &str = "etc/ferrule/agent.toml";
const SCRIPTS: [&str; 3] = ["postinst", "postrm", "prerm"];

/// Builds everything, packs it into `target/dist/`, and returns the path of the package.
///
/// # Errors
/// If something does not build, or dpkg-deb refuses the files.
pub(crate) fn deb(ws: &Workspace, options: &Options) -> Result<PathBuf> {
    let Some(arch) = options.arch.or_else(Arch::native) else {
        return Err(Failure {
            attempted: "building a Debian package".to_owned(),
            why: format!("there are no packages for {}", std::env::consts::ARCH),
            remedy: "name an architecture with --arch".to_owned(),
        }
        .into());
    };
    tools::need(TOOLS)?;
    let commit = Commit::of(ws)?;
    let bill = sbom::generate(ws, VERSION, &commit.revision, &commit.time)?;
    dist::build_for(ws, arch)?;
    let folder = dist::folder(ws, arch);
    let binary = |name: &str| files::read(&folder.join(name), "build again");
    let binaries = [
        ("usr/bin/ferrule-agent", binary("ferrule-agent")?),
        ("usr/bin/ferrulectl", binary("ferrulectl")?),
        // Where Debian's container runtimes look for plugins.
        ("usr/lib/cni/ferrule", binary("ferrule")?),
    ];
    let mut tree = tree(ws, arch, binaries)?;
    tree.insert("usr/share/doc/ferrule/sbom.spdx.json".to_owned(), Node::File(bill.into_bytes()));
    let output = ws.dist().join(format!("ferrule_{VERSION}_{}.deb", arch.oci()));
    pack(&ws.root.join("target/deb").join(arch.oci()), &tree, &output, commit.seconds)?;
    println!("{}", ws.show(&output));
    Ok(output)
}

/// The files of the package, those for dpkg below `DEBIAN`.
fn tree<'a>(
    ws: &Workspace,
    arch: Arch,
    binaries: impl IntoIterator<Item = (&'a str, Vec<u8>)>,
) -> Result<Tree> {
    let read = |path: &str| files::read(&ws.root.join(path), "restore it from the repository");
    let source = |name: &str| read(&format!("{SOURCES}/{name}"));
    let mut tree = Tree::new();
    for (path, content) in binaries {
        tree.insert(path.to_owned(), Node::Executable(content));
    }
    let size: usize = tree.values().map(|node| node.content().len()).sum();
    let unit = String::from_utf8_lossy(&read(UNIT)?).replace("/usr/local/bin/", "/usr/bin/");
    let control = String::from_utf8_lossy(&source("control")?)
        .replace("${VERSION}", VERSION)
        .replace("${ARCHITECTURE}", arch.oci())
        .replace("${INSTALLED_SIZE}", &size.div_ceil(1024).to_string());
    for (path, content) in [
        ("DEBIAN/control", control.into_bytes()),
        ("DEBIAN/conffiles", format!("/{CONFFILE}\n").into_bytes()),
        (CONFFILE, source("agent.toml")?),
        ("lib/systemd/system/ferrule-agent.service", unit.into_bytes()),
        ("usr/share/doc/ferrule/copyright", source("copyright")?),
        ("usr/share/doc/ferrule/CHANGELOG.md", read("CHANGELOG.md")?),
        ("usr/share/doc/ferrule/install.md", read("docs/install.md")?),
        ("usr/share/doc/ferrule/configure.md", read("docs/configure.md")?),
        ("usr/share/doc/ferrule/monitor.md", read("docs/monitor.md")?),
        ("usr/share/doc/ferrule/healing.md", read("docs/healing.md")?),
        ("usr/share/doc/ferrule/settings.md", read("docs/settings.md")?),
        ("usr/share/doc/ferrule/runbooks.md", read("docs/runbooks.md")?),
        ("usr/share/doc/ferrule/examples/rules.yaml", read("deploy/monitoring/rules.yaml")?),
        ("usr/share/doc/ferrule/examples/dashboard.json", read("deploy/monitoring/dashboard.json")?),
        ("usr/share/doc/ferrule/examples/05-ferrule.conflist", source("05-ferrule.conflist")?),
    ] {
        tree.insert(path.to_owned(), Node::File(content));
    }
    for name in SCRIPTS {
        tree.insert(format!("DEBIAN/{name}"), Node::Executable(source(name)?));
    }
    Ok(tree)
}

/// Writes the files into a folder and packs them. Times are that of the commit, so that the same commit makes
/// the same bytes.
fn pack(folder: &Path, tree: &Tree, output: &Path, seconds: u64) -> Result<()> {
    let doing = format!("writing the files of the package to {}", folder.display());
    let remedy = "free space, and check the permissions of target/";
    let write = || -> std::io::Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        for (path, node) in tree {
            let path: PathBuf = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            // The modes of new folders are those that the umask allows.
            for folder in path.ancestors().skip(1).take_while(|it| it.starts_with(folder)) {
                fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
            }
            fs::write(&path, node.content())?;
            let mode = if matches!(node, Node::Executable(_)) { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    };
    write().or_fail(doing, remedy)?;
    say(format!("packing {}", output.display()));
    Step::new("dpkg-deb", "packing the Debian package", "see what dpkg-deb names")
        .env("SOURCE_DATE_EPOCH", seconds.to_string())
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([folder, output])
        .ask()
        .map(drop)
}

#[cfg(test)]
mod installed;
#[cfg(test)]
mod tests;
