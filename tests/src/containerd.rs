//! Debian's containerd on a test node: driven through its CRI and by `ctr`, with runc underneath.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    cri::Cri,
    image,
    node::Node,
    pid_namespace::{BIN_DIR, NamespacedChild, PidNamespace},
    sys,
};

/// A containerd daemon that tests can stop, kill and start again.
pub struct Containerd {
    pid_namespace: Arc<PidNamespace>,
    daemon: Option<NamespacedChild>,
    cri: Cri,
}

/// containerd 1 sets up a pod's loopback with this reference plugin.
const LOOPBACK: &str = "/usr/lib/cni/loopback";
const SOCKET: &str = "/run/containerd/containerd.sock";
const CONFIG_FILE: &str = "/run/containerd.toml";
const IMAGE_FILE: &str = "/run/image.tar";
const LOG: &str = "/run/containerd.log";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Besides the image, the settings that differ from the defaults are for machines where root lacks
/// privileges, such as containers: no `CAP_SYS_RESOURCE`, no AppArmor file system.
const CONFIG: &str = r#"
version = 2
root = "/run/containerd-root"
state = "/run/containerd"

[debug]
level = "warn"

[grpc]
address = "/run/containerd/containerd.sock"

[ttrpc]
address = "/run/containerd/containerd.sock.ttrpc"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"#;

// === impl Containerd ===

impl Containerd {
    /// Starts containerd and imports the test image, whose program was built at `pod`.
    ///
    /// # Errors
    /// If containerd does not serve.
    pub fn start(node: &mut Node, pod: &Path) -> anyhow::Result<Self> {
        let pid_namespace = node.pid_namespace()?;
        ensure!(
            Path::new(LOOPBACK).exists(),
            "{LOOPBACK} is missing; run the tests through `cargo xtask test`"
        );
        symlink(LOOPBACK, format!("{BIN_DIR}/loopback"))?;
        fs::write(CONFIG_FILE, CONFIG.replace("{image}", image::NAME))?;
        image::write(pod, Path::new(IMAGE_FILE))?;
        let cri = Cri::new(SOCKET.into(), pid_namespace.cgroup());
        let mut containerd = Self { pid_namespace, daemon: None, cri };
        containerd.start_again()?;
        // The CRI reads `k8s.io`, `ctr` reads `default`.
        for namespace in ["k8s.io", "default"] {
            containerd.ctr(&["--namespace", namespace, "images", "import", IMAGE_FILE])?;
        }
        sys::wait_until("the CRI has the image", TIMEOUT, || containerd.cri.has_image())?;
        Ok(containerd)
    }

    /// Starts containerd with the same command as before and waits until its CRI serves.
    ///
    /// # Errors
    /// If containerd does not serve.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        ensure!(self.daemon.is_none(), "containerd is already running");
        let log = File::options().create(true).append(true).open(LOG)?;
        let mut command = self.pid_namespace.command("containerd")?;
        command.args(["--config", CONFIG_FILE]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let daemon = self
            .pid_namespace
            .start(&mut command)
            .context("cannot start containerd; `cargo xtask test` installs it")?;
        let daemon = self.daemon.insert(daemon);
        let cri = &self.cri;
        let mut ended = None;
        sys::wait_until("containerd serves", TIMEOUT, || {
            ended = daemon.try_wait()?;
            Ok(ended.is_some() || cri.network_ready().is_ok())
        })
        .with_context(log_text)?;
        ensure!(ended.is_none(), "containerd exited, {ended:?}:\n{}", log_text());
        Ok(())
    }

    /// Stops containerd by SIGTERM. The pods keep running.
    ///
    /// # Errors
    /// If containerd does not exit.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let mut daemon = self.daemon.take().context("containerd is not running")?;
        kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM)?;
        sys::wait_until("containerd stops", TIMEOUT, || Ok(daemon.try_wait()?.is_some()))
    }

    /// Kills containerd by SIGKILL. The pods keep running.
    ///
    /// # Errors
    /// If containerd is not running.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.daemon.take().map(NamespacedChild::kill).context("containerd is not running")
    }

    /// The CRI client, as a kubelet would use it.
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Runs `ctr` and returns its standard output.
    ///
    /// # Errors
    /// If `ctr` fails; the error carries its output.
    pub fn ctr(&self, args: &[&str]) -> anyhow::Result<String> {
        self.pid_namespace.output(self.pid_namespace.command("ctr")?.args(["--address", SOCKET]).args(args))
    }

    /// Runs a container on the CNI network in the foreground; `ctr` removes the container when it exits.
    ///
    /// # Errors
    /// If `ctr` cannot be started.
    pub fn ctr_run(&self, name: &str) -> anyhow::Result<NamespacedChild> {
        let mut command = self.ctr_run_command(name, "--rm")?;
        self.pid_namespace.start(command.stdin(Stdio::null()).stdout(Stdio::null()))
    }

    /// Starts a detached container on the CNI network.
    ///
    /// # Errors
    /// If `ctr` fails; the error carries its output.
    pub fn ctr_run_detached(&self, name: &str) -> anyhow::Result<()> {
        self.pid_namespace.output(&mut self.ctr_run_command(name, "--detach")?).map(drop)
    }

    /// The parent cgroup of the containers.
    pub fn cgroup(&self) -> String {
        self.pid_namespace.cgroup()
    }

    fn ctr_run_command(&self, name: &str, how: &str) -> anyhow::Result<Command> {
        let mut command = self.pid_namespace.command("ctr")?;
        command.args(["--address", SOCKET, "run", how, "--null-io", "--cni"]);
        command.arg(format!("--cgroup={}/{name}", self.pid_namespace.cgroup())).args([image::NAME, name]);
        Ok(command)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("containerd's log:\n{}", log_text());
        }
    }
}

/// The log that containerd wrote on this node.
pub fn log_text() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}
