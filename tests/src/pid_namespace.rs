//! A PID namespace for programs that daemonise processes, as container runtimes do with their shims.
//!
//! When the namespace's first process dies, which happens with the thread that created it, the kernel kills
//! all others. A mount namespace comes with it, so that `/proc` shows the same PIDs.

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

/// A PID namespace on a node, with private copies of the system directories that runtimes write to.
pub struct PidNamespace {
    init: Child,
    pids: File,
    mounts: File,
    cgroup: String,
}

/// A child process in a [`PidNamespace`], killed at the latest on drop. The kernel ends a PID namespace only
/// after the parents of all its processes have reaped their children.
pub struct NamespacedChild {
    child: Child,
    _namespace: Arc<PidNamespace>,
}

/// The default directories in which runtimes search for plugins and networks.
pub const BIN_DIR: &str = "/opt/cni/bin";
pub const CONF_DIR: &str = "/etc/cni/net.d";

/// Runtimes write below these directories, without an option to change that. The machine's own stay
/// untouched.
const PRIVATE: [&str; 3] = ["/etc", "/opt", "/var/lib"];
const CGROUPS: &str = "/sys/fs/cgroup";
const END: Duration = Duration::from_secs(20);
/// Names of our cgroups: `ferrule-test-<PID of the test>-<number>`.
const CGROUP: &str = "ferrule-test-";

// === impl PidNamespace ===

impl PidNamespace {
    /// Creates a PID namespace. Must be called on the thread of a node.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn make() -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        remove_stale_cgroups();
        for directory in PRIVATE {
            sys::mount_overlay(directory, &format!("/run/private{directory}"))?;
        }
        // The agent installs here. Files of packages would change which network is chosen.
        for directory in [BIN_DIR, CONF_DIR] {
            fs::create_dir_all(directory)?;
            fs::remove_dir_all(directory)?;
            fs::create_dir_all(directory)?;
        }
        // The network namespaces that a runtime creates become visible on the node too.
        sys::share_mounts("/run")?;
        // The shell reaps orphaned processes.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "while :; do sleep 3600; done"]);
        shell.stdin(Stdio::null()).stdout(Stdio::null());
        let init = sys::spawn_in_new_pids(sys::die_with_parent(&mut shell))
            .context("cannot start the first process of a PID namespace")?;
        let namespace = |name| File::open(format!("/proc/{}/ns/{name}", init.id()));
        let (pids, mounts) = (namespace("pid")?, namespace("mnt")?);
        let cgroup = format!("{CGROUP}{}-{}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Ok(Self { init, pids, mounts, cgroup })
    }

    /// A command that runs in the namespace if started by [`Self::start`] or [`Self::output`].
    ///
    /// # Errors
    /// If no file descriptor is available.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> anyhow::Result<Command> {
        let mut command = Command::new(program);
        sys::enter(&mut command, self.mounts.try_clone()?, CloneFlags::CLONE_NEWNS);
        Ok(command)
    }

    /// Starts a command that dies with the calling thread.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn start(self: &Arc<Self>, command: &mut Command) -> anyhow::Result<NamespacedChild> {
        Ok(NamespacedChild { child: self.spawn(command)?, _namespace: Arc::clone(self) })
    }

    /// As [`Self::start`], for callers that wait for the child themselves.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub(crate) fn spawn(&self, command: &mut Command) -> anyhow::Result<Child> {
        let started = sys::with_children_in(&self.pids, || sys::die_with_parent(command).spawn())?;
        started.with_context(|| format!("cannot start {command:?}"))
    }

    /// Runs a command to completion and returns its standard output.
    ///
    /// # Errors
    /// If the command cannot be started or fails; the error carries its output.
    pub fn output(&self, command: &mut Command) -> anyhow::Result<String> {
        sys::with_children_in(&self.pids, || sys::output(command))?
    }

    /// The parent of the containers' cgroups. Cgroups belong to the machine; a node cannot have its own.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.cgroup)
    }
}

impl Drop for PidNamespace {
    fn drop(&mut self) {
        let _ = self.init.kill();
        // The first process ends last.
        let ended = sys::wait_until("all processes of the PID namespace exit", END, || {
            Ok(self.init.try_wait()?.is_some())
        });
        if let Err(error) = ended {
            eprintln!("{error:#}");
        }
        if let Err(error) = remove_cgroups(|name| name == self.cgroup) {
            eprintln!("cannot remove the cgroup {}: {error}", self.cgroup);
        }
    }
}

// === impl NamespacedChild ===

impl NamespacedChild {
    /// Kills the process by SIGKILL.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for NamespacedChild {
    fn drop(&mut self) {
        self.end();
    }
}

impl Deref for NamespacedChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for NamespacedChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

/// The directories of a cgroup, one per hierarchy.
///
/// # Errors
/// If the machine has no cgroups.
pub fn cgroup_directories(cgroup: &str) -> io::Result<Vec<PathBuf>> {
    find_cgroups(|name| name == cgroup.trim_start_matches('/'))
}

/// Removes the cgroups of killed tests: their processes are gone, the directories stay.
fn remove_stale_cgroups() {
    let is_dead = |name: &str| {
        let of = name.strip_prefix(CGROUP).and_then(|rest| rest.split('-').next());
        of.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    // Another test may remove them at the same time.
    let _ = remove_cgroups(is_dead);
}

fn remove_cgroups(which: impl Fn(&str) -> bool) -> io::Result<()> {
    find_cgroups(which)?.iter().try_for_each(|directory| remove_cgroup(directory))
}

/// cgroup v2 has one hierarchy, v1 one per controller.
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
        // Removed concurrently.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries.flatten().filter(is_directory).map(|entry| entry.path()).collect())
}
