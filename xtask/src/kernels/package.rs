//! Kernels as Debian packages: chosen among those that apt offers, fetched and unpacked below
//! `target/kernels`.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{
    failure::{Failure, OrFail as _},
    run::{Step, say},
    tools,
    workspace::Workspace,
};

/// A kernel and its modules, unpacked.
#[derive(Debug)]
pub(super) struct Package {
    /// As `uname -r` prints it.
    pub(super) release: String,
    /// What the package would install below the root.
    pub(super) files: PathBuf,
    /// For what belongs to the kernel's machine.
    pub(super) folder: PathBuf,
}

/// Names of packages: this, the release, and [`SUFFIX`]. Signatures matter to firmware only.
const PREFIX: &str = "linux-image-";
const SUFFIX: &str = "-unsigned";
const FETCH: &str = "check the network and apt's sources, or name a package by --deb FILE";

/// The newest kernel of each series, and those of files.
///
/// # Errors
/// If apt does not offer a series, or a package cannot be fetched or unpacked.
pub(super) fn choose(ws: &Workspace, series: &[String], debs: &[PathBuf]) -> Result<Vec<Package>> {
    let root = ws.root.join("target/kernels");
    let mut packages = Vec::new();
    for deb in debs {
        packages.push(unpack(&root, deb)?);
    }
    if series.is_empty() && !debs.is_empty() {
        return Ok(packages);
    }
    tools::apt_get("reading Debian's package lists", FETCH).arg("update").run()?;
    let listed = Step::new("apt-cache", "asking apt for its kernels", FETCH)
        .args(["search", "--names-only", "^linux-image-[0-9].*-amd64-unsigned$"])
        .ask()?;
    let offered = newest(&listed);
    for wanted in series {
        if !offered.contains_key(wanted) {
            let all: Vec<&str> = offered.keys().map(String::as_str).collect();
            let why = format!("apt offers no kernel {wanted}, but {}", all.join(", "));
            let remedy = "name one of these, or fetch the package and name the file by --deb".to_owned();
            return Err(Failure { attempted: format!("fetching the kernel {wanted}"), why, remedy }.into());
        }
    }
    for (_, release) in offered.into_iter().filter(|(it, _)| series.is_empty() || series.contains(it)) {
        packages.push(unpack(&root, &fetch(&root, &release)?)?);
    }
    Ok(packages)
}

/// The newest release of each series, such as `6.1`, of what `apt-cache search` prints. Flavours lack drivers
/// that the emulated machine needs, or are no kernels of nodes.
fn newest(listed: &str) -> BTreeMap<String, String> {
    let mut newest = BTreeMap::<String, String>::new();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    for release in names.filter_map(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)) {
        if release.contains("-cloud") || release.contains("-rt") {
            continue;
        }
        let Some(series) = release.match_indices('.').nth(1).and_then(|(at, _)| release.get(..at)) else {
            continue;
        };
        let known = newest.entry(series.to_owned()).or_default();
        if numbers(release) > numbers(known) {
            release.clone_into(known);
        }
    }
    newest
}

fn numbers(release: &str) -> Vec<u32> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|it| it.parse().ok()).collect()
}

/// Fetches a kernel's package, unless it is there.
fn fetch(root: &Path, release: &str) -> Result<PathBuf> {
    let name = format!("{PREFIX}{release}{SUFFIX}");
    let found = || {
        let files = fs::read_dir(root).ok()?.flatten();
        files.map(|file| file.path()).find(|path| file_name(path).starts_with(&format!("{name}_")))
    };
    if let Some(deb) = found() {
        return Ok(deb);
    }
    let doing = format!("fetching {name}");
    fs::create_dir_all(root).or_fail(&doing, "make room on the disk")?;
    tools::apt_get(&doing, FETCH).args(["download", &name]).current_dir(root).run()?;
    found().ok_or("apt-get has left no package").or_fail(doing, FETCH)
}

/// Unpacks a package, unless that is done, and sorts its modules.
fn unpack(root: &Path, deb: &Path) -> Result<Package> {
    let remedy = "name a package linux-image-*-amd64-unsigned_*.deb of Debian";
    let name = file_name(deb);
    let release = name.strip_prefix(PREFIX).and_then(|rest| rest.split('_').next());
    let release = release
        .ok_or("the file's name does not begin with linux-image-")
        .or_fail(format!("reading {}", deb.display()), remedy)?;
    let release = release.strip_suffix(SUFFIX).unwrap_or(release).to_owned();
    let folder = root.join(&release);
    let package = Package { files: folder.join("files"), folder, release };
    // Written last.
    if package.files.join("lib/modules").join(&package.release).join("modules.dep").is_file() {
        say(format!("{} is unpacked", package.release));
        return Ok(package);
    }
    fs::create_dir_all(&package.files).or_fail(format!("unpacking {name}"), "make room on the disk")?;
    Step::new("dpkg-deb", format!("unpacking {name}"), remedy)
        .arg("--extract")
        .args([deb, &package.files])
        .run()?;
    // Since Debian 13, packages have their modules in /usr/lib, which /lib leads to on an installed system.
    let lib = package.files.join("lib");
    if !lib.exists() {
        symlink("usr/lib", &lib).or_fail(format!("unpacking {name}"), "make room on the disk")?;
    }
    Step::new("depmod", format!("sorting the modules of {}", package.release), remedy)
        .arg("--basedir")
        .arg(&package.files)
        .arg(&package.release)
        .run()?;
    Ok(package)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_of_each_series_is_chosen_without_flavours() {
        let listed = "\
linux-image-6.1.0-9-amd64-unsigned - Linux 6.1 for 64-bit PCs
linux-image-6.1.0-56-amd64-unsigned - Linux 6.1 for 64-bit PCs
linux-image-6.1.0-57-cloud-amd64-unsigned - Linux 6.1 for x86-64 cloud
linux-image-6.1.0-57-rt-amd64-unsigned - Linux 6.1 for 64-bit PCs, PREEMPT_RT
linux-image-6.12.111+deb12-amd64-unsigned - Linux 6.12 for 64-bit PCs
linux-image-amd64 - Linux for 64-bit PCs (meta-package)
";
        let expected = [("6.1", "6.1.0-56-amd64"), ("6.12", "6.12.111+deb12-amd64")];
        let expected = expected.map(|(series, release)| (series.to_owned(), release.to_owned()));
        assert_eq!(newest(listed), BTreeMap::from(expected));
    }
}
