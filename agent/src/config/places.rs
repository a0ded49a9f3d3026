//! Where an agent leaves files, and the command that removes them.

use super::{
    Args, ConfigError, InstallDirs, Kubernetes, Places, Settings, command::Command, validate::absolute,
};
use crate::dataplane::LogLevel;

// === impl Args ===

impl Args {
    /// Whether the node is to be cleaned, and whether the process is to stay then.
    pub fn uninstall(&self) -> Option<bool> {
        match self.command {
            Some(Command::Uninstall { stay }) => Some(stay),
            _ => None,
        }
    }

    /// Only the settings that say where an agent leaves files, and the API server, if the settings name a
    /// usable one: a node is cleaned without it, too.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or one of the settings of files is invalid.
    pub fn into_places(self) -> Result<(Places, Option<Kubernetes>), ConfigError> {
        let file = Settings::read(&self.config)?;
        let is_in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let settings = self.settings.over(file);
        Ok((settings.places(LogLevel::Off)?, settings.kubernetes(is_in_pod).ok().flatten()))
    }
}

// === impl Settings ===

impl Settings {
    /// `programs`: what the programs log, besides.
    pub(super) fn places(&self, programs: LogLevel) -> Result<Places, ConfigError> {
        let install = match (&self.cni_bin_dir, &self.cni_conf_dir) {
            (Some(bin), Some(conf)) => Some(InstallDirs {
                bin: absolute("--cni-bin-dir", Some(bin.clone()), "")?,
                conf: absolute("--cni-conf-dir", Some(conf.clone()), "")?,
            }),
            (None, None) => None,
            _ => return Err(ConfigError::HalfInstalled),
        };
        Ok(Places {
            install,
            socket: absolute("--socket", self.socket.clone(), ferrule_proto::DEFAULT_SOCKET)?,
            state_dir: absolute("--state-dir", self.state_dir.clone(), "/run/ferrule")?,
            bpf_dir: absolute("--bpf-dir", self.bpf_dir.clone(), "/sys/fs/bpf/ferrule")?,
            log: self.log(programs)?,
        })
    }
}
