//! Installation of the shim and the CNI configuration on the node, where container runtimes find them.
//!
//! Each file is written under a temporary name and then renamed: a runtime sees the old file or the new one,
//! never a part, and a shim in execution can be replaced (writing to it would fail with ETXTBSY).

mod conflist;
mod first;
mod watch;

use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

pub use watch::Watch;

use self::{conflist::Present, first::CONFLIST};

/// The directories of the node's container runtime, and the agent's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Install {
    /// The runtime's directory of CNI plugins.
    pub bin_dir: PathBuf,
    /// The runtime's directory of network configurations.
    pub conf_dir: PathBuf,
    /// The path by which the shim opens the agent's socket.
    pub socket: PathBuf,
}

/// The CNI configuration as the runtime has it now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conflist {
    /// Whether the file was missing, or what is the agent's in it was changed.
    pub is_new: bool,
    /// The plugins of other programs that run behind this one, in their order.
    pub chained: Vec<String>,
}

/// A file that could not be installed. The previous file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error(
        "cannot read the shim {path:?}, which is shipped beside the agent: install both from one image or build"
    )]
    NoShim {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "cannot {what} {path:?}: mount the node's directory writable, grant the capabilities in deploy/chart, and \
         free space on its file system"
    )]
    Write {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot list {path:?} to find the configuration that the runtime uses")]
    First {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path:?} differs from the content written to it: check the file system and its disk")]
    Differs { path: PathBuf },
    #[error(
        "the socket's path {path:?} is not UTF-8, which a CNI configuration requires: choose another --socket"
    )]
    NotText { path: PathBuf },
}

/// The name of the binary, which is the CNI plugin type.
const SHIM: &str = "ferrule";

// === impl Install ===

impl Install {
    /// Installs the shim that is shipped with this agent into [`Self::bin_dir`], and returns whether it was
    /// missing or another.
    ///
    /// # Errors
    /// If the shim is not beside the agent's own executable, or the directory cannot be written.
    pub fn shim(&self) -> Result<bool, InstallError> {
        let shipped = env::current_exe().map(|agent| agent.with_file_name(SHIM));
        let unknown = |source| InstallError::NoShim { path: SHIM.into(), source };
        self.shim_from(&shipped.map_err(unknown)?)
    }

