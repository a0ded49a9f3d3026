//! Validation of requests: every field is checked here, before any verb runs.

use std::path::PathBuf;

use ferrule_proto::{
    API, annotations,
    cni::{AddRequest, AddResult, ApiRange, AttachmentKey, CheckRequest, GcRequest},
    names::{ContainerId, IfName, NetworkName, check_pod},
};

use super::error::CallError;
use crate::{
    attach::AttachRequest,
    cluster::{Annotations, PodRef},
    registry::Key,
};

/// A validated CHECK.
pub(super) struct Check {
    pub key: Key,
    pub netns: PathBuf,
    pub prev_result: Option<AddResult>,
}

/// A validated GC.
pub(super) struct Gc {
    pub network: NetworkName,
    pub valid: Vec<Key>,
}

/// # Errors
/// If a field is missing or malformed, or no API version is common.
pub(super) fn add(request: AddRequest) -> Result<AttachRequest, CallError> {
    api(request.api)?;
    let pod = request.pod.unwrap_or_default();
    check_pod(&pod)?;
    Ok(AttachRequest {
        key: key(request.key)?,
        netns: netns(request.netns)?,
        pod: PodRef { namespace: pod.namespace, name: pod.name, uid: pod.uid },
        annotations: pod.annotations.map(annotations_of),
        mtu: Some(request.mtu).filter(|mtu| *mtu != 0),
    })
}

/// # Errors
/// As for [`add`].
pub(super) fn check(request: CheckRequest) -> Result<Check, CallError> {
    api(request.api)?;
    Ok(Check { key: key(request.key)?, netns: netns(request.netns)?, prev_result: request.previous })
}

/// # Errors
/// As for [`add`].
pub(super) fn gc(request: GcRequest) -> Result<Gc, CallError> {
    let GcRequest { api: versions, network, valid } = request;
    api(versions)?;
    let of_network = |it: AttachmentKey| key(Some(AttachmentKey { network: network.clone(), ..it }));
    let valid = valid.into_iter().map(of_network).collect::<Result<Vec<_>, _>>()?;
    Ok(Gc { network: NetworkName::new(&network)?, valid })
}

/// # Errors
/// If caller and agent have no API version in common.
pub(super) fn api(caller: Option<ApiRange>) -> Result<(), CallError> {
    let caller = caller.ok_or(CallError::Missing("range of API versions"))?;
    if caller.meets(&API) { Ok(()) } else { Err(CallError::Api(caller)) }
}

/// # Errors
/// If the key is missing, or a name in it is malformed.
pub(super) fn key(key: Option<AttachmentKey>) -> Result<Key, CallError> {
    let key = key.ok_or(CallError::Missing("key"))?;
    Ok(Key {
        network: NetworkName::new(&key.network)?,
        container_id: ContainerId::new(&key.container_id)?,
        ifname: IfName::new(&key.ifname)?,
    })
}

fn netns(path: String) -> Result<PathBuf, CallError> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(CallError::Missing("absolute path of a network namespace"))
    }
}

fn annotations_of(passed: ferrule_proto::cni::Annotations) -> Annotations {
    let mut values = passed.values;
    Annotations {
        ferrule: values.remove(annotations::VIF),
        kuryr: values.remove(annotations::KURYR_VIF),
        config_source: values.remove(annotations::CONFIG_SOURCE),
        // Only the API has it.
        config_mirror: None,
    }
}
