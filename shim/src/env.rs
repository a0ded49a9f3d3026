//! The CNI environment variables: command and target.

use std::ffi::OsString;

use ferrule_proto::{
    cni::{Pod, error::Code},
    names::{ContainerId, IfName},
    quoted::Quoted,
};

use crate::{cni_args, error::CniError, version::CniVersion};

/// `CNI_COMMAND` with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    Add(Target, Pod),
    Del(Target),
    Check(Target),
    Gc,
    Status,
    Version,
}

/// `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

/// The interface that a command is about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Target {
    pub(crate) container_id: ContainerId,
    pub(crate) ifname: IfName,
    /// An absolute path; may be empty for DEL.
    pub(crate) netns: String,
}

/// The environment: returns the value of a variable.
pub(crate) trait Env: Fn(&str) -> Option<OsString> {}
impl<F: Fn(&str) -> Option<OsString>> Env for F {}

/// `PATH_MAX` in `linux/limits.h`, less the terminating NUL.
const MAX_PATH: usize = 4095;

// === impl Command ===

impl Command {
    /// Parses the command. Returns `None` without `CNI_COMMAND`: a person started the plugin.
    ///
    /// # Errors
    /// If the command is unknown, or if a variable of the command is missing or invalid. The error names all
    /// missing variables.
    pub(crate) fn from_env(env: &impl Env) -> Result<Option<Self>, CniError> {
        let Some(verb) = Verb::from_env(env)? else { return Ok(None) };
        Ok(Some(match verb {
            Verb::Add => Self::Add(Target::from_env(verb, env)?, pod(env)?),
            Verb::Del => Self::Del(Target::from_env(verb, env)?),
            Verb::Check => Self::Check(Target::from_env(verb, env)?),
            Verb::Gc => Self::Gc,
            Verb::Status => Self::Status,
            Verb::Version => Self::Version,
        }))
    }

    pub(crate) fn verb(&self) -> Verb {
        match self {
            Self::Add(..) => Verb::Add,
            Self::Del(_) => Verb::Del,
            Self::Check(_) => Verb::Check,
            Self::Gc => Verb::Gc,
            Self::Status => Verb::Status,
            Self::Version => Verb::Version,
        }
    }
}

// === impl Verb ===

impl Verb {
    /// The name in the specification.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    /// The version of the specification that introduced the verb.
    pub(crate) fn since(self) -> CniVersion {
        match self {
            Self::Add | Self::Del | Self::Version => CniVersion::V0_3_0,
            Self::Check => CniVersion::V0_4_0,
            Self::Gc | Self::Status => CniVersion::V1_1_0,
        }
    }

    fn from_env(env: &impl Env) -> Result<Option<Self>, CniError> {
        let Some(command) = variable(env, "CNI_COMMAND")? else { return Ok(None) };
        match command.as_str() {
            "ADD" => Ok(Some(Self::Add)),
            "DEL" => Ok(Some(Self::Del)),
            "CHECK" => Ok(Some(Self::Check)),
            "GC" => Ok(Some(Self::Gc)),
            "STATUS" => Ok(Some(Self::Status)),
            "VERSION" => Ok(Some(Self::Version)),
            other => Err(CniError::new(
                Code::InvalidEnvironment,
                format!("reading CNI_COMMAND: unknown command {}", Quoted(other)),
                "the runtime must set CNI_COMMAND to ADD, DEL, CHECK, GC, STATUS or VERSION",
            )),
        }
    }
}

// === impl Target ===

impl Target {
    fn from_env(verb: Verb, env: &impl Env) -> Result<Self, CniError> {
        let container_id = variable(env, "CNI_CONTAINERID")?;
        let netns = variable(env, "CNI_NETNS")?;
        let ifname = variable(env, "CNI_IFNAME")?;

        let netns_is_missing = netns.is_none() && verb != Verb::Del;
        let (Some(container_id), Some(ifname), false) = (&container_id, &ifname, netns_is_missing) else {
            return Err(missing(
                verb,
                [
                    ("CNI_CONTAINERID", container_id.is_none()),
                    ("CNI_NETNS", netns_is_missing),
                    ("CNI_IFNAME", ifname.is_none()),
                ],
            ));
        };
        Ok(Self {
            container_id: ContainerId::new(container_id).map_err(|e| refuse("CNI_CONTAINERID", e))?,
            ifname: IfName::new(ifname).map_err(|e| refuse("CNI_IFNAME", e))?,
            netns: checked_netns(netns.unwrap_or_default())?,
        })
    }
}

/// The pod. Only ADD parses it: after an ADD that failed for invalid arguments, the runtime sends a DEL with
/// the same arguments and retries it until it succeeds.
fn pod(env: &impl Env) -> Result<Pod, CniError> {
    cni_args::parse(&variable(env, "CNI_ARGS")?.unwrap_or_default())
}

/// The value of a variable. An empty variable counts as unset.
fn variable(env: &impl Env, name: &str) -> Result<Option<String>, CniError> {
    let value = env(name).map(OsString::into_string).transpose();
    let value = value.map_err(|_| refuse(name, "value is not UTF-8"))?;
    Ok(value.filter(|value| !value.is_empty()))
}

fn checked_netns(path: String) -> Result<String, CniError> {
    let quoted = Quoted(&path);
    if !path.is_empty() && !path.starts_with('/') {
        return Err(refuse("CNI_NETNS", format_args!("{quoted} is not an absolute path")));
    }
    if path.len() > MAX_PATH {
        return Err(refuse("CNI_NETNS", format_args!("{quoted} is longer than {MAX_PATH} bytes")));
    }
    if path.contains(char::is_control) {
        return Err(refuse("CNI_NETNS", format_args!("{quoted} has control characters")));
    }
    Ok(path)
}

fn missing(verb: Verb, variables: [(&str, bool); 3]) -> CniError {
    let names: Vec<_> = variables.iter().filter(|(_, missing)| *missing).map(|(name, _)| *name).collect();
    CniError::new(
        Code::InvalidEnvironment,
        format!("{}: environment variables not set: {}", verb.as_str(), names.join(", ")),
        "the runtime must set the missing variables",
    )
}

fn refuse(name: &str, reason: impl std::fmt::Display) -> CniError {
    let msg = format!("reading {name}: {reason}");
    CniError::new(
        Code::InvalidEnvironment,
        msg,
        "the runtime must set the variable as the CNI specification requires",
    )
}

#[cfg(test)]
mod tests;
