//! Processes that end together, for programs that start daemons and let go of them, as container runtimes do with
//! their shims.
//!
//! A cage is a PID namespace: when its first process dies, which it does with the thread that made it, the kernel kills
//! all the others. It comes with a mount namespace, as `/proc` has to be of the same PIDs.

use std::{
    fs::{self, File},
    io,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use nix::sched::CloneFlags;

use crate::sys;

/// A place on a node where processes can be let go of, with directories of the system that are its own.
pub struct Cage {
    init: Child,
    pids: File,
    mounts: File,
    cgroup: String,
}

/// A process in a cage that ends, at the latest, when this goes. The kernel ends a PID namespace only when the parents
/// of all in it have taken notice of their children's ends.
pub struct Caged {
    child: Child,
    _cage: Arc<Cage>,
}

/// Where runtimes look for plugins and networks, unless they can be told otherwise.
pub const BIN_DIR: &str = "/opt/cni/bin";
pub const CONF_DIR: &str = "/etc/cni/net.d";

/// What runtimes write to, and have no option for. On the machine, they stay as they are.
const PRIVATE: [&str; 3] = ["/etc", "/opt", "/var/lib"];
const CGROUPS: &str = "/sys/fs/cgroup";
const END: Duration = Duration::from_secs(20);
/// Names of our cgroups: `ferrule-test-<PID of the test>-<number>`.
const CGROUP: &str = "ferrule-test-";

// === impl Cage ===

impl Cage {
    /// Makes one, on the thread of a node.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn make() -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        remove_cgroups_of_the_dead();
        for directory in PRIVATE {
            sys::mount_overlay(directory, &format!("/run/private{directory}"))?;
        }
        // Where the agent installs. What packages have put there is not to be chosen.
        for directory in [BIN_DIR, CONF_DIR] {
            fs::create_dir_all(directory)?;
            fs::remove_dir_all(directory)?;
            fs::create_dir_all(directory)?;
        }
        // So that the network namespaces that a runtime makes are seen by the node too.
        sys::share_mounts("/run")?;
        // It reaps what others let go of.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "while :; do sleep 3600; done"]);
        shell.stdin(Stdio::null()).stdout(Stdio::null());
        let init = sys::spawn_in_new_pids(sys::die_with_parent(&mut shell))
            .context("cannot start a process in a PID namespace of its own")?;
        let namespace = |name| File::open(format!("/proc/{}/ns/{name}", init.id()));
        let (pids, mounts) = (namespace("pid")?, namespace("mnt")?);
        let cgroup = format!("{CGROUP}{}-{}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Ok(Self { init, pids, mounts, cgroup })
    }

    /// A command that will run in it, if it is started by [`Self::start`] or [`Self::output`].
    ///
    /// # Errors
    /// If there are no more file descriptors.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> anyhow::Result<Command> {
        let mut command = Command::new(program);
        sys::enter(&mut command, self.mounts.try_clone()?, CloneFlags::CLONE_NEWNS);
        Ok(command)
    }

    /// Starts a command, which dies with this thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(self: &Arc<Self>, command: &mut Command) -> anyhow::Result<Caged> {
        Ok(Caged { child: self.spawn(command)?, _cage: Arc::clone(self) })
    }

    /// The same, for who waits for its end, whatever happens.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn spawn(&self, command: &mut Command) -> anyhow::Result<Child> {
        let started = sys::with_children_in(&self.pids, || sys::die_with_parent(command).spawn())?;
        started.with_context(|| format!("cannot start {command:?}"))
    }

    /// Runs a command to its end and gives what it printed.
    ///
    /// # Errors
    /// If it cannot be started or fails; what it printed is in the error.
    pub fn output(&self, command: &mut Command) -> anyhow::Result<String> {
        sys::with_children_in(&self.pids, || sys::output(command))?
    }

    /// The parent of the cgroups of its containers: they are on the machine, as cgroups cannot be a node's own.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.cgroup)
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        let _ = self.init.kill();
        // It is the last to end.
        let ended = sys::wait_until("all in a cage end", END, || Ok(self.init.try_wait()?.is_some()));
        if let Err(error) = ended {
            eprintln!("{error:#}");
        }
        if let Err(error) = remove_cgroups(|name| name == self.cgroup) {
            eprintln!("a cgroup {} is left: {error}", self.cgroup);
        }
    }
}

// === impl Caged ===

impl Caged {
    /// Ends it by SIGKILL.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Caged {
    fn drop(&mut self) {
        self.end();
    }
}

impl Deref for Caged {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Caged {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

/// Where the kernel has this cgroup, in every hierarchy.
///
/// # Errors
/// If the machine has no cgroups.
pub fn cgroup_directories(cgroup: &str) -> io::Result<Vec<PathBuf>> {
    find_cgroups(|name| name == cgroup.trim_start_matches('/'))
}

/// What a test that was killed has left: its processes are gone, the directories are not.
fn remove_cgroups_of_the_dead() {
    let is_dead = |name: &str| {
        let of = name.strip_prefix(CGROUP).and_then(|rest| rest.split('-').next());
        of.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    // Somebody else may be doing the same.
    let _ = remove_cgroups(is_dead);
}

fn remove_cgroups(which: impl Fn(&str) -> bool) -> io::Result<()> {
    find_cgroups(which)?.iter().try_for_each(|directory| remove_cgroup(directory))
}

/// There is one hierarchy, or one for each controller.
fn find_cgroups(which: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut hierarchies = directories(Path::new(CGROUPS))?;
    hierarchies.push(CGROUPS.into());
    let mut found = Vec::new();
    for hierarchy in hierarchies {
        let is_one = |path: &PathBuf| path.file_name().is_some_and(|name| which(&name.to_string_lossy()));
        found.extend(directories(&hierarchy)?.into_iter().filter(is_one));
    }
    Ok(found)
}

fn remove_cgroup(directory: &Path) -> io::Result<()> {
    for child in directories(directory)? {
        remove_cgroup(&child)?;
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn directories(of: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(of) {
        // Removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries.flatten().filter(is_directory).map(|entry| entry.path()).collect())
}
