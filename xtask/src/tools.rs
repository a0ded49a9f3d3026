//! The programs of the system that testing, showing and measuring need, and the packages that bring them.

use std::{env, fs, os::unix::fs::MetadataExt as _};

use anyhow::Result;

use crate::{
    failure::Failure,
    run::{self, Step, say},
};

/// A program, and the Debian package that brings it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    /// Its name, or its whole path if it is not one for PATH.
    program: &'static str,
    package: &'static str,
}

/// For the release binaries: what C there is in them is compiled for the C library that they are linked with.
pub(crate) const BUILD: &[Tool] = &[Tool { program: "musl-gcc", package: "musl-tools" }];

/// For the privileged tests and the demo.
pub(crate) const TEST: &[Tool] = &[
    Tool { program: "bpftool", package: "bpftool" },
    Tool { program: "ip", package: "iproute2" },
    Tool { program: "tc", package: "iproute2" },
    Tool { program: "ping", package: "iputils-ping" },
    Tool { program: "nft", package: "nftables" },
    // What is chained after ours, and what it needs.
    Tool { program: "/usr/lib/cni/portmap", package: "containernetworking-plugins" },
    Tool { program: "iptables", package: "iptables" },
];

/// For the privileged tests, besides [`TEST`]: the container runtimes, and the plugin that containerd needs
/// besides ours.
pub(crate) const RUNTIMES: &[Tool] = &[
    Tool { program: "containerd", package: "containerd" },
    Tool { program: "ctr", package: "containerd" },
    Tool { program: "runc", package: "runc" },
    Tool { program: "podman", package: "podman" },
    Tool { program: "conmon", package: "conmon" },
    Tool { program: "/usr/lib/cni/loopback", package: "containernetworking-plugins" },
];

/// For the benchmarks, besides [`TEST`]: what we are compared with.
pub(crate) const BENCH: &[Tool] =
    &[Tool { program: "/usr/lib/cni/bridge", package: "containernetworking-plugins" }];

/// Fails unless we are root: said at once, and not after ten minutes of building.
///
/// # Errors
/// If we are not root.
pub(crate) fn need_root(what: &str) -> Result<()> {
    // /proc/self belongs to the effective user.
    let why = match fs::metadata("/proc/self") {
        Ok(proc) if proc.uid() == 0 => return Ok(()),
        Ok(proc) => format!(
            "it loads eBPF programs and makes network namespaces, and only root may; this is user {}",
            proc.uid()
        ),
        Err(error) => format!("cannot tell who we are from /proc/self: {error}"),
    };
    let remedy = "run the same command as root: `sudo -E env \"PATH=$PATH\" cargo xtask …`".to_owned();
    Err(Failure { attempted: what.to_owned(), why, remedy }.into())
}

/// Installs the packages of those `tools` that are missing. Needs root.
///
/// # Errors
/// If apt-get fails, or the packages do not bring the programs.
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
        format!("check the network and /etc/apt/sources.list, or install by hand what brings: {names}");
    apt_get("reading Debian's package lists", &remedy).arg("update").run()?;
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

/// Whether there is such a program, by its name or by its whole path.
pub(crate) fn is_there(program: &str) -> bool {
    // Joining a whole path gives that path.
    env::split_paths(&run::search_path()).any(|folder| folder.join(program).is_file())
}

fn missing(tools: &[Tool]) -> Vec<Tool> {
    tools.iter().copied().filter(|tool| !is_there(tool.program)).collect()
}

fn programs(tools: &[Tool]) -> String {
    tools.iter().map(|tool| tool.program).collect::<Vec<_>>().join(", ")
}

fn apt_get(doing: &str, remedy: &str) -> Step {
    Step::new("apt-get", doing, remedy)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Packages of daemons would have them started: systemctl then does as in a chroot.
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
