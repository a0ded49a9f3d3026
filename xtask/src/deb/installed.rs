//! The package in a root of its own: installed, upgraded, removed and purged by dpkg, with its scripts.

use std::os::unix::fs::MetadataExt as _;

use super::*;

/// Version of the package before [`VERSION`].
const EARLIER: &str = "0.0.1";
/// What the programs of the root are called with.
const CALLED: &str = "called";
const SETTINGS: &str = "pod_cidr = [\"10.244.0.0/24\"]\n";

/// A root with a shell, for the package's scripts, and with a database of dpkg without packages.
struct Root {
    dir: tempfile::TempDir,
}

// === impl Root ===

impl Root {
    fn make() -> Self {
        let root = Self { dir: tempfile::tempdir().unwrap() };
        for folder in ["bin", "usr/bin", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
            fs::create_dir_all(root.path(folder)).unwrap();
        }
        fs::write(root.path("var/lib/dpkg/status"), "").unwrap();
        let shell = fs::canonicalize("/bin/sh").unwrap();
        fs::copy(&shell, root.path("bin/sh")).unwrap();
        let libraries = Step::new("ldd", "asking for the shell's libraries", "").arg(&shell).ask().unwrap();
        for library in libraries.split_whitespace().filter(|it| it.starts_with('/')) {
            let to = root.path(library.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(library, to).unwrap();
        }
        root
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Makes the scripts believe that systemd runs.
    fn with_systemd(self) -> Self {
        fs::create_dir_all(self.path("run/systemd/system")).unwrap();
        let program = self.path("usr/bin/systemctl");
        fs::write(&program, reporting("systemctl")).unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// Runs dpkg, which changes its root for the scripts: in a user namespace, unless this user may.
    fn dpkg(&self, args: &[&str]) {
        let doing = format!("running dpkg {args:?}");
        let dpkg = match fs::metadata("/proc/self").unwrap().uid() {
            0 => Step::new("dpkg", doing, ""),
            _ => Step::new("unshare", doing, "").args(["--map-root-user", "dpkg"]),
        };
        dpkg.arg(format!("--root={}", self.dir.path().display())).args(args).ask().unwrap();
    }

    /// The calls of programs since the last look.
    fn called(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path(CALLED)).unwrap_or_default();
        let _ = fs::remove_file(self.path(CALLED));
        calls.lines().map(ToOwned::to_owned).collect()
    }

    fn install(&self, version: &str) {
        let arch = Arch::native().unwrap();
        let binaries = ["usr/bin/ferrule-agent", "usr/bin/ferrulectl", "usr/lib/cni/ferrule"];
        let binaries = binaries.map(|path| (path, reporting(path.rsplit('/').next().unwrap()).into_bytes()));
        let mut tree = tree(&Workspace::find().unwrap(), arch, binaries).unwrap();
        let control = String::from_utf8(tree["DEBIAN/control"].content().to_vec()).unwrap();
        let control = control.replace(&format!("Version: {VERSION}"), &format!("Version: {version}"));
        tree.insert("DEBIAN/control".to_owned(), Node::File(control.into_bytes()));
        let package = self.path("tmp/ferrule.deb");
        pack(&self.path("tmp/tree"), &tree, &package, 0).unwrap();
        self.dpkg(&["--install", &package.display().to_string()]);
    }

    fn settings(&self) -> Option<String> {
        fs::read_to_string(self.path(CONFFILE)).ok()
    }
}

/// A program that writes how it is called.
fn reporting(name: &str) -> String {
    format!("#!/bin/sh\necho \"{name} $*\" >>/{CALLED}\n")
}

#[test]
fn without_systemd_an_upgrade_keeps_settings_and_only_a_removal_cleans_the_machine() {
    let root = Root::make();
    root.install(EARLIER);
    for file in ["usr/bin/ferrule-agent", "usr/lib/cni/ferrule", "lib/systemd/system/ferrule-agent.service"] {
        assert!(root.path(file).is_file(), "{file}");
    }
    fs::write(root.path(CONFFILE), SETTINGS).unwrap();
    root.install(VERSION);
    assert_eq!(root.called(), [""; 0], "an upgrade");
    assert_eq!(root.settings().as_deref(), Some(SETTINGS));
    root.dpkg(&["--remove", "ferrule"]);
    assert_eq!(root.called(), ["ferrule-agent uninstall"]);
    assert!(!root.path("usr/bin/ferrule-agent").exists());
    assert_eq!(root.settings().as_deref(), Some(SETTINGS), "until the package is purged");
    root.dpkg(&["--purge", "ferrule"]);
    assert_eq!((root.settings(), root.path("etc/ferrule").exists()), (None, false));
}

#[test]
fn with_systemd_an_upgrade_restarts_a_running_agent_and_a_removal_stops_it_before_it_cleans() {
    let root = Root::make().with_systemd();
    root.install(EARLIER);
    assert_eq!(root.called(), ["systemctl --system daemon-reload"], "the service waits for its settings");
    root.install(VERSION);
    let [.., reload, restart] = &root.called()[..] else { panic!("no calls") };
    assert_eq!(reload, "systemctl --system daemon-reload");
    assert_eq!(restart, "systemctl try-restart ferrule-agent.service");
    root.dpkg(&["--purge", "ferrule"]);
    let called = root.called();
    assert_eq!(called[..2], ["systemctl disable --now ferrule-agent.service", "ferrule-agent uninstall"]);
    assert!(called[2..].iter().all(|it| it == "systemctl --system daemon-reload"), "{called:?}");
}
