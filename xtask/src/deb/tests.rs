//! What the package holds, and that dpkg takes it; and the systemd unit.

use super::*;

fn files() -> Tree {
    let binaries = ["usr/bin/ferrule-agent", "usr/bin/ferrulectl", "usr/lib/cni/ferrule"];
    tree(&Workspace::find().unwrap(), Arch::Arm64, binaries.map(|path| (path, b"#!/bin/true\n".to_vec())))
        .unwrap()
}

fn text(tree: &Tree, path: &str) -> String {
    String::from_utf8(tree[path].content().to_vec()).unwrap()
}

#[test]
fn everything_that_the_package_refers_to_is_in_it() {
    let tree = files();
    let unit = text(&tree, "lib/systemd/system/ferrule-agent.service");
    let [start] = values(&unit, "ExecStart").try_into().unwrap();
    assert_eq!(start, "/usr/bin/ferrule-agent --standalone");
    assert!(tree.contains_key("usr/bin/ferrule-agent"));
    let [manual] = values(&unit, "Documentation").try_into().unwrap();
    assert!(tree.contains_key(manual.strip_prefix("file:/").unwrap()), "{manual}");
    for line in text(&tree, "DEBIAN/conffiles").lines() {
        assert!(tree.contains_key(line.strip_prefix('/').unwrap()), "{line}");
    }
    let control = text(&tree, "DEBIAN/control");
    assert!(control.contains("Architecture: arm64\n") && !control.contains("${"), "{control}");
    // The alerts name sections of a page.
    assert!(text(&tree, "usr/share/doc/ferrule/examples/rules.yaml").contains("runbook: docs/runbooks.md#"));
    assert!(tree.contains_key("usr/share/doc/ferrule/runbooks.md"));
    let settings: toml::Table = text(&tree, CONFFILE).parse().unwrap();
    assert!(settings.is_empty(), "a range that suits every machine does not exist");
}

#[test]
fn dpkg_reads_the_package_and_the_same_files_make_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    // New folders inherit the set-group-ID bit, which stands for any mode that the machine would choose.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o2755)).unwrap();
    let [one, two] = ["one.deb", "two.deb"].map(|name| dir.path().join(name));
    for output in [&one, &two] {
        pack(&dir.path().join("tree"), &files(), output, 1_700_000_000).unwrap();
    }
    assert!(fs::read(&one).unwrap() == fs::read(&two).unwrap());
    let show = |flag: &str| Step::new("dpkg-deb", "reading it", "").arg(flag).arg(&one).ask().unwrap();
    assert!(show("--field").contains("Package: ferrule\n"));
    let contents = show("--contents");
    for (path, mode) in [("./usr/lib/cni/ferrule", "-rwxr-xr-x"), ("./etc/ferrule/agent.toml", "-rw-r--r--")]
    {
        let line = contents.lines().find(|line| line.ends_with(path)).unwrap();
        assert!(line.starts_with(&format!("{mode} root/root")) && line.contains("2023-11-14"), "{line}");
    }
    let folders: Vec<&str> = contents.lines().filter(|line| line.ends_with('/')).collect();
    assert!(folders.len() > 5 && folders.iter().all(|it| it.starts_with("drwxr-xr-x")), "{contents}");
}

#[test]
fn the_scripts_are_valid_and_a_removal_cleans_the_machine_only_once() {
    let tree = files();
    for name in SCRIPTS {
        let script = text(&tree, &format!("DEBIAN/{name}"));
        Step::new("sh", "checking the script", "").args(["-n", "-c", &script]).ask().unwrap();
    }
    // Without systemd, as in a chroot, and with a program in the agent's place.
    let dir = tempfile::tempdir().unwrap();
    let script = text(&tree, "DEBIAN/prerm")
        .replace("ferrule-agent uninstall", "echo uninstall")
        .replace("/run/systemd/system", "/no/such");
    let path = dir.path().join("prerm");
    fs::write(&path, script).unwrap();
    let run = |arg: &str| Step::new("sh", "running prerm", "").arg(&path).arg(arg).ask().unwrap();
    assert_eq!((run("remove").as_str(), run("upgrade").as_str()), ("uninstall\n", ""));
}

/// The values of a setting of the systemd unit.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let settings = unit.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    settings.filter(|(name, _)| *name == key).map(|(_, value)| value).collect()
}

#[test]
fn the_systemd_unit_keeps_the_registry_and_what_the_agent_needs() {
    let folder = Workspace::find().unwrap().root.join("deploy/systemd");
    let unit = fs::read_to_string(folder.join("ferrule-agent.service")).unwrap();
    for (key, expected) in [
        ("Type", "exec"),
        ("ExecStart", "/usr/local/bin/ferrule-agent --standalone"),
        ("RestartPreventExitStatus", "64"),
        ("SuccessExitStatus", "75"),
        ("RuntimeDirectory", "ferrule"),
        ("RuntimeDirectoryMode", "0700"),
        ("RuntimeDirectoryPreserve", "yes"),
        ("LimitMEMLOCK", "infinity"),
        ("TimeoutStopSec", "40"),
        ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
    ] {
        assert_eq!(values(&unit, key), [expected], "{key}");
    }
    let capabilities: Vec<_> =
        values(&unit, "CapabilityBoundingSet").join(" ").split(' ').map(str::to_owned).collect();
    for needed in ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"] {
        assert!(capabilities.iter().any(|it| it == needed), "{needed}");
    }
    for forbidden in ["ProtectKernelTunables", "PrivateNetwork", "RestrictNamespaces", "PrivateUsers", "User"]
    {
        assert!(values(&unit, forbidden).is_empty(), "{forbidden}");
    }
    assert!(crate::tools::is_there("systemd-analyze"), "install Debian's package systemd, which has it");
    // The agent is not installed here.
    let installed = "/usr/local/bin/ferrule-agent --standalone";
    let dir = std::env::temp_dir().join(format!("ferrule-unit-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let copy = dir.join("ferrule-agent.service");
    fs::write(&copy, unit.replace(installed, "/bin/true")).unwrap();
    let verified = std::process::Command::new("systemd-analyze").arg("verify").arg(&copy).output();
    fs::remove_dir_all(&dir).unwrap();
    let verified = verified.unwrap();
    let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success() && !complaints.contains("ferrule-agent.service"), "{complaints}");
}
