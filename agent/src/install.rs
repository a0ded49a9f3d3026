//! What the agent puts on the node, so that container runtimes find it: the shim, and the network configuration.
//!
//! Each file is written beside its place and then renamed, so that a runtime sees the old one or the new one, never a
//! part, and so that a shim that is being executed is not written to ("text file busy").

use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use serde_json::json;

/// Where this node's container runtime looks for plugins and for networks, and where the agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Install {
    /// The runtime's directory of CNI plugins.
    pub bin_dir: PathBuf,
    /// The runtime's directory of network configurations.
    pub conf_dir: PathBuf,
    /// The agent's socket, as the shim is to open it.
    pub socket: PathBuf,
}

/// A file that could not be put on the node. What was there before is there still.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The shim is not where it is shipped.
    #[error(
        "cannot read the shim {path:?}; it is shipped beside the agent: install both from one image or build"
    )]
    NoShim {
        /// Where it should be.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a step.
    #[error(
        "cannot {what} {path:?}; the directory must be the node's own, be writable by the agent, and have room: see the \
         volumes and capabilities in deploy/agent.yaml"
    )]
    Write {
        /// What was attempted.
        what: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The file system gave back something else than it was given.
    #[error("{path:?} does not hold what was written to it; check the file system and the disk below it")]
    Differs {
        /// The temporary file.
        path: PathBuf,
    },
    /// JSON is text.
    #[error(
        "the socket's path {path:?} is not UTF-8, so no network configuration can name it: choose another --socket"
    )]
    NotText {
        /// The socket.
        path: PathBuf,
    },
}

/// Where container runtimes look for plugins unless they are told otherwise.
pub const DEFAULT_BIN_DIR: &str = "/opt/cni/bin";
/// Where container runtimes look for network configurations unless they are told otherwise.
pub const DEFAULT_CONF_DIR: &str = "/etc/cni/net.d";

/// The shim's name, which is the plugin's type.
const SHIM: &str = "ferrule";
/// Runtimes take the first by name.
const CONFLIST: &str = "05-ferrule.conflist";

// === impl Install ===

impl Install {
    /// Makes the plugin `ferrule` of [`Self::bin_dir`] the one that was shipped with this agent.
    ///
    /// # Errors
    /// If the shim does not lie beside the agent's own executable, or the directory cannot be written.
    pub fn shim(&self) -> Result<(), InstallError> {
        let shipped = env::current_exe().map(|agent| agent.with_file_name(SHIM));
        let unknown = |source| InstallError::NoShim { path: SHIM.into(), source };
        self.shim_from(&shipped.map_err(unknown)?)
    }

    /// Makes the network `ferrule` the one that container runtimes choose. To be called last: from then on, a runtime
    /// says that the node's network is ready.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn conflist(&self) -> Result<(), InstallError> {
        put(&self.conf_dir.join(CONFLIST), self.network()?.as_bytes(), 0o644)
    }

    fn shim_from(&self, shipped: &Path) -> Result<(), InstallError> {
        let content =
            fs::read(shipped).map_err(|source| InstallError::NoShim { path: shipped.to_owned(), source })?;
        put(&self.bin_dir.join(SHIM), &content, 0o755)
    }

    /// `cniVersions` is for runtimes that know CNI 1.1 (containerd 2, CRI-O 1.31): they take the highest that they speak,
    /// and so use STATUS and GC. Older ones (containerd 1.6 and 1.7) take `cniVersion` and would fail with 1.1.0.
    fn network(&self) -> Result<String, InstallError> {
        let mut plugin = json!({
            "type": SHIM,
            "capabilities": { "io.kubernetes.cri.pod-annotations": true },
        });
        if self.socket != Path::new(ferrule_proto::DEFAULT_SOCKET)
            && let Some(plugin) = plugin.as_object_mut()
        {
            let socket = self.socket.to_str();
            let socket = socket.ok_or_else(|| InstallError::NotText { path: self.socket.clone() })?;
            plugin.insert("socket".to_owned(), socket.into());
        }
        let network = json!({
            "cniVersion": "1.0.0",
            "cniVersions": ["1.0.0", "1.1.0"],
            "name": "ferrule",
            "plugins": [plugin],
        });
        Ok(format!("{network:#}\n"))
    }
}

/// Makes `path` a file with this content and mode, and durable. A file that is right already is not touched.
fn put(path: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let fresh = beside(path);
    fs::create_dir_all(directory).map_err(failed("make the directory", directory))?;
    // What a crash left. One agent works on a node at a time, so that it is nobody else's.
    remove(&fresh)?;
    if holds(path, content, mode) {
        return Ok(());
    }
    let put = write(&fresh, content, mode).and_then(|()| {
        fs::rename(&fresh, path).map_err(failed("put in place", path))?;
        fs::File::open(directory).and_then(|it| it.sync_all()).map_err(failed("make durable", directory))
    });
    if put.is_err() {
        // The first error is the one to tell.
        let _ = remove(&fresh);
    }
    put
}