    /// Installs the CNI configuration, with what other programs have appended to it. A file that has the
    /// agent's part is left alone. Must follow readiness: a runtime that finds the file reports the node's
    /// network as ready.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn conflist(&self) -> Result<Conflist, InstallError> {
        let path = self.conf_dir.join(CONFLIST);
        let mut network = self.network()?;
        let Present { is_intact, others } = Present::read(&path, &network);
        let chained = others.iter().filter_map(conflist::kind).map(str::to_owned).collect();
        if is_intact {
            // Left by a crash. A file system that is read-only by now is no reason to fail.
            let _ = remove(&beside(&path));
            return Ok(Conflist { is_new: false, chained });
        }
        if let Some(plugins) = network.get_mut("plugins").and_then(Value::as_array_mut) {
            plugins.extend(others);
        }
        let is_new = put(&path, format!("{network:#}\n").as_bytes(), 0o644)?;
        Ok(Conflist { is_new, chained })
    }

    /// Removes the CNI configuration, so that the runtime calls the plugin no more. Returns whether there was
    /// one.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn remove_conflist(&self) -> Result<bool, InstallError> {
        take_away(&self.conf_dir.join(CONFLIST))
    }

    /// Removes the shim. Returns whether there was one.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn remove_shim(&self) -> Result<bool, InstallError> {
        take_away(&self.bin_dir.join(SHIM))
    }

    /// The configuration that the runtime uses instead of one with this plugin, if any.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn foreign_first(&self) -> Result<Option<String>, InstallError> {
        first::foreign_first(&self.conf_dir, SHIM)
            .map_err(|source| InstallError::First { path: self.conf_dir.clone(), source })
    }

    /// The configurations of others that call this plugin, such as an operator's chain.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn callers(&self) -> Result<Vec<PathBuf>, InstallError> {
        let names = match first::with_plugin(&self.conf_dir, SHIM) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            found => found.map_err(|source| InstallError::First { path: self.conf_dir.clone(), source })?,
        };
        let others = names.into_iter().filter(|name| name != CONFLIST);
        Ok(others.map(|name| self.conf_dir.join(name)).collect())
    }

    /// Whether the runtime finds a shim, of whichever agent.
    pub fn has_shim(&self) -> bool {
        let shim = fs::metadata(self.bin_dir.join(SHIM));
        shim.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    }

    fn shim_from(&self, shipped: &Path) -> Result<bool, InstallError> {
        let content =
            fs::read(shipped).map_err(|source| InstallError::NoShim { path: shipped.to_owned(), source })?;
        put(&self.bin_dir.join(SHIM), &content, 0o755)
    }

    /// Runtimes with CNI 1.1 (containerd 2, CRI-O 1.31) choose the highest of `cniVersions` and so use STATUS
    /// and GC. Older ones (containerd 1.6 and 1.7) read `cniVersion` and would reject 1.1.0.
    fn network(&self) -> Result<Value, InstallError> {
        let mut plugin = json!({
            "type": SHIM,
            "capabilities": { "io.kubernetes.cri.pod-annotations": true, "portMappings": true, "bandwidth": true },
        });
        if self.socket != Path::new(ferrule_proto::DEFAULT_SOCKET)
            && let Some(plugin) = plugin.as_object_mut()
        {
            let socket = self.socket.to_str();
            let socket = socket.ok_or_else(|| InstallError::NotText { path: self.socket.clone() })?;
            plugin.insert("socket".to_owned(), socket.into());
        }
        Ok(json!({
            "cniVersion": "1.0.0",
            "cniVersions": ["1.0.0", "1.1.0"],
            "name": "ferrule",
            "plugins": [plugin],
        }))
    }
}

/// Installs a file durably with this content and mode, and returns whether there was a need. Leaves an
/// identical file alone.
fn put(path: &Path, content: &[u8], mode: u32) -> Result<bool, InstallError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let fresh = beside(path);
    fs::create_dir_all(directory).map_err(failed("create the directory", directory))?;
    // Left by a crash: only one agent runs on a node at a time.
    let removed = remove(&fresh);
    // A file system that is read-only by now is no reason to fail then.
    if holds(path, content, mode) {
        return Ok(false);
    }
    removed?;
    let put = write(&fresh, content, mode).and_then(|()| {
        fs::rename(&fresh, path).map_err(failed("rename the new file to", path))?;
        fs::File::open(directory)
            .and_then(|it| it.sync_all())
            .map_err(failed("sync the directory", directory))
    });
    if put.is_err() {
        // The first error is reported.
        let _ = remove(&fresh);
    }
    put.map(|()| true)
}

fn write(fresh: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    // `create_new` follows no symbolic link.
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(fresh)
        .map_err(failed("create", fresh))?;
    file.write_all(content).map_err(failed("write", fresh))?;
    // The umask applies only to the mode at creation.
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed("set the mode of", fresh))?;
    file.sync_all().map_err(failed("sync", fresh))?;
    drop(file);
    if holds(fresh, content, mode) { Ok(()) } else { Err(InstallError::Differs { path: fresh.to_owned() }) }
}

/// Whether the path is a regular file, not a link, with this content and mode.
fn holds(path: &Path, content: &[u8], mode: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o7777 == mode)
        && fs::read(path).is_ok_and(|it| it == content)
}

/// Removes an installed file, and what a crash has left of its installation.
fn take_away(path: &Path) -> Result<bool, InstallError> {
    remove(&beside(path))?;
    remove(path)
}

/// Returns whether there was a file.
fn remove(path: &Path) -> Result<bool, InstallError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("remove", path)(error)),
    }
}

