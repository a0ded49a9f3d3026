//! A pod: a network namespace, and who it is.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::sys;

/// A pod as a runtime sees it.
#[derive(Debug, Clone)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub container_id: String,
    pub netns: PathBuf,
    /// Once it is attached.
    pub addresses: Vec<IpAddr>,
}

pub const NAMESPACE: &str = "default";

// === impl Pod ===

impl Pod {
    pub(crate) fn make(name: &str, number: u32) -> anyhow::Result<Self> {
        let netns = PathBuf::from(format!("/run/netns/cni-{number:04}"));
        sys::make_netns(&netns)?;
        Ok(Self {
            name: name.to_owned(),
            uid: format!("00000000-0000-4000-8000-{number:012}"),
            container_id: format!("{number:064x}"),
            netns,
            addresses: Vec::new(),
        })
    }

    /// The same pod in a new sandbox, as a runtime makes one after a failure.
    ///
    /// # Errors
    /// If the namespace cannot be made.
    pub fn new_sandbox(&self, number: u32) -> anyhow::Result<Self> {
        let sandbox = Self::make(&self.name, number)?;
        Ok(Self { uid: self.uid.clone(), ..sandbox })
    }

    /// Takes the addresses from a CNI result.
    ///
    /// # Errors
    /// If there are none.
    pub fn attached(&mut self, result: &Value) -> anyhow::Result<()> {
        let ips = result.get("ips").and_then(Value::as_array).context("the result has no `ips`")?;
        self.addresses.clear();
        for ip in ips {
            let cidr = ip.get("address").and_then(Value::as_str).context("an IP has no `address`")?;
            let (address, _) = cidr.split_once('/').context("an address has no prefix length")?;
            self.addresses.push(address.parse()?);
        }
        ensure!(!self.addresses.is_empty(), "the result has no address: {result}");
        Ok(())
    }

    /// Runs a command line without quoting in the pod.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(&self, line: &str) -> anyhow::Result<String> {
        let mut words = line.split_whitespace();
        sys::output(self.command(words.next().context("an empty command line")?)?.args(words))
    }

    /// A command that will run in the pod.
    ///
    /// # Errors
    /// If the pod is gone.
    pub fn command(&self, program: &str) -> anyhow::Result<Command> {
        sys::command_in(&self.netns, program)
    }

    /// One ping, which must be answered.
    ///
    /// # Errors
    /// If it is not, within two seconds.
    pub fn ping(&self, to: &str) -> anyhow::Result<String> {
        self.run(&format!("ping -n -c 1 -W 2 {to}"))
            .with_context(|| format!("{} cannot ping {to}", self.name))
    }

    /// Takes the namespace down, as a runtime does when a sandbox is removed.
    ///
    /// # Errors
    /// If it is in use by a mount of somebody else.
    pub fn remove(self) -> anyhow::Result<()> {
        nix::mount::umount2(&self.netns, nix::mount::MntFlags::MNT_DETACH)?;
        Ok(std::fs::remove_file(&self.netns)?)
    }

    /// Where the namespace is.
    pub fn path(&self) -> &Path {
        &self.netns
    }
}
