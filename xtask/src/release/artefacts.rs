//! What users get of a release, in one folder with a list of sums.

use std::{fs, io::Write as _, path::Path};

use anyhow::Result;
use flate2::{Compression, GzBuilder};

use super::version::Version;
use crate::{
    chart, deb, dist,
    failure::{Failure, OrFail as _},
    files, helm, image, kustomize,
    oci::{self, Node, Tree},
    run::say,
    toolchain::Arch,
    workspace::Workspace,
};

const SUMS: &str = "SHA256SUMS";
/// The rendered chart, and what its name gets behind the version.
const MANIFESTS: [(&str, &str); 3] = [
    ("deploy/kustomize/base/ferrule.yaml", ""),
    ("deploy/kustomize/kuryr/kuryr.yaml", "-kuryr"),
    ("deploy/kustomize/uninstall/agent.yaml", "-uninstall"),
];

/// What a monitoring system reads.
const MONITORING: [&str; 3] = ["rules.yaml", "podmonitor.yaml", "dashboard.json"];

/// The names of all files, sorted.
pub(super) fn names(version: Version) -> Vec<String> {
    let mut names = vec![image_name(version), chart_name(version), bill_name(version), notes_name(version)];
    names.extend([SUMS.to_owned(), monitoring_name(version)]);
    names.extend(Arch::ALL.map(|arch| binaries_name(version, arch)));
    names.extend(Arch::ALL.map(|arch| deb_name(version, arch)));
    names.extend(MANIFESTS.map(|(_, suffix)| manifest_name(version, suffix)));
    names.sort();
    names
}

fn image_name(version: Version) -> String {
    format!("ferrule-{version}-image.tar")
}

/// As `helm package` names it.
fn chart_name(version: Version) -> String {
    format!("ferrule-{version}.tgz")
}

fn bill_name(version: Version) -> String {
    format!("ferrule-{version}.spdx.json")
}

fn notes_name(version: Version) -> String {
    format!("ferrule-{version}-notes.md")
}

fn monitoring_name(version: Version) -> String {
    format!("{}.tar.gz", monitoring_root(version))
}

fn monitoring_root(version: Version) -> String {
    format!("ferrule-{version}-monitoring")
}

fn binaries_name(version: Version, arch: Arch) -> String {
    format!("ferrule-{version}-linux-{}.tar.gz", arch.oci())
}

fn deb_name(version: Version, arch: Arch) -> String {
    format!("ferrule_{version}_{}.deb", arch.oci())
}

fn manifest_name(version: Version, suffix: &str) -> String {
    format!("ferrule-{version}{suffix}.yaml")
}

/// Builds all files into an empty folder.
///
/// # Errors
/// If something does not build, or helm does not take the chart.
pub(super) fn build(ws: &Workspace, folder: &Path, notes: &str, version: Version) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).or_fail(format!("emptying {}", folder.display()), "remove it")?;
    }
    let write =
        |name: String, content: &[u8]| files::replace_if_changed(&folder.join(name), content).map(drop);
    image::image(ws, image::Options::for_all(folder.join(image_name(version))))?;
    let bill = files::read(&ws.dist().join(bill_name(version)), "build again")?;
    write(bill_name(version), &bill)?;
    for arch in Arch::ALL {
        files::copy(&deb::deb(ws, &deb::Options::of(arch))?, &folder.join(deb_name(version, arch)))?;
        write(binaries_name(version, arch), &binaries(ws, version, arch)?)?;
    }
    say("packing the chart");
    let chart = folder.join(chart_name(version));
    files::replace_if_changed(&chart, &pack(&chart_files(ws)?)?)?;
    helm::accept(ws, &chart)?;
    for (manifest, suffix) in MANIFESTS {
        let content = files::read(&ws.root.join(manifest), "run `cargo xtask chart`")?;
        write(manifest_name(version, suffix), &content)?;
    }
    write(monitoring_name(version), &pack(&monitoring(ws, version)?)?)?;
    write(notes_name(version), notes.as_bytes())?;
    let sums = sums(folder)?;
    write(SUMS.to_owned(), sums.as_bytes())?;
    check_names(folder, version)
}

/// The three static binaries of an architecture, for those who copy them by hand.
fn binaries(ws: &Workspace, version: Version, arch: Arch) -> Result<Vec<u8>> {
    let root = format!("ferrule-{version}-linux-{}", arch.oci());
    let mut tree = Tree::new();
    for name in dist::names() {
        let content = files::read(&dist::folder(ws, arch).join(name), "build again")?;
        tree.insert(format!("{root}/{name}"), Node::Executable(content));
    }
    for name in ["LICENSE", super::changelog::FILE] {
        let content = files::read(&ws.root.join(name), "restore it from the repository")?;
        tree.insert(format!("{root}/{name}"), Node::File(content));
    }
    pack(&tree)
}

