//! Detection of kernel objects that tests leak.

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use agent_common::names;
use anyhow::Result;

use crate::{
    failure::{Failure, OrFail as _},
    run::{Step, say},
};

/// The objects of the kinds that tests create, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Things(BTreeSet<String>);

const BPFFS: &str = "/sys/fs/bpf";
/// Where real runtimes put containers' cgroups, and how the tests name them.
const CGROUPS: &str = "/sys/fs/cgroup";
const CGROUP: &str = "ferrule-test-";
/// The kernel frees a network namespace, and with it interfaces and filters, some time after its last user
/// left.
const DEADLINE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(250);

/// Lists interfaces, named network namespaces, Ferrule's programs and maps, pins, and cgroups of tests.
///
/// # Errors
/// If `ip` or `bpftool` fails.
pub(crate) fn look() -> Result<Things> {
    let mut things = BTreeSet::new();
    things.extend(ask("ip", &["-o", "link"])?.lines().filter_map(interface));
    things.extend(ask("ip", &["netns", "list"])?.lines().filter_map(namespace));
    let (programs, maps) = (ask("bpftool", &["prog", "show"])?, ask("bpftool", &["map", "show"])?);
    things.extend(programs.lines().filter_map(|line| loaded("program", line, names::is_program)));
    things.extend(maps.lines().filter_map(|line| loaded("map", line, names::is_map)));
    pins(Path::new(BPFFS), &mut things)
        .or_fail(format!("listing {BPFFS}"), "mount a readable bpffs there")?;
    cgroups(Path::new(CGROUPS), 1, &mut things)
        .or_fail(format!("listing {CGROUPS}"), "check its permissions")?;
    Ok(Things(things))
}

/// Compares with the objects `before` the tests, for some seconds.
///
/// # Errors
/// If objects appeared or disappeared.
pub(crate) fn check(before: &Things) -> Result<()> {
    say("checking for leaked kernel objects");
    let deadline = Instant::now() + DEADLINE;
    loop {
        let differences = before.differences(&look()?);
        if differences.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Failure {
                attempted: "checking for leaked kernel objects".to_owned(),
                why: format!("after {DEADLINE:?}: {}", differences.join("; ")),
                remedy: "find the test that creates the object without removing it; remove it by hand before the next run"
                    .to_owned(),
            }
            .into());
        }
        thread::sleep(INTERVAL);
    }
}

// === impl Things ===

impl Things {
    fn differences(&self, after: &Self) -> Vec<String> {
        let new = after.0.difference(&self.0).map(|thing| format!("leaked: {thing}"));
        // The kernel may still have been freeing programs and maps of an earlier run.
        let passing = |thing: &&String| thing.starts_with("program ") || thing.starts_with("map ");
        let gone =
            self.0.difference(&after.0).filter(|thing| !passing(thing)).map(|thing| format!("gone: {thing}"));
        new.chain(gone).collect()
    }
}

/// `7: veth0@if6: <BROADCAST,…` without volatile parts such as the carrier.
fn interface(line: &str) -> Option<String> {
    let mut parts = line.split(": ");
    Some(format!("interface {} {}", parts.next()?, parts.next()?))
}

/// `node0 (id: 3)` without the id, which the kernel assigns lazily.
fn namespace(line: &str) -> Option<String> {
    Some(format!("network namespace {}", line.split_whitespace().next()?))
}

/// `12: sched_cls  name from_pod  tag …` or `34: hash  name VIFS  flags …`, if it is one of ours.
fn loaded(what: &str, line: &str, is_ours: fn(&str) -> bool) -> Option<String> {
    let (id, rest) = line.split_once(": ")?;
    let (_, rest) = rest.split_once("name ")?;
    let name = rest.split_whitespace().next()?;
    is_ours(name).then(|| format!("{what} {id} {name}"))
}

fn pins(folder: &Path, things: &mut BTreeSet<String>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        // Not mounted, or removed concurrently.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        things.insert(format!("pin {}", entry.path().display()));
        if entry.file_type()?.is_dir() {
            pins(&entry.path(), things)?;
        }
    }
    Ok(())
}

/// At the top of the one hierarchy, or of those of the controllers, which are a directory deeper.
fn cgroups(folder: &Path, deeper: usize, things: &mut BTreeSet<String>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        // Not mounted, or removed concurrently.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(CGROUP) {
            things.insert(format!("cgroup {}", entry.path().display()));
        } else if deeper > 0 && entry.file_type()?.is_dir() {
            cgroups(&entry.path(), deeper - 1, things)?;
        }
    }
    Ok(())
}

fn ask(program: &str, args: &[&str]) -> Result<String> {
    let remedy = "run the command by hand: the kernel may lack a feature";
    Step::new(program, "listing kernel objects", remedy).args(args).ask()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_reduced_to_what_stays() {
        let link =
            "7: veth0@if6: <BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state UP \\    link/ether …";
        assert_eq!(interface(link).unwrap(), "interface 7 veth0@if6");
        assert_eq!(namespace("node0 (id: 3)").unwrap(), "network namespace node0");
        assert_eq!(
            loaded("program", "12: sched_cls  name from_pod  tag 2a1b  gpl", names::is_program).unwrap(),
            "program 12 from_pod"
        );
        for other in ["13: sched_cls  name from_podium  tag 2a1b", "14: cgroup_skb  tag 6dee", "\tpids x(1)"]
        {
            assert_eq!(loaded("program", other, names::is_program), None);
        }
    }

    #[test]
    fn differences_go_both_ways() {
        let things = |names: &[&str]| Things(names.iter().map(|name| (*name).to_owned()).collect());
        let before = things(&["interface 1 lo", "pin a"]);
        assert_eq!(before.differences(&before), [] as [&str; 0]);
        assert_eq!(
            before.differences(&things(&["interface 1 lo", "interface 2 v"])),
            ["leaked: interface 2 v", "gone: pin a"]
        );
    }
}
