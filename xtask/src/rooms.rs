//! The rooms of the agent: which module may import which.
//!
//! The table is the fenced block `rooms` in docs/architecture.md, one line for each room, lowest first:
//! `room: rooms that it may import`. Every import must be in the table and every entry of the table in use,
//! so that the document and the code agree. A room can only name rooms above its own line, so that the table
//! has no circles. Within a room, and within some of the other crates, the files must not import each other
//! in circles either. Tests are exempt.

mod graph;
mod imports;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use self::{
    graph::Graph,
    imports::{Module, Source},
};
use crate::{failure::OrFail as _, files};

/// The rooms, lowest first, and what each may import.
#[derive(Debug, PartialEq, Eq)]
struct Table(Vec<(String, BTreeSet<String>)>);

/// One module of the agent and its imports.
#[derive(Debug)]
struct File {
    path: PathBuf,
    module: Module,
    source: Source,
}

/// An import between rooms or files that breaks a rule, or a line of the table that does not fit the code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding(String);

/// The file of the table, below the workspace's root.
const DOCUMENT: &str = "docs/architecture.md";
/// The agent's sources, below the workspace's root.
const SOURCES: &str = "agent/src";
/// The sources of crates without rooms, in which no files import each other in circles either. (In the crates
/// that are not here, some modules and their parents do.)
const WITHOUT_ROOMS: [&str; 7] =
    ["agent-common/src", "agent-ebpf/src", "ctl/src", "proto/src", "shim/src", "vif/src", "xtask/src"];

/// Compares the imports of the agent's sources with the table, and finds circles of imports.
///
/// # Errors
/// If the table or a source file cannot be read or parsed.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let document = files::read(&root.join(DOCUMENT), "restore the file from git")?;
    let table = Table::parse(&String::from_utf8_lossy(&document)).or_fail(
        format!("reading the table of rooms in {DOCUMENT}"),
        "write a fenced block `rooms` with lines `room: rooms that it may import`, lowest first",
    )?;
    let mut findings = of_rooms(&table, &read(root, SOURCES)?);
    for sources in WITHOUT_ROOMS {
        findings.extend(circles(sources, &read(root, sources)?, |_| true));
    }
    Ok(findings)
}

fn of_rooms(table: &Table, files: &[File]) -> Vec<Finding> {
    let mut findings = rooms(table, files);
    findings.dedup();
    for (room, _) in &table.0 {
        findings.extend(circles(SOURCES, files, |module| module.first() == Some(room)));
    }
    findings
}

/// Compares each import of another room with the table.
fn rooms(table: &Table, files: &[File]) -> Vec<Finding> {
    let known = &modules(files);
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for file in files {
        let Some(from) = file.module.first() else { continue };
        for import in file.source.imports(known, &file.module) {
            let Some(to) = import.path.first() else { continue };
            if to == from || !known.contains(&vec![to.clone()]) {
                continue;
            }
            used.insert((from, to.clone()));
            if !table.allows(from, to) {
                let at = format!("{}:{}", file.path.display(), import.line);
                findings.push(Finding(format!("{at}: room `{from}` must not import room `{to}`")));
            }
        }
    }
    let rooms: BTreeSet<&String> = files.iter().filter_map(|file| file.module.first()).collect();
    let listed: BTreeSet<&String> = table.0.iter().map(|(room, _)| room).collect();
    let missing = |room| Finding(format!("{DOCUMENT}: room `{room}` is missing in the table"));
    findings.extend(rooms.difference(&listed).map(missing));
    let stale = |room| Finding(format!("{DOCUMENT}: room `{room}` does not exist in {SOURCES}"));
    findings.extend(listed.difference(&rooms).map(stale));
    for (room, allowed) in table.0.iter().filter(|(room, _)| rooms.contains(room)) {
        for to in allowed.iter().filter(|to| !used.contains(&(room, (*to).clone()))) {
            findings.push(Finding(format!("{DOCUMENT}: room `{room}` may import `{to}`, and does not")));
        }
    }
    findings
}

