//! Whether the tests left something behind in the kernel.

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    failure::{Failure, OrFail as _},
    run::{Step, say},
};

/// What there is, of the kinds of things that tests make: one line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Things(BTreeSet<String>);

/// The names of our programs and maps in the kernel.
const PROGRAMS: [&str; 2] = ["from_pod", "to_pod"];
const MAPS: [&str; 5] = ["VIFS", "ENDPOINTS", "VIF_COUNTERS", "STACK_FLOWS", "AYA_LOGS"];
const BPFFS: &str = "/sys/fs/bpf";
/// Where real runtimes put containers' cgroups, and how the tests name them.
const CGROUPS: &str = "/sys/fs/cgroup";
const CGROUP: &str = "ferrule-test-";
/// The kernel frees a network namespace, and with it interfaces and filters, some time after its last user
/// left.
const PATIENCE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(250);

/// Looks at what there is: interfaces, named network namespaces, our loaded programs and maps, pins, cgroups
/// of the tests.
///
/// # Errors
/// If `ip` or `bpftool` fails.
pub(crate) fn look() -> Result<Things> {
    let mut things = BTreeSet::new();
    things.extend(ask("ip", &["-o", "link"])?.lines().filter_map(interface));
    things.extend(ask("ip", &["netns", "list"])?.lines().filter_map(namespace));
    let (programs, maps) = (ask("bpftool", &["prog", "show"])?, ask("bpftool", &["map", "show"])?);
    things.extend(programs.lines().filter_map(|line| loaded("program", line, &PROGRAMS)));
    things.extend(maps.lines().filter_map(|line| loaded("map", line, &MAPS)));
    pins(Path::new(BPFFS), &mut things)
        .or_fail(format!("listing {BPFFS}"), "see that it can be read, and that it is a bpffs")?;
    cgroups(Path::new(CGROUPS), 1, &mut things)
        .or_fail(format!("listing {CGROUPS}"), "see that it can be read")?;
    Ok(Things(things))
}

/// Compares with what there was `before`, for some seconds.
///
/// # Errors
/// If something is there that was not, or is gone that was.
pub(crate) fn check(before: &Things) -> Result<()> {
    say("checking that nothing is left behind");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let differences = before.differences(&look()?);
        if differences.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Failure {
                attempted: "checking that the tests leave nothing behind".to_owned(),
                why: format!("{PATIENCE:?} later there is still: {}", differences.join("; ")),
                remedy: "find the test that made it and has no undo; remove it by hand before the next run"
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
        let new = after.0.difference(&self.0).map(|thing| format!("left behind: {thing}"));
        // Programs and maps of ours that go may be those of a run before, which the kernel was still freeing.
        let passing = |thing: &&String| thing.starts_with("program ") || thing.starts_with("map ");
        let gone =
            self.0.difference(&after.0).filter(|thing| !passing(thing)).map(|thing| format!("gone: {thing}"));
        new.chain(gone).collect()
    }
}

/// `7: veth0@if6: <BROADCAST,…` without what comes and goes by itself, such as a carrier.
fn interface(line: &str) -> Option<String> {
    let mut parts = line.split(": ");
    Some(format!("interface {} {}", parts.next()?, parts.next()?))
}

/// `node0 (id: 3)` without the id, which the kernel gives out when it likes.
fn namespace(line: &str) -> Option<String> {
    Some(format!("network namespace {}", line.split_whitespace().next()?))
}

/// `12: sched_cls  name from_pod  tag …` or `34: hash  name VIFS  flags …`, if it is one of ours.
fn loaded(what: &str, line: &str, ours: &[&str]) -> Option<String> {
    let (id, rest) = line.split_once(": ")?;
    let (_, rest) = rest.split_once("name ")?;
    let name = rest.split_whitespace().next()?;
    ours.contains(&name).then(|| format!("{what} {id} {name}"))
}

fn pins(folder: &Path, things: &mut BTreeSet<String>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        // Not mounted, or removed while we looked.
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
        // Not mounted, or removed while we looked.
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
    let remedy = "run it by hand: the kernel may lack what it asks for";
    Step::new(program, "looking at what is in the kernel", remedy).args(args).ask()
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
            loaded("program", "12: sched_cls  name from_pod  tag 2a1b  gpl", &PROGRAMS).unwrap(),
            "program 12 from_pod"
        );
        for other in ["13: sched_cls  name from_podium  tag 2a1b", "14: cgroup_skb  tag 6dee", "\tpids x(1)"]
        {
            assert_eq!(loaded("program", other, &PROGRAMS), None);
        }
    }

    #[test]
    fn differences_go_both_ways() {
        let things = |names: &[&str]| Things(names.iter().map(|name| (*name).to_owned()).collect());
        let before = things(&["interface 1 lo", "pin a"]);
        assert_eq!(before.differences(&before), [] as [&str; 0]);
        assert_eq!(
            before.differences(&things(&["interface 1 lo", "interface 2 v"])),
            ["left behind: interface 2 v", "gone: pin a"]
        );
    }
}