fn write(fresh: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    // Not through a link that somebody has put there.
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(fresh)
        .map_err(failed("make", fresh))?;
    file.write_all(content).map_err(failed("write", fresh))?;
    // Now, and not at its making, where the umask counts.
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed("set the mode of", fresh))?;
    file.sync_all().map_err(failed("make durable", fresh))?;
    drop(file);
    if holds(fresh, content, mode) { Ok(()) } else { Err(InstallError::Differs { path: fresh.to_owned() }) }
}

/// Whether it is a file, and no link, with this content and mode.
fn holds(path: &Path, content: &[u8], mode: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o7777 == mode)
        && fs::read(path).is_ok_and(|it| it == content)
}

fn remove(path: &Path) -> Result<(), InstallError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// A name in the same directory, hence on the same file system. Hidden, and with an end that runtimes skip.
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
    fn the_shim_is_put_there_whole_and_executable() {
        let (dir, install) = node();
        install.shim_from(&shipped(&dir, b"one")).unwrap();
        let plugin = install.bin_dir.join("ferrule");
        assert_eq!((fs::read(&plugin).unwrap(), mode(&plugin)), (b"one".to_vec(), 0o755));
        install.shim_from(&shipped(&dir, b"longer")).unwrap();
        assert_eq!(fs::read(&plugin).unwrap(), b"longer");
        assert_eq!(names(&install.bin_dir), ["ferrule"]);
    }

    #[test]
    fn a_shim_that_is_right_already_is_not_touched() {
        let (dir, install) = node();
        let shipped = shipped(&dir, b"one");
        let plugin = install.bin_dir.join("ferrule");
        install.shim_from(&shipped).unwrap();
        let first = fs::metadata(&plugin).unwrap().ino();
        install.shim_from(&shipped).unwrap();
        assert_eq!(fs::metadata(&plugin).unwrap().ino(), first);
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o644)).unwrap();
        install.shim_from(&shipped).unwrap();
        assert_eq!(mode(&plugin), 0o755, "but one that nobody may execute is not right");
    }

    #[test]
    fn what_a_crash_left_is_removed() {
        let (dir, install) = node();
        let shipped = shipped(&dir, b"one");
        install.shim_from(&shipped).unwrap();
        for _ in ["half a file before a whole one", "and where there is nothing to do"] {
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
    fn pain_8_a_plugin_in_use_is_replaced_without_text_file_busy() {
        let (dir, install) = node();
        let plugin = install.bin_dir.join("ferrule");
        fs::create_dir_all(&install.bin_dir).unwrap();
        // Copied by a process of its own: a file that is open for writing here would be busy in any child that another
        // test starts at the same time.
        assert!(Command::new("cp").arg("/bin/sleep").arg(&plugin).status().unwrap().success());
        let mut running = Command::new(&plugin).arg("60").stdin(Stdio::null()).spawn().unwrap();
        let in_place = fs::File::options().write(true).open(&plugin);
        let replaced = install.shim_from(&shipped(&dir, b"new"));
        let runs_on = running.try_wait().unwrap().is_none();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(in_place.unwrap_err().kind(), io::ErrorKind::ExecutableFileBusy, "the pain is real");
        replaced.unwrap();
        assert!(runs_on);
        assert_eq!(fs::read(&plugin).unwrap(), b"new");
    }

    #[test]
    fn an_install_that_fails_leaves_what_was_there() {
        let (dir, install) = node();
        let gone = install.shim_from(&dir.path().join("gone")).unwrap_err();
        assert!(matches!(gone, InstallError::NoShim { .. }), "{gone}");
        // A directory in its place cannot be replaced by a file.
        fs::create_dir_all(install.bin_dir.join("ferrule/kept")).unwrap();
        let refused = install.shim_from(&shipped(&dir, b"one")).unwrap_err();
        assert!(matches!(refused, InstallError::Write { what: "put in place", .. }), "{refused}");
        assert_eq!(names(&install.bin_dir), ["ferrule"]);
    }

    #[test]
    fn old_and_new_runtimes_find_a_version_that_they_speak() {
        let (_dir, install) = node();
        install.conflist().unwrap();
        let path = install.conf_dir.join("05-ferrule.conflist");
        assert_eq!(mode(&path), 0o644);
        let network: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let expected = json!({
            "cniVersion": "1.0.0",
            "cniVersions": ["1.0.0", "1.1.0"],
            "name": "ferrule",
            "plugins": [{ "type": "ferrule", "capabilities": { "io.kubernetes.cri.pod-annotations": true } }],
        });
        assert_eq!(network, expected);
    }

    #[test]
    fn the_shim_is_told_of_a_socket_elsewhere() {
        let (_dir, mut install) = node();
        install.socket = "/run/other/agent.sock".into();
        let network: Value = serde_json::from_str(&install.network().unwrap()).unwrap();
        assert_eq!(network.pointer("/plugins/0/socket"), Some(&json!("/run/other/agent.sock")));
    }
}
