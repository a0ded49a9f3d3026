//! One invocation of the plugin: validate the input, call the agent, render the output.

use std::{io::Read, os::fd::AsFd};

use ferrule_proto::{
    API,
    cni::{
        AddRequest, AddResult, AttachmentKey, CheckRequest, DelRequest, GcRequest, Pod, StatusRequest,
        error::Code,
    },
    names::{ContainerId, IfName, NetworkName},
    quoted::Quoted,
};
use serde::Serialize;

use crate::{
    client::Request,
    env::{Command, Env, Target, Verb},
    error::CniError,
    netconf::{Dns, Document, Netconf},
    result, stdin,
    version::{CniVersion, Supported},
};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Without a command, the plugin describes itself.
    About,
    /// Success, with the JSON to print for ADD and VERSION.
    Done(Option<String>),
    /// Failure, with the JSON to print.
    Failed(String),
}

/// Calls the agent: takes the path of its socket and a request.
pub(crate) trait Agent: FnOnce(&str, Request) -> Result<Option<AddResult>, CniError> {}
impl<F: FnOnce(&str, Request) -> Result<Option<AddResult>, CniError>> Agent for F {}

/// The output of `VERSION`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions<'a> {
    cni_version: &'a str,
    supported_versions: [&'static str; CniVersion::ALL.len()],
}

/// Longest `cniVersion` that VERSION echoes, in bytes.
const MAX_VERSION: usize = 32;

/// Serves one invocation.
pub(crate) fn run(env: &impl Env, input: impl Read + AsFd, agent: impl Agent) -> Outcome {
    let mut version = CniVersion::NEWEST;
    let served = serve(env, input, agent, &mut version);
    served.unwrap_or_else(|error| Outcome::Failed(error.to_json(version.as_str())))
}

/// Sets `version`, the version of errors, as soon as the requested version is known.
fn serve(
    env: &impl Env,
    input: impl Read + AsFd,
    agent: impl Agent,
    version: &mut CniVersion,
) -> Result<Outcome, CniError> {
    let Some(command) = Command::from_env(env).transpose() else { return Ok(Outcome::About) };
    let max_bytes = match command {
        Ok(Command::Del(_)) => stdin::MAX_BYTES_OF_DEL,
        _ => stdin::MAX_BYTES,
    };
    let bytes = stdin::read(input, max_bytes, stdin::DEADLINE);
    if let Ok(Command::Version) = command {
        return Ok(Outcome::Done(Some(versions(&bytes?)?)));
    }

    // Errors of the environment take precedence, but the requested version is parsed first to render them.
    let document = bytes.as_deref().map_err(CniError::clone).and_then(Document::parse);
    let requested = document.as_ref().map_err(CniError::clone).and_then(Document::supported_version);
    if let Ok(requested) = requested {
        *version = requested;
    }
    let (command, document) = (command?, document?);
    let requested = match (requested, command.verb()) {
        // A DEL prints no result, and a pod must terminate.
        (Err(_), Verb::Del) => CniVersion::NEWEST,
        (requested, _) => requested?,
    };
    check_verb(command.verb(), requested)?;

    let netconf = document.netconf()?;
    let mut dns = Dns::default();
    let request = match command {
        Command::Add(target, pod) => {
            let settings = document.settings()?;
            let request = add(target, pod, settings.mtu, &document, &netconf)?;
            dns = document.dns_for_pod(&settings.dns)?;
            request
        }
        Command::Del(target) => {
            let key = Some(key(&target, &netconf.name));
            Request::Del(DelRequest { api: Some(API), key, netns: target.netns })
        }
        Command::Check(target) => {
            let key = Some(key(&target, &netconf.name));
            let previous = Some(document.prev_result(requested)?);
            Request::Check(CheckRequest { api: Some(API), key, netns: target.netns, previous })
        }
        Command::Gc => gc(&document, &netconf)?,
        Command::Status | Command::Version => {
            // An ADD with invalid settings fails.
            document.settings()?;
            Request::Status(StatusRequest { api: Some(API) })
        }
    };
    let result = agent(&netconf.socket, request)?;
    let json = result.map(|result| result::render(&result, &dns, requested)).transpose()?;
    Ok(Outcome::Done(json))
}

fn add(
    target: Target,
    pod: Pod,
    mtu: u32,
    document: &Document<'_>,
    netconf: &Netconf,
) -> Result<Request, CniError> {
    if document.has_prev_result() {
        return Err(CniError::new(
            Code::InvalidNetworkConfig,
            "ADD: the network configuration has a \"prevResult\", but this plugin creates the interface and must be \
             the first plugin of its chain",
            "put \"ferrule\" first in \"plugins\" in /etc/cni/net.d",
        ));
    }
    Ok(Request::Add(AddRequest {
        api: Some(API),
        key: Some(key(&target, &netconf.name)),
        netns: target.netns,
        pod: Some(Pod { annotations: document.annotations()?, ..pod }),
        mtu,
        port_mappings: document.port_mappings()?,
        bandwidth: document.bandwidth()?,
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

fn check_verb(verb: Verb, requested: CniVersion) -> Result<(), CniError> {
    if requested >= verb.since() {
        return Ok(());
    }
    let (verb, since, requested) = (verb.as_str(), verb.since().as_str(), requested.as_str());
    Err(CniError::new(
        Code::IncompatibleCniVersion,
        format!("{verb} needs CNI version {since}, but the network configuration requests {requested}"),
        format!("set \"cniVersion\" in the network configuration to {since} or later"),
    ))
}

/// The output of `VERSION`, which echoes the requested version even if it is not supported. Runtimes that
/// predate that rule send no network configuration.
fn versions(bytes: &[u8]) -> Result<String, CniError> {
    let requested = match bytes.trim_ascii() {
        [] => CniVersion::NEWEST.as_str().to_owned(),
        bytes => Document::parse(bytes)?.cni_version()?,
    };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+');
    if requested.len() > MAX_VERSION || !requested.bytes().all(allowed) {
        let msg = format!("VERSION: invalid \"cniVersion\" {}, expected a version", Quoted(&requested));
        return Err(CniError::new(Code::InvalidNetworkConfig, msg, format!("request one of {Supported}")));
    }
    let versions =
        Versions { cni_version: &requested, supported_versions: CniVersion::ALL.map(CniVersion::as_str) };
    serde_json::to_string(&versions).map_err(|e| CniError::new(Code::Internal, format!("VERSION: {e}"), ""))
}

#[cfg(test)]
mod tests;
