//! containerd, as Debian ships it, on a node: with runc, through its CRI, and by `ctr`.

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
    cage::{BIN_DIR, Cage, Caged},
    cri::Cri,
    image,
    node::Node,
    sys,
};

/// A containerd that runs, or does not for a while.
pub struct Containerd {
    cage: Arc<Cage>,
    daemon: Option<Caged>,
    cri: Cri,
}

/// containerd 1 sets a pod's loopback up by this plugin, which packages bring that are not ours.
const LOOPBACK: &str = "/usr/lib/cni/loopback";
const SOCKET: &str = "/run/containerd/containerd.sock";
const CONFIG_FILE: &str = "/run/containerd.toml";
const IMAGE_FILE: &str = "/run/image.tar";
const LOG: &str = "/run/containerd.log";
const PATIENCE: Duration = Duration::from_secs(30);

/// What differs from the defaults, besides the image, is for machines where root is short of privileges, such as containers:
/// without `CAP_SYS_RESOURCE`, or without AppArmor's file system.
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
    /// Starts it and gives it the image, whose program was built at `pod`.
    ///
    /// # Errors
    /// If it does not serve.
    pub fn start(node: &mut Node, pod: &Path) -> anyhow::Result<Self> {
        let cage = node.cage()?;
        ensure!(Path::new(LOOPBACK).exists(), "{LOOPBACK} is missing: run this by `cargo xtask test`");
        symlink(LOOPBACK, format!("{BIN_DIR}/loopback"))?;
        fs::write(CONFIG_FILE, CONFIG.replace("{image}", image::NAME))?;
        image::write(pod, Path::new(IMAGE_FILE))?;
        let cri = Cri::new(SOCKET.into(), cage.cgroup());
        let mut containerd = Self { cage, daemon: None, cri };
        containerd.start_again()?;
        // The namespace of its CRI, and that of `ctr`.
        for namespace in ["k8s.io", "default"] {
            containerd.ctr(&["--namespace", namespace, "images", "import", IMAGE_FILE])?;
        }
        sys::wait_until("the CRI has the image", PATIENCE, || containerd.cri.has_image())?;
        Ok(containerd)
    }

    /// Starts it as it was started before, and waits until its CRI serves.
    ///
    /// # Errors
    /// If it does not.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        ensure!(self.daemon.is_none(), "containerd runs already");
        let log = File::options().create(true).append(true).open(LOG)?;
        let mut command = self.cage.command("containerd")?;
        command.args(["--config", CONFIG_FILE]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let daemon =
            self.cage.start(&mut command).context("is containerd installed? `cargo xtask test` does so")?;
        let daemon = self.daemon.insert(daemon);
        let cri = &self.cri;
        let mut ended = None;
        sys::wait_until("containerd serves", PATIENCE, || {
            ended = daemon.try_wait()?;
            Ok(ended.is_some() || cri.network_ready().is_ok())
        })
        .with_context(log_text)?;
        ensure!(ended.is_none(), "containerd has ended, {ended:?}:\n{}", log_text());
        Ok(())
    }

    /// Ends it by SIGTERM. The pods run on.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let mut daemon = self.daemon.take().context("containerd does not run")?;
        kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM)?;
        sys::wait_until("containerd stops", PATIENCE, || Ok(daemon.try_wait()?.is_some()))
    }

    /// Ends it as a crash would. The pods run on.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.daemon.take().map(Caged::kill).context("containerd does not run")
    }

    /// What a kubelet has of it.
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Runs `ctr` and gives what it printed.
    ///
    /// # Errors
    /// If it fails; what it printed is in the error.
    pub fn ctr(&self, args: &[&str]) -> anyhow::Result<String> {
        self.cage.output(self.cage.command("ctr")?.args(["--address", SOCKET]).args(args))
    }

    /// Runs a container on the network, by `ctr`, and removes it when it has ended. `ctr` runs as long as the container does.
    ///
    /// # Errors
    /// If `ctr` cannot be started.
    pub fn ctr_run(&self, name: &str) -> anyhow::Result<Caged> {
        let mut command = self.ctr_run_command(name, "--rm")?;
        self.cage.start(command.stdin(Stdio::null()).stdout(Stdio::null()))
    }

    /// Starts a container on the network, by `ctr`, which leaves it alone then.
    ///
    /// # Errors
    /// If it fails; what it printed is in the error.
    pub fn ctr_run_detached(&self, name: &str) -> anyhow::Result<()> {
        self.cage.output(&mut self.ctr_run_command(name, "--detach")?).map(drop)
    }

    /// Where its containers' cgroups are.
    pub fn cgroup(&self) -> String {
        self.cage.cgroup()
    }

    fn ctr_run_command(&self, name: &str, how: &str) -> anyhow::Result<Command> {
        let mut command = self.cage.command("ctr")?;
        command.args(["--address", SOCKET, "run", how, "--null-io", "--cni"]);
        command.arg(format!("--cgroup={}/{name}", self.cage.cgroup())).args([image::NAME, name]);
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

/// What it has written to its log, on this node.
pub fn log_text() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}
