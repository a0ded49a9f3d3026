//! From what the runtime gave to what it gets: the order of the checks, and the call.

use std::{io::Read, os::fd::AsFd};

use ferrule_proto::{
    API,
    cni::{
        AddRequest, AddResult, AttachmentKey, CheckRequest, DelRequest, GcRequest, Pod, StatusRequest,
        error::Code,
    },
    names::{ContainerId, IfName, NetworkName},
};
use serde::Serialize;

use crate::{
    call::Request,
    env::{Command, Env, Target, Verb},
    error::{CniError, Shown},
    netconf::{Document, Netconf},
    result, stdin,
    version::{CniVersion, Supported},
};

/// What the process leaves behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A person started it: say what it is.
    About,
    /// What was asked for is done. ADD and VERSION print something.
    Done(Option<String>),
    /// It is not, and this is printed.
    Failed(String),
}

/// The agent: takes the path of its socket and a request.
pub(crate) trait Agent: FnOnce(&str, Request) -> Result<Option<AddResult>, CniError> {}
impl<F: FnOnce(&str, Request) -> Result<Option<AddResult>, CniError>> Agent for F {}

/// What `VERSION` prints.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions<'a> {
    cni_version: &'a str,
    supported_versions: [&'static str; CniVersion::ALL.len()],
}

/// The longest `cniVersion` that is told back, in bytes.
const MAX_VERSION: usize = 32;

/// Serves one invocation.
pub(crate) fn run(env: &impl Env, input: impl Read + AsFd, agent: impl Agent) -> Outcome {
    let mut version = CniVersion::NEWEST;
    let served = serve(env, input, agent, &mut version);
    served.unwrap_or_else(|error| Outcome::Failed(error.to_json(version.as_str())))
}

/// Sets `version` as soon as it is known in which one to answer.
fn serve(
    env: &impl Env,
    input: impl Read + AsFd,
    agent: impl Agent,
    version: &mut CniVersion,
) -> Result<Outcome, CniError> {
    let Some(command) = Command::from_env(env).transpose() else { return Ok(Outcome::About) };
    let bytes = stdin::read(input, stdin::DEADLINE);
    if let Ok(Command::Version) = command {
        return Ok(Outcome::Done(Some(versions(&bytes?)?)));
    }

    // The environment's errors come first, but also they are told in the version that was asked for.
    let document = bytes.as_deref().map_err(CniError::clone).and_then(Document::parse);
    let asked = document.as_ref().map_err(CniError::clone).and_then(Document::supported_version);
    if let Ok(asked) = asked {
        *version = asked;
    }
    let (command, document, asked) = (command?, document?, asked?);
    check_verb(command.verb(), asked)?;

    let mut netconf = document.netconf()?;
    let request = match command {
        Command::Add(target, pod) => {
            let request = add(target, pod, &document, &netconf)?;
            netconf.dns = document.dns_for_pod(&netconf.dns)?;
            request
        }
        Command::Del(target) => {
            let key = Some(key(&target, &netconf.name));
            Request::Del(DelRequest { api: Some(API), key, netns: target.netns })
        }
        Command::Check(target) => {
            let key = Some(key(&target, &netconf.name));
            let previous = Some(document.previous(asked)?);
            Request::Check(CheckRequest { api: Some(API), key, netns: target.netns, previous })
        }
        Command::Gc => gc(&document, &netconf)?,
        Command::Status | Command::Version => Request::Status(StatusRequest { api: Some(API) }),
    };
    let added = agent(&netconf.socket, request)?;
    let printed = added.map(|added| result::render(&added, &netconf.dns, asked)).transpose()?;
    Ok(Outcome::Done(printed))
}

fn add(target: Target, pod: Pod, document: &Document<'_>, netconf: &Netconf) -> Result<Request, CniError> {
    if netconf.has_prev_result {
        return Err(CniError::new(
            Code::InvalidNetworkConfig,
            "ADD: the network configuration has a \"prevResult\", but this plugin makes the interface and so has \
             to be the first of its chain",
            "put \"ferrule\" first in \"plugins\" in /etc/cni/net.d",
        ));
    }
    Ok(Request::Add(AddRequest {
        api: Some(API),
        key: Some(key(&target, &netconf.name)),
        netns: target.netns,
        pod: Some(Pod { annotations: document.annotations()?, ..pod }),
        mtu: netconf.mtu,
    }))
}

fn gc(document: &Document<'_>, netconf: &Netconf) -> Result<Request, CniError> {
    let keep = |(container_id, ifname): (ContainerId, IfName)| AttachmentKey {
        network: String::new(),
        container_id: container_id.to_string(),
        ifname: ifname.to_string(),
    };
    let valid = document.valid_attachments()?.into_iter().map(keep).collect();
    Ok(Request::Gc(GcRequest { api: Some(API), network: netconf.name.to_string(), valid }))
}

fn key(target: &Target, network: &NetworkName) -> AttachmentKey {
    AttachmentKey {
        network: network.to_string(),
        container_id: target.container_id.to_string(),
        ifname: target.ifname.to_string(),
    }
}

fn check_verb(verb: Verb, asked: CniVersion) -> Result<(), CniError> {
    if asked >= verb.since() {
        return Ok(());
    }
    let (verb, since, asked) = (verb.as_str(), verb.since().as_str(), asked.as_str());
    Err(CniError::new(
        Code::IncompatibleCniVersion,
        format!("{verb}: CNI has it since {since}, and the network configuration asks for {asked}"),
        format!("set \"cniVersion\" in the network configuration to {since} or later"),
    ))
}

/// The answer to `VERSION`, which says the version asked for even if it is not among the supported ones. Runtimes
/// that predate the rule send nothing.
fn versions(bytes: &[u8]) -> Result<String, CniError> {
    let asked = match bytes.trim_ascii() {
        [] => CniVersion::NEWEST.as_str().to_owned(),
        bytes => Document::parse(bytes)?.cni_version()?,
    };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+');
    if asked.len() > MAX_VERSION || !asked.bytes().all(allowed) {
        let msg = format!("VERSION: \"cniVersion\" is {}, which is no version", Shown(&asked));
        return Err(CniError::new(Code::InvalidNetworkConfig, msg, format!("ask for one of {Supported}")));
    }
    let versions =
        Versions { cni_version: &asked, supported_versions: CniVersion::ALL.map(CniVersion::as_str) };
    serde_json::to_string(&versions).map_err(|e| CniError::new(Code::Internal, format!("VERSION: {e}"), ""))
}

#[cfg(test)]
mod tests;
