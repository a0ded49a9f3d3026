//! Debian's podman on a test node, with its CNI backend, the agent's network and runc.

use std::{fs, path::Path, sync::Arc};

use anyhow::Context as _;

use crate::{image, node::Node, pid_namespace::PidNamespace};

/// podman's settings and storage. podman has no daemon.
pub struct Podman {
    pid_namespace: Arc<PidNamespace>,
}

const CONFIG_FILE: &str = "/run/containers.conf";
const IMAGE_FILE: &str = "/run/image.tar";

/// The limits are for machines where root lacks `CAP_SYS_RESOURCE`: podman would raise them. The rest keeps
/// podman from using systemd and from storing anything outside the node's `/run`.
const CONFIG: &str = r#"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "none"

[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
static_dir = "/run/podman/libpod"
tmp_dir = "/run/podman/tmp"
volume_path = "/run/podman/volumes"

[network]
network_backend = "cni"
network_config_dir = "/etc/cni/net.d"
cni_plugin_dirs = ["/opt/cni/bin"]
"#;

// === impl Podman ===

impl Podman {
    /// Imports the test image, whose program was built at `pod`.
    ///
    /// # Errors
    /// If podman does not import the image.
    pub fn new(node: &mut Node, pod: &Path) -> anyhow::Result<Self> {
        let podman = Self { pid_namespace: node.pid_namespace()? };
        fs::write(CONFIG_FILE, CONFIG)?;
        image::write(pod, Path::new(IMAGE_FILE))?;
        podman
            .call(&["load", "--input", IMAGE_FILE])
            .context("cannot run podman; `cargo xtask test` installs it")?;
        Ok(podman)
    }

    /// Runs `podman` and returns its standard output, trimmed.
    ///
    /// # Errors
    /// If podman fails; the error carries its output.
    pub fn call(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = self.pid_namespace.command("podman")?;
        command.env("CONTAINERS_CONF", CONFIG_FILE);
        command.args(["--root", "/run/podman/root", "--runroot", "/run/podman/run"]).args(args);
        Ok(self.pid_namespace.output(&mut command).context("podman")?.trim().to_owned())
    }

    /// Starts a detached container on a network and returns its ID.
    ///
    /// # Errors
    /// If podman fails; the error carries its output.
    pub fn run(&self, name: &str, network: &str) -> anyhow::Result<String> {
        let cgroup = self.pid_namespace.cgroup();
        self.call(&[
            "run",
            "--detach",
            "--name",
            name,
            "--network",
            network,
            "--cgroup-parent",
            &cgroup,
            image::NAME,
        ])
    }
}
