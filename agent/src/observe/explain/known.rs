//! Which pod is meant, and what the agent knows of it.

use std::collections::BTreeSet;

use ferrule_proto::agent::{AddInFlight, ExplainPodRequest, FailedAdd, ListedPod};
use tonic::Status;

use crate::{
    attach::{Failure, InFlightAdd, Journal},
    cluster::{Pod, PodRef},
    registry::{Attachment, Key, Registry},
};

/// What the agent knows of one pod.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) pod: PodRef,
    /// The newest sandbox first; of a sandbox the requested interface first.
    pub(super) attachments: Vec<Attachment>,
    pub(super) failures: Vec<Failure>,
    pub(super) in_flight: Vec<InFlightAdd>,
}

/// Least characters of a container's ID.
const MIN_ID: usize = 6;
/// Characters of a message that the kubelet wrote.
const MAX_MESSAGE: usize = 512;

// === impl Known ===

impl Known {
    /// `None`: nothing is known.
    ///
    /// # Errors
    /// If pods of several namespaces have the name.
    pub(super) fn find(
        request: &ExplainPodRequest,
        registry: &Registry,
        journal: &Journal,
    ) -> Result<Option<Self>, Status> {
        let is_meant = |key: &Key, pod: &PodRef| is_meant(request, key, pod);
        let mut attachments = registry.find(|it| is_meant(&it.key, &it.pod));
        let (failures, in_flight) = (journal.failures(is_meant), journal.in_flight(is_meant));
        let pods = attachments.iter().map(|it| &it.pod);
        let pods = pods.chain(failures.iter().map(|it| &it.pod)).chain(in_flight.iter().map(|it| &it.pod));
        let Some(pod) = the_one(pods)? else { return Ok(None) };
        attachments.sort_by_key(|it| {
            let sandbox = registry
                .get(&it.runtime_key())
                .map_or(it.created_since_boot_ns, |it| it.created_since_boot_ns);
            (u64::MAX - sandbox, it.with.is_some(), it.key.clone())
        });
        Ok(Some(Self { pod, attachments, failures, in_flight }))
    }

    /// A pod without any ADD.
    pub(super) fn listed(pod: PodRef, uid: String) -> Self {
        Self { pod: PodRef { uid, ..pod }, ..Self::default() }
    }
}

/// The pod that a request names; in `default` without a namespace.
pub(super) fn pod_of(ExplainPodRequest { namespace, name }: &ExplainPodRequest) -> PodRef {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    PodRef { namespace: namespace.to_owned(), name: name.clone(), uid: String::new() }
}

fn is_meant(ExplainPodRequest { namespace, name }: &ExplainPodRequest, key: &Key, pod: &PodRef) -> bool {
    let has_name =
        pod.name == *name || (name.len() >= MIN_ID && key.container_id.as_str().starts_with(name.as_str()));
    has_name && (namespace.is_empty() || pod.namespace == *namespace)
}

/// The pod of the newest UID, if all have one name.
fn the_one<'a>(pods: impl Iterator<Item = &'a PodRef>) -> Result<Option<PodRef>, Status> {
    let pods: Vec<_> = pods.collect();
    let names: BTreeSet<String> = pods.iter().map(|it| it.to_string()).collect();
    if names.len() > 1 {
        let names: Vec<_> = names.into_iter().collect();
        return Err(Status::invalid_argument(format!(
            "several pods have this name: {}; name the namespace too",
            names.join(", ")
        )));
    }
    Ok(pods.first().map(|it| (*it).clone()))
}

/// `policies`: what the policies lack that judge the pod.
pub(super) fn show_in_flight(it: &InFlightAdd, policies: impl Fn(&PodRef) -> String) -> AddInFlight {
    let (phase, (lacks, phase_since_ms)) = (it.phase(), it.wait());
    let missing = match lacks {
        Some(lacks) => format!("no {lacks}"),
        None if phase == "wait_for_policy" => policies(&it.pod),
        None => String::new(),
    };
    AddInFlight {
        container_id: it.key.container_id.to_string(),
        ifname: it.key.ifname.to_string(),
        began_ms: it.began_ms,
        phase: phase.to_owned(),
        missing,
        phase_since_ms,
    }
}

pub(super) fn show_listed(Pod { spec, status, .. }: &Pod) -> ListedPod {
    ListedPod {
        host_network: spec.host_network,
        phase: status.phase.clone(),
        reason: status.reason.clone(),
        message: status.message.chars().take(MAX_MESSAGE).collect(),
    }
}

pub(super) fn show_failure(Failure { key, last_ms, times, code, message, .. }: Failure) -> FailedAdd {
    FailedAdd {
        container_id: key.container_id.to_string(),
        ifname: key.ifname.to_string(),
        last_ms,
        times,
        code,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str) -> PodRef {
        PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: String::new() }
    }

    #[test]
    fn a_pod_is_meant_by_its_name_or_the_beginning_of_its_container_id() {
        let key = Key::try_from("net/0123456789ab/eth0".to_owned()).unwrap();
        let web = pod("shop", "web-0");
        for (namespace, name, expected) in [
            ("shop", "web-0", true),
            ("", "web-0", true),
            ("db", "web-0", false),
            ("", "web", false),
            ("", "012345", true),
            ("", "01234", false),
            ("shop", "012345", true),
        ] {
            let request = ExplainPodRequest { namespace: namespace.to_owned(), name: name.to_owned() };
            assert_eq!(is_meant(&request, &key, &web), expected, "{namespace}/{name}");
        }
    }

    #[test]
    fn a_name_in_two_namespaces_is_ambiguous() {
        let (one, other) = (pod("a", "web"), pod("b", "web"));
        assert_eq!(the_one([&one, &one].into_iter()).unwrap(), Some(one.clone()));
        let error = the_one([&one, &other].into_iter()).unwrap_err();
        assert!(error.message().contains("a/web, b/web"), "{error}");
        assert_eq!(the_one([].into_iter()).unwrap(), None);
    }
}
