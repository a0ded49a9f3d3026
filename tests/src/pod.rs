//! A pod: a network namespace and the identity that a runtime gives it.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::sys;

/// A pod's sandbox as a runtime knows it.
#[derive(Debug, Clone)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub container_id: String,
    pub netns: PathBuf,
    /// Empty until the pod is attached.
    pub addresses: Vec<IpAddr>,
}

/// The annotation that decides a pod's VIF.
pub const VIF: &str = "vif.ferrule.dev/v1";
pub const NAMESPACE: &str = "default";

// === impl Pod ===

impl Pod {
    pub(crate) fn make(name: &str, number: u32) -> anyhow::Result<Self> {
        let netns = PathBuf::from(format!("/run/netns/cni-{number:04}"));
        sys::make_netns(&netns)?;
        Ok(Self {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            uid: format!("00000000-0000-4000-8000-{number:012}"),
            container_id: format!("{number:064x}"),
            netns,
            addresses: Vec::new(),
        })
    }

    /// A new sandbox of the same pod, as a runtime creates one after a failure.
    ///
    /// # Errors
    /// If the namespace cannot be created.
    pub fn new_sandbox(&self, number: u32) -> anyhow::Result<Self> {
        let sandbox = Self::make(&self.name, number)?;
        Ok(Self { namespace: self.namespace.clone(), uid: self.uid.clone(), ..sandbox })
    }

    /// Stores the addresses of a CNI result.
    ///
    /// # Errors
    /// If the result has none.
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

    /// Runs a command line, split at whitespace, in the pod's network namespace.
    ///
    /// # Errors
    /// If the command fails.
    pub fn run(&self, line: &str) -> anyhow::Result<String> {
        let mut words = line.split_whitespace();
        sys::output(self.command(words.next().context("an empty command line")?)?.args(words))
    }

    /// A command that enters the pod's network namespace.
    ///
    /// # Errors
    /// If the namespace does not exist.
    pub fn command(&self, program: &str) -> anyhow::Result<Command> {
        sys::command_in(&self.netns, program)
    }

    /// Sends one ping and requires a reply.
    ///
    /// # Errors
    /// If no reply arrives within two seconds.
    pub fn ping(&self, to: &str) -> anyhow::Result<String> {
        self.run(&format!("ping -n -c 1 -W 2 {to}"))
            .with_context(|| format!("{} cannot ping {to}", self.name))
    }

    /// Removes the network namespace, as a runtime does when it removes a sandbox.
    ///
    /// # Errors
    /// If another mount still uses the namespace.
    pub fn remove(self) -> anyhow::Result<()> {
        nix::mount::umount2(&self.netns, nix::mount::MntFlags::MNT_DETACH)?;
        Ok(std::fs::remove_file(&self.netns)?)
    }

    /// The path of the network namespace.
    pub fn path(&self) -> &Path {
        &self.netns
    }
}