/// Alerts, a PodMonitor and a dashboard, for those who do not use the chart's.
fn monitoring(ws: &Workspace, version: Version) -> Result<Tree> {
    let folder = ws.root.join(kustomize::MONITORING);
    let mut tree = Tree::new();
    for name in MONITORING {
        let content = files::read(&folder.join(name), "restore it from the repository")?;
        tree.insert(format!("{}/{name}", monitoring_root(version)), Node::File(content));
    }
    Ok(tree)
}

/// The files of the chart, below its name, as helm packs them.
fn chart_files(ws: &Workspace) -> Result<Tree> {
    let folder = ws.root.join(chart::FOLDER);
    let mut tree = Tree::new();
    for below in ["", "templates/"] {
        let listed = fs::read_dir(folder.join(below));
        let listed =
            listed.or_fail(format!("listing {}", folder.display()), "restore it from the repository")?;
        for path in listed.flatten().map(|it| it.path()).filter(|it| it.is_file()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            tree.insert(
                format!("ferrule/{below}{name}"),
                Node::File(files::read(&path, "restore it from the repository")?),
            );
        }
    }
    Ok(tree)
}

/// A compressed archive. Times are fixed, so that the same files make the same bytes.
fn pack(tree: &Tree) -> Result<Vec<u8>> {
    let attempted = "packing an archive";
    let archive = oci::archive(tree).or_fail(attempted, "see which path it names")?;
    let mut packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    packed.write_all(&archive).or_fail(attempted, "free memory")?;
    packed.finish().or_fail(attempted, "free memory")
}

/// The sums of all files, for `sha256sum --check`.
fn sums(folder: &Path) -> Result<String> {
    let mut sums = String::new();
    for name in listed(folder)? {
        let digest = oci::digest(&files::read(&folder.join(&name), "build again")?);
        sums.push_str(&format!("{}  {name}\n", digest.trim_start_matches("sha256:")));
    }
    Ok(sums)
}

/// Fails unless the folder has what [`names`] has promised.
fn check_names(folder: &Path, version: Version) -> Result<()> {
    let (found, expected) = (listed(folder)?, names(version));
    if found == expected {
        return Ok(());
    }
    Err(Failure {
        attempted: format!("comparing the files in {}", folder.display()),
        why: format!("found {found:?}, expected {expected:?}"),
        remedy: "let `names` and `build` in xtask/src/release/artefacts.rs agree".to_owned(),
    }
    .into())
}

fn listed(folder: &Path) -> Result<Vec<String>> {
    let listed = fs::read_dir(folder).or_fail(format!("listing {}", folder.display()), "build again")?;
    let mut names: Vec<String> =
        listed.flatten().map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use crate::run::Step;

    use super::*;

    fn version() -> Version {
        image::VERSION.parse().unwrap()
    }

    #[test]
    fn the_packed_chart_is_the_folder_and_the_same_bytes_each_time() {
        let ws = Workspace::find().unwrap();
        let files = chart_files(&ws).unwrap();
        assert!(
            files.contains_key("ferrule/Chart.yaml") && files.contains_key("ferrule/templates/_helpers.tpl")
        );
        let packed = pack(&files).unwrap();
        assert!(packed == pack(&chart_files(&ws).unwrap()).unwrap());
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("chart.tgz"), packed).unwrap();
        let tar = |args: &[&str]| Step::new("tar", "unpacking", "").current_dir(dir.path()).args(args).ask();
        tar(&["-xzf", "chart.tgz"]).unwrap();
        for (path, node) in &files {
            assert!(fs::read(dir.path().join(path)).unwrap() == node.content(), "{path}");
        }
        let differ = Step::new("diff", "comparing", "").arg("-r").arg(dir.path().join("ferrule"));
        assert_eq!(differ.arg(ws.root.join(chart::FOLDER)).ask().unwrap(), "");
    }

    #[test]
    fn users_get_every_file_for_monitoring_but_the_tests_of_it() {
        let ws = Workspace::find().unwrap();
        let packed: Vec<String> = monitoring(&ws, version()).unwrap().into_keys().collect();
        let there = listed(&ws.root.join(kustomize::MONITORING)).unwrap();
        let expected = there.iter().filter(|it| *it != "rules-test.yaml");
        let expected: Vec<String> =
            expected.map(|it| format!("ferrule-{}-monitoring/{it}", version())).collect();
        assert_eq!(packed, expected);
        assert!(names(version()).contains(&format!("ferrule-{}-monitoring.tar.gz", version())));
    }

    #[test]
    fn sums_are_those_that_sha256sum_checks_and_a_missing_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        for name in names(version()).iter().filter(|it| *it != SUMS) {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::write(dir.path().join(SUMS), sums(dir.path()).unwrap()).unwrap();
        let check =
            || Step::new("sha256sum", "checking", "").current_dir(dir.path()).args(["-c", SUMS]).ask();
        assert_eq!(check().unwrap().lines().count(), names(version()).len() - 1);
        check_names(dir.path(), version()).unwrap();
        fs::remove_file(dir.path().join(chart_name(version()))).unwrap();
        assert!(check().is_err() && check_names(dir.path(), version()).is_err());
    }
}
