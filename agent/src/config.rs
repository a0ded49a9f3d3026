//! The configuration: flags over environment over file, checked once.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Parser;
use ipnet::IpNet;
use serde::Deserialize;

use crate::dataplane::LogLevel;

/// The configuration that the agent runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The ranges that pods get addresses from; their sense is checked by the IPAM.
    pub pod_cidrs: Vec<IpNet>,
    /// Where the agent listens.
    pub socket: PathBuf,
    /// What must survive a crash.
    pub state_dir: PathBuf,
    /// Parent of the directory with pinned maps; on a BPF file system.
    pub bpf_dir: PathBuf,
    /// How much the eBPF programs log.
    pub ebpf_log: LogLevel,
}

/// The Ferrule agent: gives pods their network interfaces and carries their packets in eBPF.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Args {
    /// Configuration file (TOML). Its keys are the long flags, with `_` for `-`.
    #[arg(long, env = "FERRULE_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
    #[command(flatten)]
    settings: Settings,
}

/// What can be set, wherever it is set.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// Serve container runtimes without Kubernetes: addresses come from `--pod-cidr`.
    #[arg(long, env = "FERRULE_STANDALONE", num_args = 0..=1, default_missing_value = "true")]
    standalone: Option<bool>,
    /// Range to give pods addresses from; repeat it for IPv4 and IPv6, or for more room.
    #[arg(long = "pod-cidr", env = "FERRULE_POD_CIDR", value_delimiter = ',', value_name = "CIDR")]
    #[serde(rename = "pod_cidr")]
    pod_cidrs: Vec<IpNet>,
    /// Unix socket to listen on; its directory is the agent's own [default: /run/ferrule/agent.sock].
    #[arg(long, env = "FERRULE_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory for what must survive a crash [default: /run/ferrule].
    #[arg(long, env = "FERRULE_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Directory for pinned maps, on a BPF file system [default: /sys/fs/bpf/ferrule].
    #[arg(long, env = "FERRULE_BPF_DIR", value_name = "DIR")]
    bpf_dir: Option<PathBuf>,
    /// How much the eBPF programs log; anything but `off` costs every packet [default: off].
    #[arg(long, env = "FERRULE_EBPF_LOG", value_enum, value_name = "LEVEL")]
    ebpf_log: Option<LogLevel>,
}

/// A configuration that the agent cannot run with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the configuration file {path:?} is not valid: {source}")]
    Parse {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("this version serves container runtimes without Kubernetes only: say so with --standalone")]
    NotStandalone,
    #[error("there is no range to give pods addresses from: give at least one --pod-cidr")]
    NoPodCidr,
    #[error("{what} must be an absolute path, not {path:?}")]
    Relative { what: &'static str, path: PathBuf },
}

const DEFAULT_FILE: &str = "/etc/ferrule/agent.toml";

// === impl Args ===

impl Args {
    /// Reads the file, and checks all of it.
    ///
    /// # Errors
    /// If the file cannot be read or understood (unless it is the default one and missing), or a setting makes no
    /// sense.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let file = read(&self.config)?;
        self.settings.over(file).validate()
    }
}

// === impl Settings ===

impl Settings {
    /// Clap has put flags over the environment already.
    fn over(self, file: Self) -> Self {
        Self {
            standalone: self.standalone.or(file.standalone),
            pod_cidrs: if self.pod_cidrs.is_empty() { file.pod_cidrs } else { self.pod_cidrs },
            socket: self.socket.or(file.socket),
            state_dir: self.state_dir.or(file.state_dir),
            bpf_dir: self.bpf_dir.or(file.bpf_dir),
            ebpf_log: self.ebpf_log.or(file.ebpf_log),
        }
    }

    fn validate(self) -> Result<Config, ConfigError> {
        if !self.standalone.unwrap_or_default() {
            return Err(ConfigError::NotStandalone);
        }
        if self.pod_cidrs.is_empty() {
            return Err(ConfigError::NoPodCidr);
        }
        Ok(Config {
            pod_cidrs: self.pod_cidrs,
            socket: absolute("--socket", self.socket, ferrule_proto::DEFAULT_SOCKET)?,
            state_dir: absolute("--state-dir", self.state_dir, "/run/ferrule")?,
            bpf_dir: absolute("--bpf-dir", self.bpf_dir, "/sys/fs/bpf/ferrule")?,
            ebpf_log: self.ebpf_log.unwrap_or_default(),
        })
    }
}

fn read(path: &Path) -> Result<Settings, ConfigError> {
    match fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) }),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path == Path::new(DEFAULT_FILE) => {
            Ok(Settings::default())
        }
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

fn absolute(what: &'static str, path: Option<PathBuf>, default: &str) -> Result<PathBuf, ConfigError> {
    let path = path.unwrap_or_else(|| PathBuf::from(default));
    if path.is_absolute() { Ok(path) } else { Err(ConfigError::Relative { what, path }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(flags: &[&str], file: Option<&str>) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        let mut line = vec!["ferrule-agent"];
        if let Some(file) = file {
            fs::write(&path, file).unwrap();
            line.extend(["--config", path.to_str().unwrap()]);
        }
        line.extend(flags);
        Args::try_parse_from(line).unwrap().into_config()
    }

    #[test]
    fn flags_are_enough_and_paths_have_defaults() {
        let config =
            config(&["--standalone", "--pod-cidr", "10.0.0.0/24", "--pod-cidr", "fd00::/64"], None).unwrap();
        assert_eq!(config.pod_cidrs, ["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        assert_eq!(config.socket, Path::new("/run/ferrule/agent.sock"));
        assert_eq!(config.ebpf_log, LogLevel::Off);
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let file =
            "standalone = true\npod_cidr = [\"10.9.0.0/16\"]\nstate_dir = \"/a\"\nebpf_log = \"debug\"\n";
        let config = config(&["--state-dir", "/b"], Some(file)).unwrap();
        assert_eq!(config.pod_cidrs, ["10.9.0.0/16".parse().unwrap()]);
        assert_eq!(config.state_dir, Path::new("/b"));
        assert_eq!(config.ebpf_log, LogLevel::Debug);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(matches!(config(&[], None), Err(ConfigError::NotStandalone)));
        assert!(matches!(config(&["--standalone"], None), Err(ConfigError::NoPodCidr)));
        let relative = config(&["--standalone", "--pod-cidr", "10.0.0.0/24", "--socket", "x"], None);
        assert!(matches!(relative, Err(ConfigError::Relative { what: "--socket", .. })));
        assert!(
            matches!(config(&[], Some("sock = \"/x\"")), Err(ConfigError::Parse { .. })),
            "a typo is an error"
        );
        assert!(matches!(config(&["--config", "/nowhere.toml"], None), Err(ConfigError::Read { .. })));
    }
}
