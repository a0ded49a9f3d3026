//! Whether the API server still has a pod.

use std::time::Duration;

use super::proof::Proof;
use crate::{
    cluster::{Lookup, PodRef, Pods},
    health::{Health, State as Healthy},
};

/// The source of evidence about pods.
#[derive(Clone, Copy)]
pub(in crate::reconcile) struct Witness<'a> {
    pub pods: &'a Pods,
    /// Health of the watches; `None` without an API server.
    pub api: Option<&'a Health>,
}

/// The age from which a pod that the watch never delivered counts as gone: longer than a watch can lag
/// unnoticed.
const MAX_WATCH_LAG: Duration = Duration::from_secs(300);

// === impl Witness ===

impl Witness<'_> {
    /// Whether a pod is gone; `None` if an API server cannot know the pod.
    pub(super) fn pod_gone(&self, pod: &PodRef, age: Duration) -> Option<Proof> {
        let health = self.api.filter(|_| pod.is_of_kubernetes())?;
        let watch = health.components().remove(Pods::WATCH);
        Some(match watch {
            _ if !self.pods.is_synced() => Proof::no("the initial list of the node's pods is not complete"),
            Some(watch) if watch.state == Healthy::Healthy => self.look_up(pod, age),
            Some(watch) => Proof::no(format!("the watch of pods is unhealthy: {}", watch.why)),
            None => Proof::no("no watch of pods runs"),
        })
    }

    fn look_up(&self, pod: &PodRef, age: Duration) -> Proof {
        match self.pods.get(pod) {
            Lookup::Present(_) => Proof::no(format!("the pod {pod} exists")),
            Lookup::Gone => {
                Proof::yes(format!("the pod {pod} was deleted, has ended, or is on another node"))
            }
            Lookup::StaticEnded(_) => {
                Proof::yes(format!("all containers of the static pod {pod} have ended"))
            }
            Lookup::Unknown => {
                // UIDs have no order: the watch may lag, and have the predecessor's UID.
                let observed = match self.pods.uid_at(pod) {
                    Some(other) => format!("the name {pod} belongs to another pod, with the UID {other}"),
                    None => format!("the API server has no pod {pod} of this UID on this node"),
                };
                match MAX_WATCH_LAG.checked_sub(age) {
                    None | Some(Duration::ZERO) => Proof::yes(observed),
                    Some(wait) => {
                        let wait = wait.as_secs().max(1);
                        Proof::no(format!("{observed}, but the watch may lag: gone in {wait} s"))
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::Pod,
        watch::{Change, ObjectKey},
    };

    const OLD: Duration = Duration::from_secs(3600);
    const NEW: Duration = Duration::from_secs(10);

    fn named(uid: &str) -> PodRef {
        PodRef { namespace: "n".to_owned(), name: "web-0".to_owned(), uid: uid.to_owned() }
    }

    fn applied(uid: &str, more: &str) -> Change<Pod> {
        let json = format!(r#"{{"metadata":{{"namespace":"n","name":"web-0","uid":"{uid}"{more}}}}}"#);
        Change::applied(serde_json::from_str(&json).unwrap())
    }

    fn deleted(uid: &str) -> Change<Pod> {
        Change::Gone { key: ObjectKey::new("n", "web-0"), uid: uid.to_owned() }
    }

    /// The proof of an agent with a healthy watch, after changes.
    fn proof(changes: impl IntoIterator<Item = Change<Pod>>, pod: &PodRef, age: Duration) -> Proof {
        let (pods, health) = (Pods::default(), Health::default());
        let watch = health.component(Pods::WATCH, false, "");
        watch.healthy("following");
        changes.into_iter().chain([Change::Synced]).for_each(|change| drop(pods.apply_pod(change)));
        Witness { pods: &pods, api: Some(&health) }.pod_gone(pod, age).unwrap()
    }

    #[test]
    fn deleted_pod_is_gone_at_once() {
        let proof = proof([applied("u1", ""), deleted("u1")], &named("u1"), NEW);
        assert!(proof.holds, "{}", proof.observed);
    }

    #[test]
    fn present_pod_is_not_gone_at_any_age() {
        assert!(!proof([applied("u1", "")], &named("u1"), OLD).holds);
        let static_pod = applied("mirror", r#","annotations":{"kubernetes.io/config.mirror":"hash"}"#);
        assert!(!proof([static_pod.clone()], &named("hash"), OLD).holds);
        assert!(proof([static_pod], &named("hash-before-an-edit"), OLD).holds, "another manifest");
        let ended = applied(
            "mirror",
            r#","annotations":{"kubernetes.io/config.mirror":"hash"}},"status":{"phase":"Failed""#,
        );
        assert!(
            proof([ended], &named("hash"), NEW).holds,
            "its sandbox is gone as well, or collection fails"
        );
    }

    #[test]
    fn pod_that_the_watch_never_delivered_is_gone_only_after_the_maximal_lag() {
        assert!(!proof([], &named("u1"), NEW).holds);
        assert!(proof([], &named("u1"), OLD).holds);
    }

    #[test]
    fn name_with_another_uid_may_be_a_stale_predecessor() {
        let new = proof([applied("u1", "")], &named("u2"), NEW);
        assert!(!new.holds, "the watch may lag: {}", new.observed);
        let old = proof([applied("u2", "")], &named("u1"), OLD);
        assert!(old.holds && old.observed.contains("UID u2"), "{}", old.observed);
    }

    #[test]
    fn without_a_healthy_synced_watch_no_pod_is_gone() {
        let (pods, health) = (Pods::default(), Health::default());
        let gone = || Witness { pods: &pods, api: Some(&health) }.pod_gone(&named("u1"), OLD).unwrap();
        pods.apply_pod(deleted("u1"));
        let watch = health.component(Pods::WATCH, false, "listing");
        watch.healthy("following");
        assert!(!gone().holds, "the initial list is not complete");
        pods.apply_pod(Change::Synced);
        assert!(gone().holds);
        watch.unhealthy("connection refused");
        assert!(!gone().holds && gone().observed.contains("connection refused"), "{}", gone().observed);
        drop(watch);
        assert!(!gone().holds);
    }

    #[test]
    fn pod_gone_is_absent_without_kubernetes_pod_or_api_server() {
        let (pods, health) = (Pods::default(), Health::default());
        assert_eq!(Witness { pods: &pods, api: None }.pod_gone(&named("u1"), OLD), None);
        assert_eq!(Witness { pods: &pods, api: Some(&health) }.pod_gone(&PodRef::default(), OLD), None);
    }
}
