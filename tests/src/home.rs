//! A mount and a network namespace for one node among several, which a thread enters for a while.

use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns, unshare};

use crate::sys;

/// The namespaces end with this value, the last process in them, and the name of the network namespace.
#[derive(Debug)]
pub struct Home {
    mounts: File,
    network: PathBuf,
}

// === impl Home ===

impl Home {
    /// Makes both namespaces. The network namespace gets the path as its name, and the mount namespace is a
    /// copy of this thread's: mounts that are shared stay shared.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn make(network: &Path) -> anyhow::Result<Self> {
        sys::make_netns(network)?;
        let copy = || -> anyhow::Result<File> {
            unshare(CloneFlags::CLONE_NEWNS).context("cannot create a mount namespace")?;
            mounts()
        };
        let mounts = sys::in_netns(network, copy)?;
        Ok(Self { mounts, network: network.to_owned() })
    }

    /// Runs a closure on this thread, in these namespaces. Processes and threads that it starts stay there.
    ///
    /// # Errors
    /// The closure's error, or if a namespace cannot be entered or left.
    pub fn enter<T>(&self, run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let before = (mounts()?, network(Path::new("/proc/thread-self/ns/net"))?);
        switch(&self.mounts, &network(&self.network)?)?;
        let result = catch_unwind(AssertUnwindSafe(run));
        switch(&before.0, &before.1).context("cannot return from a node")?;
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The name of the network namespace.
    pub fn network(&self) -> &Path {
        &self.network
    }
}

fn mounts() -> anyhow::Result<File> {
    Ok(File::open("/proc/thread-self/ns/mnt")?)
}

fn network(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

fn switch(mounts: &File, network: &File) -> anyhow::Result<()> {
    // The kernel refuses another mount namespace to a thread that shares root and working directory with the
    // threads that it has started.
    unshare(CloneFlags::CLONE_FS)?;
    setns(network, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")?;
    setns(mounts, CloneFlags::CLONE_NEWNS).context("cannot enter a mount namespace")
}