/// A temporary name in the same directory, so on the same file system; runtimes skip its suffix.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> InstallError + 'a {
    move |source| InstallError::Write { what, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{MetadataExt as _, symlink},
        process::{Command, Stdio},
    };

    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;

    fn node() -> (TempDir, Install) {
        let dir = tempfile::tempdir().unwrap();
        let install = Install {
            bin_dir: dir.path().join("opt/cni/bin"),
            conf_dir: dir.path().join("etc/cni/net.d"),
            socket: ferrule_proto::DEFAULT_SOCKET.into(),
        };
        (dir, install)
    }

    fn shipped(dir: &TempDir, content: &[u8]) -> PathBuf {
        let path = dir.path().join("shipped");
        fs::write(&path, content).unwrap();
        path
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn the_shim_is_installed_executable() {
        let (dir, install) = node();
        install.shim_from(&shipped(&dir, b"one")).unwrap();
        let plugin = install.bin_dir.join("ferrule");
        assert_eq!((fs::read(&plugin).unwrap(), mode(&plugin)), (b"one".to_vec(), 0o755));
        install.shim_from(&shipped(&dir, b"longer")).unwrap();
        assert_eq!(fs::read(&plugin).unwrap(), b"longer");
        assert_eq!(names(&install.bin_dir), ["ferrule"]);
    }

    #[test]
    fn an_identical_shim_is_left_alone() {
        let (dir, install) = node();
        let shipped = shipped(&dir, b"one");
        let plugin = install.bin_dir.join("ferrule");
        install.shim_from(&shipped).unwrap();
        let first = fs::metadata(&plugin).unwrap().ino();
        assert!(!install.shim_from(&shipped).unwrap());
        assert_eq!(fs::metadata(&plugin).unwrap().ino(), first);
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(install.shim_from(&shipped).unwrap());
        assert_eq!(mode(&plugin), 0o755, "the mode is repaired");
    }

    #[test]
    fn a_temporary_file_left_by_a_crash_is_removed() {
        let (dir, install) = node();
        let shipped = shipped(&dir, b"one");
        install.shim_from(&shipped).unwrap();
        for _ in ["before an installation", "and where the file is identical"] {
            fs::write(install.bin_dir.join(".ferrule.new"), "half").unwrap();
            install.shim_from(&shipped).unwrap();
            assert_eq!(names(&install.bin_dir), ["ferrule"]);
        }
    }

    #[test]
    fn links_are_replaced_and_not_followed() {
        let (dir, install) = node();
        let other = dir.path().join("other");
        fs::write(&other, "not ours").unwrap();
        fs::create_dir_all(&install.bin_dir).unwrap();
        for name in ["ferrule", ".ferrule.new"] {
            symlink(&other, install.bin_dir.join(name)).unwrap();
        }
        install.shim_from(&shipped(&dir, b"one")).unwrap();
        assert_eq!(fs::read(install.bin_dir.join("ferrule")).unwrap(), b"one");
        assert_eq!(fs::read(&other).unwrap(), b"not ours");
    }

    #[test]
    fn a_shim_in_execution_is_replaced_without_text_file_busy() {
        let (dir, install) = node();
        let plugin = install.bin_dir.join("ferrule");
        fs::create_dir_all(&install.bin_dir).unwrap();
        // `cp` copies in its own process: a file open for writing here would be inherited, and so busy, by a
        // child that another test forks at the same time.
        assert!(Command::new("cp").arg("/bin/sleep").arg(&plugin).status().unwrap().success());
        let mut running = Command::new(&plugin).arg("60").stdin(Stdio::null()).spawn().unwrap();
        let in_place = fs::File::options().write(true).open(&plugin);
        let replaced = install.shim_from(&shipped(&dir, b"new"));
        let runs_on = running.try_wait().unwrap().is_none();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(in_place.unwrap_err().kind(), io::ErrorKind::ExecutableFileBusy, "writing in place fails");
        replaced.unwrap();
        assert!(runs_on);
        assert_eq!(fs::read(&plugin).unwrap(), b"new");
    }

    #[test]
    fn what_was_installed_is_removed_and_nothing_else() {
        let (dir, install) = node();
        install.shim_from(&shipped(&dir, b"one")).unwrap();
        install.conflist().unwrap();
        fs::write(install.bin_dir.join("loopback"), "not ours").unwrap();
        fs::write(install.conf_dir.join(".05-ferrule.conflist.new"), "half").unwrap();
        assert!(install.remove_conflist().unwrap() && install.remove_shim().unwrap());
        assert_eq!(names(&install.bin_dir), ["loopback"]);
        assert_eq!(names(&install.conf_dir), [""; 0]);
        assert!(!install.remove_conflist().unwrap() && !install.remove_shim().unwrap());
    }

    #[test]
    fn a_failed_installation_keeps_the_previous_file() {
        let (dir, install) = node();
        let gone = install.shim_from(&dir.path().join("gone")).unwrap_err();
        assert!(matches!(gone, InstallError::NoShim { .. }), "{gone}");
        // A file cannot replace a directory.
        fs::create_dir_all(install.bin_dir.join("ferrule/kept")).unwrap();
        let refused = install.shim_from(&shipped(&dir, b"one")).unwrap_err();
        assert!(matches!(refused, InstallError::Write { what: "rename the new file to", .. }), "{refused}");
        assert_eq!(names(&install.bin_dir), ["ferrule"]);
    }

    #[test]
    fn the_configuration_offers_cni_versions_to_old_and_new_runtimes() {
        let (_dir, install) = node();
        install.conflist().unwrap();
        let path = install.conf_dir.join("05-ferrule.conflist");
        assert_eq!(mode(&path), 0o644);
        let network: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let expected = json!({
            "cniVersion": "1.0.0",
            "cniVersions": ["1.0.0", "1.1.0"],
            "name": "ferrule",
            "plugins": [{
                "type": "ferrule",
                "capabilities": { "io.kubernetes.cri.pod-annotations": true, "portMappings": true, "bandwidth": true },
            }],
        });
        assert_eq!(network, expected);
    }

    #[test]
    fn an_upgrade_keeps_the_entries_of_others_and_a_removal_does_not() {
        let (_dir, mut install) = node();
        let path = install.conf_dir.join("05-ferrule.conflist");
        let plugins = || {
            let network: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            network["plugins"].as_array().unwrap().clone()
        };
        assert_eq!(install.conflist().unwrap(), Conflist { is_new: true, chained: Vec::new() });
        let mut network: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        network["plugins"].as_array_mut().unwrap().push(json!({ "type": "istio-cni", "log_level": "info" }));
        fs::write(&path, network.to_string()).unwrap();
        let chained = vec!["istio-cni".to_owned()];
        assert_eq!(install.conflist().unwrap(), Conflist { is_new: false, chained: chained.clone() });
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            network.to_string(),
            "left as the other has written it"
        );
        install.socket = "/run/other/agent.sock".into();
        assert_eq!(install.conflist().unwrap(), Conflist { is_new: true, chained });
        assert_eq!(plugins()[0]["socket"], "/run/other/agent.sock");
        assert_eq!(plugins()[1..], [json!({ "type": "istio-cni", "log_level": "info" })]);
        assert!(install.remove_conflist().unwrap());
        assert_eq!(install.conflist().unwrap(), Conflist { is_new: true, chained: Vec::new() });
        assert_eq!(plugins().len(), 1);
    }

    #[test]
    fn the_configuration_in_the_readme_is_for_the_same_runtimes() {
        let readme = include_str!("../../README.md");
        let (_, rest) = readme.split_once("05-ferrule.conflist <<'EOF'\n").unwrap();
        let network: Value = serde_json::from_str(rest.split("EOF").next().unwrap()).unwrap();
        let expected = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "ferrule" }] });
        assert_eq!(network, expected, "podman of Debian 12 refuses 1.1.0");
    }

    #[test]
    fn the_configuration_names_a_socket_that_is_not_the_default() {
        let (_dir, mut install) = node();
        install.socket = "/run/other/agent.sock".into();
        let network = install.network().unwrap();
        assert_eq!(network.pointer("/plugins/0/socket"), Some(&json!("/run/other/agent.sock")));
    }
}
