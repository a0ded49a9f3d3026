//! The system tests that run on other kernels: which, for how long at most, and their binaries.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use serde::Deserialize;

use crate::{
    debug, dist, ebpf,
    failure::OrFail as _,
    progress::{self, say},
    workspace::Workspace,
};

/// Binaries of tests, built, and what they need from this machine.
#[derive(Debug)]
pub(super) struct Suite {
    pub(super) entries: Vec<Entry>,
    /// Where the tests run: the package that they belong to.
    pub(super) folder: PathBuf,
    /// Variables of the tests' environment.
    pub(super) environment: Vec<(&'static str, PathBuf)>,
}

/// One binary of tests.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Parts of the names of the tests to run. Empty: all.
    pub(super) filters: Vec<String>,
    pub(super) path: PathBuf,
}

/// What touches most of the kernel, by file of `tests/tests/`, and parts of the names of tests. The emulator
/// needs a minute for a test of several nodes.
const DEFAULT: [(&str, &[&str]); 6] = [
    ("kernel", &[]),
    ("packets", &["budget::verified", "vxlan::", "to_uplink::", "uplink::", "node_tunnel::", "flow_stats::"]),
    ("connectivity", &[]),
    (
        "nodes",
        &["pods_reach_a_neighbours_pods", "the_stack_sees_no_packet", "the_programs_spare", "an_uninstalled"],
    ),
    ("tunnel", &["arrive::", "underlay::"]),
    ("policy", &["a_policy_cuts", "pods_of_other_nodes", "labels_of_pods"]),
];

/// What cargo says of a binary that it has built.
#[derive(Debug, Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

// === impl Suite ===

impl Suite {
    /// Builds the tests `wanted`, in the form `NAME` or `NAME:FILTER`, and what they test. Without any, those
    /// of [`DEFAULT`].
    ///
    /// # Errors
    /// If something does not build, or there is no such test.
    pub(super) fn build(ws: &Workspace, wanted: &[String]) -> Result<Self> {
        ebpf::build(ws)?;
        let binaries: Vec<&str> = dist::names().collect();
        debug::build(ws, "building the binaries", &binaries).run()?;
        // The tests start these too.
        debug::build(ws, "building the tests' programs", &["apiserver", "pod"]).run()?;
        let doing = "building the system tests";
        say(doing);
        let build = debug::test(ws, doing, "repair what the compiler names").args([
            "--test",
            "*",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ]);
        let told = progress::during(doing, || build.ask())?;
        let built = executables(&told);
        let mut entries = Vec::new();
        for (name, filters) in chosen(wanted) {
            let path = built.get(&name).ok_or_else(|| format!("tests/tests/ has no test {name}"));
            let path = path.or_fail(doing, "name a file of tests/tests/, or a folder")?.clone();
            entries.push(Entry { name, filters, path });
        }
        let environment = dist::told(ws, &debug::folder(ws));
        Ok(Self { entries, folder: ws.root.join("tests"), environment: environment.into() })
    }
}

/// Tests and filters, each test once.
fn chosen(wanted: &[String]) -> Vec<(String, Vec<String>)> {
    if wanted.is_empty() {
        let owned = |filters: &[&str]| filters.iter().map(|it| (*it).to_owned()).collect();
        return DEFAULT.iter().map(|(name, filters)| ((*name).to_owned(), owned(filters))).collect();
    }
    let mut chosen = Vec::<(String, Vec<String>)>::new();
    for one in wanted {
        let (name, filter) = one.split_once(':').map_or((one.as_str(), None), |(name, it)| (name, Some(it)));
        let filters = filter.map(ToOwned::to_owned);
        match chosen.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => known.extend(filters),
            None => chosen.push((name.to_owned(), filters.into_iter().collect())),
        }
    }
    chosen
}

/// The binaries of system tests, by name, of what cargo prints.
fn executables(told: &str) -> BTreeMap<String, PathBuf> {
    let artifacts = told.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    let tests = artifacts.filter(|it| it.target.kind == ["test"]);
    tests.filter_map(|it| Some((it.target.name, it.executable?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_one_test_are_joined() {
        let wanted = ["nodes:ways::a", "kernel", "nodes:paths::"].map(ToOwned::to_owned);
        let filters = vec!["ways::a".to_owned(), "paths::".to_owned()];
        assert_eq!(chosen(&wanted), [("nodes".to_owned(), filters), ("kernel".to_owned(), Vec::new())]);
        assert_eq!(chosen(&[]).len(), DEFAULT.len());
    }

    #[test]
    fn only_binaries_of_system_tests_are_taken() {
        let told = r#"
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"one"},"executable":"/x/one"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"two"},"executable":"/x/two"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(executables(told), BTreeMap::from([("two".to_owned(), "/x/two".into())]));
    }

    #[test]
    fn the_default_tests_exist() {
        let tests = Workspace::find().unwrap().root.join("tests/tests");
        for (name, _) in DEFAULT {
            let exists = tests.join(name).is_dir() || tests.join(format!("{name}.rs")).is_file();
            assert!(exists, "{name}");
        }
    }
}
