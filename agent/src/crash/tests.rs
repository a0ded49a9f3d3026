//! Searches the sources for changes of the kernel or of files without a crash point.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::Step;

/// A call with effects that outlive the agent, and without a crash point after it.
#[derive(Debug, PartialEq, Eq)]
struct Unmarked {
    line: usize,
    text: String,
}

/// Patterns of calls whose effects outlive the process.
const CHANGES: [&str; 21] = [
    ".send_to(",
    "ethtool(",
    "fs::write(",
    "fs::rename(",
    "fs::remove_",
    "fs::create_dir",
    "fs::copy(",
    "fs::hard_link(",
    "symlink(",
    "set_permissions(",
    ".set_len(",
    ".write_all(",
    ".create(",
    ".create_new(",
    "UnixListener::bind(",
    "loader.load(",
    "program.load(",
    ".pin(",
    "mount(",
    // eBPF maps: the fields and variables that hold an open map have this name.
    " self.map.insert(",
    " map.insert(",
];
/// The same, after any prefix in the line.
const MAP_CHANGES: [&str; 1] = ["self.map.remove("];
const POINT: &str = "crash::point(";

/// File, part of the line, and why the change needs no crash point.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("crash.rs", "", "part of the crash points themselves"),
    ("install.rs", "", "unit tests cover partial files, and no pod depends on them"),
    ("watch/checkpoint_log.rs", "", "a lost checkpoint only costs a relist"),
    ("durable/directory.rs", "self.write_with(", "the called function has the point"),
    ("registry/directory.rs", "File::options()", "the file is only a lock"),
    ("registry/directory.rs", "lock.set_len(0)", "the PID in the file is for operators"),
    ("reconcile/deferred.rs", "File::options()", "the file is only a lock"),
    ("plug/carrier.rs", "unsafe { ethtool(", "the kernel does the same a little later"),
    (
        "dataplane/loading.rs",
        "program.load()",
        "a program on no interface and without a pin dies with the agent",
    ),
    ("dataplane/counted_flows.rs", "self.map.remove(", "the next agent removes the counted flows, too"),
    ("dataplane/verified.rs", "self.pin(ebpf)", "the called function has the point"),
    ("dataplane/maps/table.rs", "let added =", "the point is in Pressure::added"),
    ("app/uninstall.rs", "fs::remove_", "a removal of everything is repeated as a whole"),
    (
        "plug/netlink.rs",
        ".send_to(&buffer, &SocketAddr::new(0, 0), 0)",
        "the point follows the acknowledgements",
    ),
    ("dataplane/pins.rs", "match fs::remove_dir(bpf_dir)", "a removal of everything is repeated as a whole"),
    ("dataplane/pins.rs", "fs::remove_file(entry", "a removal of everything is repeated as a whole"),
    ("dataplane/pins.rs", "fs::remove_dir_all(entry", "a removal of everything is repeated as a whole"),
    ("dataplane/maps/table.rs", "pressure.removed(", "the called function has the point"),
    ("dataplane/maps/vif_counters.rs", "pressure.removed(", "the called function has the point"),
    ("dataplane/maps/vif_counters.rs", "let added =", "the point is in Pressure::added"),
    ("dataplane/maps/link_counters.rs", "pressure.removed(", "the called function has the point"),
    ("dataplane/maps/policy/hash.rs", "let added =", "the point is in Pressure::added"),
    ("dataplane/maps/policy/hash.rs", "pressure.removed(", "the called function has the point"),
    ("dataplane/maps/policy/trie.rs", "let added =", "the point is in Pressure::added"),
    ("dataplane/maps/policy/trie.rs", "pressure.removed(", "the called function has the point"),
    ("dataplane/maps/nodes.rs", "let added =", "the point is in Pressure::added"),
    ("dataplane/maps/nodes.rs", "pressure.removed(", "the called function has the point"),
    ("dataplane/maps/underlay.rs", "let added =", "the point is in Pressure::added"),
    ("dataplane/maps/underlay.rs", "pressure.removed(", "the called function has the point"),
    ("dataplane/bpf.rs", ".set_len(found)", "the length of a vector"),
];

#[test]
fn a_crash_point_follows_every_change_of_the_kernel_or_of_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    for file in sources(&root) {
        let name = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        for Unmarked { line, text } in unmarked(&fs::read_to_string(&file).unwrap()) {
            let is_it = |(of, part, _): &&(&str, &str, &str)| *of == name && text.contains(part);
            match EXCEPTIONS.iter().position(|it| is_it(&it)) {
                Some(number) => drop(used.insert(number)),
                None => found.push(format!("\n    agent/src/{name}:{line}: {text}")),
            }
        }
    }
    assert!(
        found.is_empty(),
        "no crash::point(Step::…) follows these changes:{}\n\
         Add one, with a new step in agent/src/crash.rs if no step fits; or an exception here, with the reason.",
        found.concat()
    );
    let idle: Vec<_> = EXCEPTIONS.iter().enumerate().filter(|(number, _)| !used.contains(number)).collect();
    assert!(idle.is_empty(), "these exceptions match no source: {idle:?}");
}

#[test]
fn every_step_is_used_and_has_a_unique_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let all: String = sources(&root).iter().map(|file| product(&fs::read_to_string(file).unwrap())).collect();
    let mut names = BTreeSet::new();
    for step in Step::ALL {
        assert!(all.contains(&format!("{POINT}Step::{step:?})")), "{step:?} is never used");
        assert!(names.insert(step.name()), "{} names two steps", step.name());
    }
}

#[test]
fn a_change_without_a_crash_point_is_found() {
    let one = "fn f() {\n    fs::rename(a, b)?;\n}\nfn g() {\n    crash::point(Step::A);\n}\n";
    assert_eq!(unmarked(one), [Unmarked { line: 2, text: "fs::rename(a, b)?;".to_owned() }]);
    let first = "fn f() {\n    fs::write(a, b)?;\n    fs::rename(a, b)?;\n    crash::point(Step::A);\n}\n";
    assert_eq!(unmarked(first), [Unmarked { line: 2, text: "fs::write(a, b)?;".to_owned() }]);
    let marked = "fn f() {\n    // fs::rename(a, b) is atomic.\n    fs::rename(a, b)?;\n    crash::point(Step::A);\n}\n";
    assert_eq!(unmarked(marked), []);
    assert_eq!(unmarked(&format!("#[cfg(test)]\nmod tests {{\n{one}}}\n")), []);
}

/// Searches one file. A function ends where the next one begins.
fn unmarked(text: &str) -> Vec<Unmarked> {
    let mut found = Vec::new();
    let mut last: Option<Unmarked> = None;
    for (line, text) in (1..).zip(product(text).lines()) {
        let text = text.trim();
        if text.starts_with("//") {
            continue;
        }
        if text.contains(POINT) {
            last = None;
        }
        let changes = CHANGES.iter().chain(&MAP_CHANGES).any(|change| text.contains(change));
        let begins = text.split(['(', '<']).next().is_some_and(|start| start.split(' ').any(|it| it == "fn"));
        if changes || begins {
            found.extend(last.take());
        }
        if changes && !begins {
            last = Some(Unmarked { line, text: text.to_owned() });
        }
    }
    found.extend(last);
    found
}

/// The part of a file before its unit tests.
fn product(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end].to_owned()
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|it| it == "tests");
        if path.is_dir() && !is_test {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") && !is_test {
            files.push(path);
        }
    }
    files.sort();
    files
}
