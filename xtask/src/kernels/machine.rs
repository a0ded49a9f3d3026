//! The emulated machine: its first files, its command line, and its console.

use std::{fmt::Write as _, fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::Result;

use super::{package::Package, suite::Suite};
use crate::{
    failure::OrFail as _,
    files,
    run::{Step, say},
};

/// A machine that is ready to boot.
#[derive(Debug)]
pub(super) struct Machine {
    package: Package,
}

/// Drivers of the files of this machine and of the layer above them.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];
/// A binary of tests is ended after this time of the machine, which has some of its own.
const SECONDS_OF_A_TEST: u32 = 3600;
const INIT: &str = include_str!("init.sh");
const GUEST: &str = include_str!("guest.sh");
const ROOM: &str = "make room on the disk";

// === impl Machine ===

impl Machine {
    /// Writes what the machine starts with.
    ///
    /// # Errors
    /// If the kernel lacks a driver, or a file cannot be written.
    pub(super) fn prepare(package: Package, suite: &Suite) -> Result<Self> {
        let machine = Self { package };
        let here = &machine.package.folder;
        let mut environment = String::new();
        for (name, value) in
            suite.environment.iter().map(|(name, value)| (*name, value)).chain([("FOLDER", &suite.folder)])
        {
            // Writing to a String cannot fail.
            let _ = writeln!(environment, "export {name}='{}'", value.display());
        }
        let mut tests = String::new();
        for test in &suite.entries {
            let (path, filters) = (test.path.display(), test.filters.join(" "));
            let _ = writeln!(tests, "{} {SECONDS_OF_A_TEST} {path} {filters}", test.name);
        }
        for (name, text) in [("environment", environment.as_str()), ("tests", &tests), ("run.sh", GUEST)] {
            files::replace_if_changed(&here.join(name), text.as_bytes())?;
        }
        machine.pack()?;
        Ok(machine)
    }

    pub(super) fn release(&self) -> &str {
        &self.package.release
    }

    /// What the machine has printed.
    pub(super) fn console(&self) -> PathBuf {
        self.package.folder.join("console.log")
    }

    /// Boots, runs the tests, and returns what the machine has printed, also if the time is over.
    ///
    /// # Errors
    /// If the emulator does not start, or its output cannot be read.
    pub(super) fn run(&self, minutes: u64) -> Result<String> {
        let Package { release, files, folder } = &self.package;
        let console = self.console();
        let append =
            format!("console=ttyS0 quiet panic=-1 mitigations=off nokaslr ferrule={}", folder.display());
        let remedy = "see what the emulator says";
        let step = Step::new(
            "timeout",
            format!("running the tests on {release}, for {minutes} minutes at most"),
            remedy,
        )
        .args(["--kill-after=10", &format!("{minutes}m"), "nice", "qemu-system-x86_64"])
        // An instruction takes a nanosecond of the machine's time: a slow emulation misses no deadline.
        .args(["-accel", "tcg,thread=single,tb-size=512", "-icount", "shift=0", "-rtc", "clock=vm"])
        .args(["-cpu", "max", "-smp", "1", "-m", "2500M", "-nic", "none", "-no-reboot"])
        .args(["-display", "none", "-monitor", "none", "-serial"])
        .arg(format!("file:{}", console.display()))
        .args(["-virtfs", "local,path=/,mount_tag=files,security_model=none,readonly=on,multidevs=remap"])
        .arg("-kernel")
        .arg(files.join(format!("boot/vmlinuz-{release}")))
        .arg("-initrd")
        .arg(self.initramfs())
        .args(["-append", &append]);
        let status = step.status()?;
        if !status.success() {
            say(format!("the machine of {release} did not switch itself off: {status}"));
        }
        let output = files::read(&console, remedy)?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    fn initramfs(&self) -> PathBuf {
        self.package.folder.join("initramfs")
    }

    /// Packs the first files: busybox, the drivers in the order of their insertion, and the first process.
    fn pack(&self) -> Result<()> {
        let Package { release, files, folder } = &self.package;
        let doing = format!("packing the first files of {release}");
        let first = folder.join("first");
        if first.exists() {
            fs::remove_dir_all(&first).or_fail(&doing, ROOM)?;
        }
        for name in ["bin", "modules", "proc", "sys", "dev"] {
            fs::create_dir_all(first.join(name)).or_fail(&doing, ROOM)?;
        }
        let mut order = Vec::new();
        for module in MODULES {
            let asked =
                Step::new("modprobe", format!("looking for {module} of {release}"), "take another package")
                    .arg("--dirname")
                    .arg(files)
                    .args(["--set-version", release, "--show-depends", module])
                    .ask()?;
            for path in asked.lines().filter_map(|line| line.strip_prefix("insmod ")).map(str::trim) {
                let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".xz").to_owned();
                if order.contains(&name) {
                    continue;
                }
                let to = first.join("modules").join(&name);
                if path.ends_with(".xz") {
                    let script = "xz --decompress --stdout \"$0\" >\"$1\"";
                    Step::new("sh", format!("unpacking {name}"), ROOM)
                        .args(["-c", script, path])
                        .arg(to)
                        .run()?;
                } else {
                    fs::copy(path, to).or_fail(&doing, ROOM)?;
                }
                order.push(name);
            }
        }
        let mut list = order.join("\n");
        list.push('\n');
        fs::write(first.join("order"), list).or_fail(&doing, ROOM)?;
        fs::copy("/bin/busybox", first.join("bin/busybox")).or_fail(&doing, ROOM)?;
        for name in ["sh", "mount", "mkdir", "insmod", "cat", "switch_root"] {
            std::os::unix::fs::symlink("busybox", first.join("bin").join(name)).or_fail(&doing, ROOM)?;
        }
        let init = first.join("init");
        fs::write(&init, INIT).or_fail(&doing, ROOM)?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).or_fail(&doing, ROOM)?;
        let script = "find . | cpio --quiet --create --format=newc >\"$0\"";
        Step::new("sh", doing, ROOM).args(["-c", script]).arg(self.initramfs()).current_dir(&first).run()
    }
}
