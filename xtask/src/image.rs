//! The image that runs on every node.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    dist,
    failure::OrFail as _,
    files,
    oci::{Image, Node, Tree},
    run::{Step, say},
    workspace::Workspace,
};

/// The release that is being built.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds everything and packs it as an image, into `output` or `target/dist/`.
///
/// # Errors
/// If something does not build, or the image cannot be written.
pub(crate) fn image(ws: &Workspace, output: Option<PathBuf>) -> Result<()> {
    let revision = revision(ws)?;
    dist::build(ws)?;
    let mut root = Tree::new();
    for name in dist::names() {
        // The agent installs the shim that lies beside it.
        let content = files::read(&ws.dist().join(name), "build again")?;
        root.insert(format!("usr/bin/{name}"), Node::Executable(content));
    }
    // Runtimes name network namespaces by /var/run/netns, and mount them in /run/netns.
    root.insert("var/run".to_owned(), Node::Link("/run"));
    let image = Image {
        name: "ferrule".to_owned(),
        version: VERSION.to_owned(),
        revision,
        entrypoint: "/usr/bin/ferrule-agent".to_owned(),
        root,
    };
    let packed = image.pack().or_fail("packing the image", "see which path it names")?;
    let path = output.unwrap_or_else(|| ws.dist().join(format!("ferrule-{VERSION}.tar")));
    files::replace_if_changed(&path, &packed.archive)?;
    say(format!("ferrule:{VERSION} of commit {}", image.revision));
    println!("{} {} bytes {}", ws.show(&path), packed.archive.len(), packed.digest);
    Ok(())
}

/// The commit that is checked out, and whether there is more than it.
fn revision(ws: &Workspace) -> Result<String> {
    let git = |doing: &str, args: &[&str]| {
        let remedy = "an image says which commit it is of: build it in a git checkout that belongs to you";
        Step::new("git", doing, remedy).current_dir(&ws.root).args(args).ask()
    };
    let commit = git("asking git for the commit", &["rev-parse", "HEAD"])?;
    let changes = git("asking git for changes", &["status", "--porcelain"])?;
    let dirty = if changes.is_empty() { "" } else { "-dirty" };
    Ok(format!("{}{dirty}", commit.trim_end()))
}
