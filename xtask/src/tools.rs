//! System programs that tests, demo and benchmarks need, and their Debian packages.

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result};

use crate::{
    failure::Failure,
    run::{self, Step, say},
    toolchain::Arch,
    workspace::Workspace,
};

/// A program, and its Debian package.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    /// A name in PATH, or an absolute path.
    program: &'static str,
    package: &'static str,
}

// === impl Tool ===

impl Tool {
    pub(crate) const fn new(program: &'static str, package: &'static str) -> Self {
        Self { program, package }
    }
}

/// For the release binaries: compiles their C code against musl.
pub(crate) const BUILD: &[Tool] = &[Tool { program: "musl-gcc", package: "musl-tools" }];

/// For the release binaries of another architecture: compiles their C code. Musl and glibc have the same ABI
/// for the few functions that this code calls.
pub(crate) const fn cross(arch: Arch) -> &'static [Tool] {
    match arch {
        Arch::Amd64 => &[
            Tool { program: "x86_64-linux-gnu-gcc", package: "gcc-x86-64-linux-gnu" },
            Tool { program: "/usr/x86_64-linux-gnu/include/stdio.h", package: "libc6-dev-amd64-cross" },
        ],
        Arch::Arm64 => &[
            Tool { program: "aarch64-linux-gnu-gcc", package: "gcc-aarch64-linux-gnu" },
            Tool { program: "/usr/aarch64-linux-gnu/include/stdio.h", package: "libc6-dev-arm64-cross" },
        ],
    }
}

/// For the privileged tests and the demo.
pub(crate) const TEST: &[Tool] = &[
    Tool { program: "bpftool", package: "bpftool" },
    Tool { program: "ip", package: "iproute2" },
    Tool { program: "tc", package: "iproute2" },
    Tool { program: "ping", package: "iputils-ping" },
    Tool { program: "nft", package: "nftables" },
    Tool { program: "conntrack", package: "conntrack" },
    Tool { program: "sysctl", package: "procps" },
    Tool { program: "curl", package: "curl" },
    // The plugin chained after `ferrule`, and its dependency.
    Tool { program: "/usr/lib/cni/portmap", package: "containernetworking-plugins" },
    Tool { program: "iptables", package: "iptables" },
];

/// For the tests, besides [`TEST`]: the container runtimes, the plugin that containerd needs besides ours,
/// what the recipes in `docs/` use, and what reads the systemd unit.
pub(crate) const RUNTIMES: &[Tool] = &[
    Tool { program: "containerd", package: "containerd" },
    Tool { program: "ctr", package: "containerd" },
    Tool { program: "runc", package: "runc" },
    Tool { program: "podman", package: "podman" },
    Tool { program: "conmon", package: "conmon" },
    Tool { program: "/usr/lib/cni/loopback", package: "containernetworking-plugins" },
    Tool { program: "jq", package: "jq" },
    Tool { program: "systemd-analyze", package: "systemd" },
];

/// For tools that pip installs.
pub(crate) const PIP: &[Tool] =
    &[Tool { program: "python3", package: "python3" }, Tool { program: "pip3", package: "python3-pip" }];

/// For the benchmarks, besides [`TEST`]: the plugin to compare with.
pub(crate) const BENCH: &[Tool] =
    &[Tool { program: "/usr/lib/cni/bridge", package: "containernetworking-plugins" }];

/// Checks for root, before minutes of building.
///
/// # Errors
/// If the effective user is not root.
pub(crate) fn need_root(what: &str) -> Result<()> {
    // /proc/self belongs to the effective user.
    let why = match fs::metadata("/proc/self") {
        Ok(proc) if proc.uid() == 0 => return Ok(()),
        Ok(proc) => format!(
            "loading eBPF programs and creating network namespaces needs root; the effective user is {}",
            proc.uid()
        ),
        Err(error) => format!("cannot read the effective user from /proc/self: {error}"),
    };
    let remedy = "run the same command as root: `sudo -E env \"PATH=$PATH\" cargo xtask …`".to_owned();
    Err(Failure { attempted: what.to_owned(), why, remedy }.into())
}

/// Installs the packages of missing `tools`. Needs root.
///
/// # Errors
/// If apt-get fails, or the packages lack the programs.
pub(crate) fn need(tools: &[Tool]) -> Result<()> {
    let missing = missing(tools);
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let names = packages.join(" ");
    say(format!("missing on this machine: {}", programs(&missing)));
    let remedy =
        format!("check the network and /etc/apt/sources.list, or install these packages by hand: {names}");
    update(&remedy)?;
    apt_get(&format!("installing Debian packages: {names}"), &remedy)
        .args(["install", "--yes", "--no-install-recommends"])
        .args(&packages)
        .run()?;

    let still = self::missing(tools);
    if still.is_empty() {
        return Ok(());
    }
    Err(Failure {
        attempted: format!("installing {names}"),
        why: format!("apt-get succeeded, but these are still not found: {}", programs(&still)),
        remedy: "install them by hand, into PATH".to_owned(),
    }
    .into())
}

/// Unpacks Prometheus' tool for alerts into target/tools/bin, unless it is in PATH. Debian's package would
/// also install a server, which listens on every address from the next boot on.
///
/// # Errors
/// If apt-get or dpkg-deb fails.
pub(crate) fn need_promtool(ws: &Workspace) -> Result<()> {
    let tool = ws.root.join("target/tools/bin/promtool");
    if is_there("promtool") || tool.is_file() {
        return Ok(());
    }
    let folder = ws.root.join("target/tools/prometheus");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let remedy = "check the network and /etc/apt/sources.list, or install promtool by hand, into PATH";
    update(remedy)?;
    let download = apt_get("downloading promtool", remedy).args(["download", "prometheus"]);
    download.current_dir(&folder).run()?;
    let mut files = fs::read_dir(&folder)?.flatten().map(|it| it.path());
    let package = files.find(|it| it.extension().is_some_and(|it| it == "deb"));
    let package = package.context("apt-get download prometheus has left no package")?;
    let unpack = Step::new("dpkg-deb", "unpacking promtool", remedy).arg("--extract");
    unpack.arg(&package).arg(&folder).run()?;
    fs::create_dir_all(ws.root.join("target/tools/bin"))?;
    fs::rename(folder.join("usr/bin/promtool"), &tool)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Whether a program exists, by its name or absolute path.
pub(crate) fn is_there(program: &str) -> bool {
    // Joining an absolute path yields that path.
    env::split_paths(&run::search_path()).any(|folder| folder.join(program).is_file())
}

fn missing(tools: &[Tool]) -> Vec<Tool> {
    tools.iter().copied().filter(|tool| !is_there(tool.program)).collect()
}

fn programs(tools: &[Tool]) -> String {
    tools.iter().map(|tool| tool.program).collect::<Vec<_>>().join(", ")
}

/// Reads Debian's package lists, once in the life of this process.
fn update(remedy: &str) -> Result<()> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.load(Ordering::Relaxed) {
        apt_get("reading Debian's package lists", remedy).arg("update").run()?;
        DONE.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// `apt-get`, without questions.
pub(crate) fn apt_get(doing: &str, remedy: &str) -> Step {
    Step::new("apt-get", doing, remedy)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Keeps packages from starting their daemons: systemctl then acts as in a chroot.
        .env("SYSTEMD_OFFLINE", "1")
        .args(["-qq", "-oDpkg::Use-Pty=0"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let tool = |program| Tool { program, package: "any" };
        let missing = missing(&[tool("sh"), tool("/bin/sh"), tool("no-such-program"), tool("/no/such")]);
        assert_eq!(programs(&missing), "no-such-program, /no/such");
    }
}