/// Finds the circles between those files of a crate that `counts` chooses.
fn circles(sources: &str, files: &[File], counts: impl Fn(&Module) -> bool) -> Vec<Finding> {
    let known = &modules(files);
    let by_module: BTreeMap<&Module, &File> = files.iter().map(|file| (&file.module, file)).collect();
    let mut graph = Graph::default();
    for file in files.iter().filter(|file| counts(&file.module)) {
        for import in file.source.imports(known, &file.module) {
            let target = follow(import.path, &by_module, known);
            if known.contains(&target) && counts(&target) && target != file.module {
                graph.add(file.module.join("::"), target.join("::"));
            }
        }
    }
    let show =
        |circle: Vec<String>| Finding(format!("{sources}: circle between files: {}", circle.join(" → ")));
    graph.circles().into_iter().map(show).collect()
}

fn modules(files: &[File]) -> BTreeSet<&Module> {
    files.iter().map(|file| &file.module).collect()
}

/// The module that defines the item at `path`: re-exports are followed to their source.
fn follow(mut path: Vec<String>, files: &BTreeMap<&Module, &File>, known: &BTreeSet<&Module>) -> Module {
    // More steps than any chain of re-exports has.
    for _ in 0..16 {
        let prefixes = (0..=path.len()).rev().filter_map(|depth| path.get(..depth).map(<[String]>::to_vec));
        let Some(module) = prefixes.into_iter().find(|prefix| known.contains(prefix)) else { return path };
        let depth = module.len();
        let Some((item, file)) = path.get(depth).zip(files.get(&module)) else { return module };
        match file.source.alias(known, &module, item) {
            Some(source) if source != path => path = source,
            _ => return module,
        }
    }
    path
}

/// The source files of a crate, with their paths below the workspace's root.
fn read(root: &Path, sources: &str) -> Result<Vec<File>> {
    let mut files = Vec::new();
    collect(&root.join(sources), &mut Vec::new(), &mut files)?;
    for file in &mut files {
        file.path = file.path.strip_prefix(root).unwrap_or(&file.path).to_owned();
    }
    Ok(files)
}

fn collect(directory: &Path, module: &mut Module, files: &mut Vec<File>) -> Result<()> {
    let remedy = "check the permissions of the workspace's files";
    let doing = || format!("reading {}", directory.display());
    let mut entries = fs::read_dir(directory)
        .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
        .or_fail(doing(), remedy)?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let path = entry.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if stem == "tests" {
            continue;
        }
        if path.is_dir() {
            module.push(stem);
            collect(&path, module, files)?;
            module.pop();
        } else if path.extension().is_some_and(|it| it == "rs") && !matches!(stem.as_str(), "main" | "lib") {
            let text = fs::read_to_string(&path).or_fail(doing(), remedy)?;
            let source = Source::parse(&text)
                .or_fail(format!("parsing {}", path.display()), "make it compile first")?;
            let mut of_file = module.clone();
            if stem != "mod" {
                of_file.push(stem);
            }
            files.push(File { path, module: of_file, source });
        }
    }
    Ok(())
}

// === impl Table ===

impl Table {
    fn parse(document: &str) -> Result<Self> {
        let block = document.split_once("```rooms\n").and_then(|(_, rest)| rest.split_once("```"));
        let Some((block, _)) = block else { bail!("there is no fenced block `rooms`") };
        let mut rooms: Vec<(String, BTreeSet<String>)> = Vec::new();
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            let Some((room, allowed)) = line.split_once(':') else { bail!("no `:` in {line:?}") };
            let allowed: BTreeSet<String> = allowed.split_whitespace().map(str::to_owned).collect();
            let above = |room: &String| rooms.iter().any(|(above, _)| above == room);
            if let Some(unknown) = allowed.iter().find(|room| !above(room)) {
                bail!("room `{room}` names `{unknown}`, which is not in a line above it");
            }
            rooms.push((room.trim().to_owned(), allowed));
        }
        Ok(Self(rooms))
    }

    fn allows(&self, from: &str, to: &str) -> bool {
        self.0.iter().any(|(room, allowed)| room == from && allowed.contains(to))
    }
}

// === impl Finding ===

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests;
