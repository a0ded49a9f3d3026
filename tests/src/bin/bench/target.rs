//! The measured plugins: Ferrule's and two reference plugins, executed as a container runtime does.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{dist, pod::Pod, runtime::Runtime};
use serde_json::{Value, json};

use crate::cpu;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Ferrule,
    Bridge,
    Ptp,
}

/// A plugin and its configuration.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: Name,
    plugin: PathBuf,
    runtime: Runtime,
    stdin: Vec<u8>,
    /// The agent, for a plugin that delegates its work.
    agent: Option<cpu::Agent>,
}

/// Duration and output of a call.
pub(crate) struct Call {
    pub(crate) took: Duration,
    pub(crate) printed: Value,
}

/// Debian's directory of the reference plugins.
const REFERENCE: &str = "/usr/lib/cni";
/// The interface that the first ADD of `bridge` creates and that stays.
pub(crate) const BRIDGE: &str = "bench0";

// === impl Name ===

impl Name {
    pub(crate) const ALL: [Self; 3] = [Self::Ferrule, Self::Bridge, Self::Ptp];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ferrule => "ferrule",
            Self::Bridge => "bridge",
            Self::Ptp => "ptp",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

// === impl Target ===

impl Target {
    /// Must be called on the node's thread: the reference plugins store their state in its `/run`.
    pub(crate) fn new(name: Name) -> anyhow::Result<Self> {
        let reference = |subnet: &str| {
            json!({
                "cniVersion": "1.0.0",
                "name": name.as_str(),
                "type": name.as_str(),
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/host-local",
                    "subnet": subnet,
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            })
        };
        let (plugin, config) = match name {
            Name::Ferrule => (
                dist::binary("ferrule")?,
                json!({ "cniVersion": "1.1.0", "name": "cluster", "type": "ferrule" }),
            ),
            Name::Bridge => {
                let mut config = reference("10.245.0.0/16");
                if let Some(config) = config.as_object_mut() {
                    config.insert("bridge".to_owned(), BRIDGE.into());
                    config.insert("isGateway".to_owned(), true.into());
                }
                (Path::new(REFERENCE).join("bridge"), config)
            }
            Name::Ptp => (Path::new(REFERENCE).join("ptp"), reference("10.246.0.0/16")),
        };
        ensure!(plugin.exists(), "{} is missing: install containernetworking-plugins", plugin.display());
        let stdin = config.to_string().into_bytes();
        let agent = (name == Name::Ferrule).then(cpu::Agent::find).transpose()?;
        Ok(Self { name, runtime: Runtime::with_plugin(plugin.clone(), config), plugin, stdin, agent })
    }

    /// CPU time of all calls so far, including those of other targets.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        self.agent.map_or_else(cpu::children, cpu::Agent::and_children)
    }

    /// Calls ADD and checks its result.
    pub(crate) fn add(&self, pod: &mut Pod) -> anyhow::Result<Duration> {
        let Call { took, printed } = self.call("ADD", pod)?;
        pod.attached(&printed).with_context(|| format!("ADD of {}", self.name))?;
        Ok(took)
    }

    pub(crate) fn del(&self, pod: &Pod) -> anyhow::Result<Duration> {
        Ok(self.call("DEL", pod)?.took)
    }

    /// Measures from the start of the plugin's process to its end. Everything else happens before or after:
    /// the input waits in a pipe, and the output fits into one. No option is set that would keep the standard
    /// library from starting the process without a fork.
    fn call(&self, verb: &str, pod: &Pod) -> anyhow::Result<Call> {
        let (stdin, mut write) = io::pipe()?;
        write.write_all(&self.stdin)?;
        drop(write);
        let mut command = Command::new(&self.plugin);
        command.env_clear().envs(self.runtime.environment(verb, pod));
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::inherit());

        let start = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot run {}", self.plugin.display()))?;
        let status = child.wait()?;
        let took = start.elapsed();

        let mut text = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_string(&mut text)?;
        }
        ensure!(status.success(), "{verb} of {} failed, {status}: {text}", self.name);
        let printed = if text.trim().is_empty() { Value::Null } else { serde_json::from_str(&text)? };
        Ok(Call { took, printed })
    }
}
