//! The index of the node's pods and their KuryrPorts, with subscriptions to single pods.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{Annotations, KuryrPort, Pod, PodRef};
use crate::watch::{Change, ObjectKey};

/// The pods and KuryrPorts that the watches have delivered. Clones share the index.
#[derive(Clone, Default)]
pub struct Pods(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    pods: HashMap<ObjectKey, Arc<Pod>>,
    ports: HashMap<ObjectKey, Arc<KuryrPort>>,
    synced: watch::Sender<bool>,
    gone: Gone,
    waiting: HashMap<ObjectKey, watch::Sender<()>>,
}

/// The UIDs of deleted and terminated pods; bounded, the oldest are dropped first.
#[derive(Default)]
struct Gone {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

/// A pod that was added, modified or deleted.
#[derive(Debug, PartialEq, Eq)]
pub struct PodChange {
    pub key: ObjectKey,
    /// Whether the pod is gone or has terminated, so that its attachment may be orphaned.
    pub is_end: bool,
}

/// The result of [`Pods::get`].
#[derive(Debug, Clone)]
pub enum Lookup {
    Present(Annotations),
    /// A static pod whose containers have ended, by the phase of its mirror pod. The kubelet may start it
    /// again under the same UID.
    StaticEnded(Annotations),
    /// Deleted, terminated, or moved to another node.
    Gone,
    /// Not delivered by the watch, which may lag behind.
    Unknown,
}

/// The JSON of a KuryrPort's `spec.vifs` and `status.vifs`.
#[derive(Debug, Clone, Default)]
pub struct Port {
    pub spec_vifs: Option<String>,
    pub status_vifs: Option<String>,
}

/// Waits for changes of one pod. Unsubscribes on drop.
pub struct Subscription {
    pods: Pods,
    key: ObjectKey,
    /// `None` only during drop.
    receiver: Option<watch::Receiver<()>>,
}

/// More pods than end on a node while a late ADD can still arrive.
const MAX_GONE: usize = 4096;

// === impl Pods ===

impl Pods {
    /// The name of the pods watch and of its health component.
    pub const WATCH: &'static str = "pods";

    /// Applies a change, and says which pod changed.
    pub fn apply_pod(&self, change: Change<Pod>) -> Option<PodChange> {
        let mut inner = self.inner();
        match change {
            Change::Applied(pod) => {
                let key = pod.metadata.key();
                let is_end = pod.is_terminal() && !pod.is_mirror();
                if is_end {
                    inner.gone.insert(&pod.metadata.uid);
                } else {
                    inner.gone.remove(&pod.metadata.uid);
                }
                inner.pods.insert(key.clone(), pod);
                inner.wake(&key);
                Some(PodChange { key, is_end })
            }
            Change::Gone { key, uid } => {
                inner.gone.insert(&uid);
                // A successor of the same name may be present already.
                if inner.pods.get(&key).is_some_and(|pod| pod.metadata.uid == uid) {
                    inner.pods.remove(&key);
                }
                inner.wake(&key);
                Some(PodChange { key, is_end: true })
            }
            Change::Synced => {
                inner.synced.send_replace(true);
                let waiting: Vec<_> = inner.waiting.keys().cloned().collect();
                waiting.iter().for_each(|key| inner.wake(key));
                None
            }
        }
    }

    pub fn apply_kuryr_port(&self, change: Change<KuryrPort>) {
        let mut inner = self.inner();
        let key = match change {
            Change::Applied(port) => {
                let key = port.metadata.key();
                inner.ports.insert(key.clone(), port);
                key
            }
            Change::Gone { key, uid } => {
                if inner.ports.get(&key).is_some_and(|port| port.metadata.uid == uid) {
                    inner.ports.remove(&key);
                }
                key
            }
            Change::Synced => return,
        };
        inner.wake(&key);
    }

    pub fn get(&self, pod_ref: &PodRef) -> Lookup {
        let inner = self.inner();
        if inner.gone.uids.contains(&pod_ref.uid) {
            return Lookup::Gone;
        }
        let Some(pod) = inner.pods.get(&key(pod_ref)).filter(|pod| is_same(pod_ref, pod)) else {
            return Lookup::Unknown;
        };
        match (pod.is_terminal(), pod.is_mirror()) {
            (false, _) => Lookup::Present(pod.metadata.annotations.clone()),
            (true, true) => Lookup::StaticEnded(pod.metadata.annotations.clone()),
            (true, false) => Lookup::Gone,
        }
    }

    /// As [`Self::get`], for a pod whose sandbox is new. A runtime that passes no UID could mean a successor
    /// of the same name: an object that is being deleted or has ended is not the new sandbox's.
    pub fn of_new_sandbox(&self, pod_ref: &PodRef) -> Lookup {
        let is_leaving =
            pod_ref.uid.is_empty() && self.inner().pods.get(&key(pod_ref)).is_some_and(|pod| is_leaving(pod));
        if is_leaving { Lookup::Unknown } else { self.get(pod_ref) }
    }

    /// The KuryrPort of a pod. `is_static`: the annotations in the runtime's call are those of a static pod.
    pub fn kuryr(&self, pod_ref: &PodRef, is_static: bool) -> Option<Port> {
        let inner = self.inner();
        // A KuryrPort outlives its mirror pod for a while after an edit of the manifest: Kuryr is about to
        // free the address.
        let port = inner.ports.get(&key(pod_ref)).filter(|it| !inner.gone.uids.contains(&it.spec.pod_uid))?;
        // Kuryr writes the UID of the API's object, which is the mirror pod's for a static pod.
        let is_of_pod = match inner.pods.get(&key(pod_ref)).filter(|pod| pod.is_mirror()) {
            _ if pod_ref.uid.is_empty() => inner
                .pods
                .get(&key(pod_ref))
                .is_some_and(|pod| !is_leaving(pod) && pod.metadata.uid == port.spec.pod_uid),
            Some(mirror) => is_same(pod_ref, mirror) && port.spec.pod_uid == mirror.metadata.uid,
            None => is_static || port.spec.pod_static == Some(true) || port.spec.pod_uid == pod_ref.uid,
        };
        if !is_of_pod {
            return None;
        }
        let text =
            |json: &Option<Box<serde_json::value::RawValue>>| json.as_ref().map(|json| json.get().to_owned());
        let status_vifs = port.status.as_ref().and_then(|status| text(&status.vifs));
        Some(Port { spec_vifs: text(&port.spec.vifs), status_vifs })
    }

    /// Whether the initial list is complete.
    pub fn is_synced(&self) -> bool {
        *self.inner().synced.borrow()
    }

    /// Waits for [`Self::is_synced`].
    pub async fn until_synced(&self) {
        let mut synced = self.inner().synced.subscribe();
        // Fails only if the sender is dropped, which `self` owns.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Subscribes to the changes of a pod from now on.
    pub fn subscribe(&self, pod_ref: &PodRef) -> Subscription {
        let key = key(pod_ref);
        let receiver =
            self.inner().waiting.entry(key.clone()).or_insert_with(|| watch::Sender::new(())).subscribe();
        Subscription { pods: self.clone(), key, receiver: Some(receiver) }
    }

    /// The UID in the API of a pod; that of a static pod differs from the kubelet's.
    pub fn api_uid(&self, pod_ref: &PodRef) -> Option<String> {
        let inner = self.inner();
        inner.pods.get(&key(pod_ref)).filter(|pod| is_same(pod_ref, pod)).map(|pod| pod.metadata.uid.clone())
    }

    /// Any pod with the name of this one, as the API server lists it.
    pub fn listed(&self, pod_ref: &PodRef) -> Option<Arc<Pod>> {
        self.inner().pods.get(&key(pod_ref)).cloned()
    }

    /// The UID of any pod with the name of this one.
    pub fn uid_at(&self, pod_ref: &PodRef) -> Option<String> {
        self.listed(pod_ref).map(|pod| pod.metadata.uid.clone())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Subscription ===

impl Subscription {
    /// Returns after the next change, or at once after one since the last call.
    pub async fn changed(&mut self) {
        if let Some(receiver) = &mut self.receiver {
            // The sender is removed only after its last receiver.
            let _ = receiver.changed().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.pods.inner();
        // Dropped under the lock, so that exactly one of two concurrent drops is the last.
        self.receiver = None;
        if inner.waiting.get(&self.key).is_some_and(|sender| sender.receiver_count() == 0) {
            inner.waiting.remove(&self.key);
        }
    }
}

// === impl Inner ===

impl Inner {
    fn wake(&self, key: &ObjectKey) {
        if let Some(sender) = self.waiting.get(key) {
            sender.send_replace(());
        }
    }
}

// === impl Gone ===

impl Gone {
    /// A pod comes back if it is moved here again, or was undecodable for a while.
    fn remove(&mut self, uid: &str) {
        if self.uids.remove(uid) {
            self.order.retain(|other| other != uid);
        }
    }

    fn insert(&mut self, uid: &str) {
        if uid.is_empty() || !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > MAX_GONE
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}

fn key(pod_ref: &PodRef) -> ObjectKey {
    ObjectKey::new(&pod_ref.namespace, &pod_ref.name)
}

/// Whether a pod gets no new sandbox. The kubelet may start an ended static pod again.
fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || (pod.is_terminal() && !pod.is_mirror())
}

/// Whether an API pod is the one that the runtime names.
fn is_same(pod_ref: &PodRef, pod: &Pod) -> bool {
    pod_ref.uid.is_empty() || pod_ref.uid == pod.kubelet_uid()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn pod(name: &str, uid: &str, more: &str) -> Pod {
        let json = format!(r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"{uid}"{more}}}}}"#);
        serde_json::from_str(&json).unwrap()
    }

    fn named(name: &str, uid: &str) -> PodRef {
        PodRef { namespace: "n".to_owned(), name: name.to_owned(), uid: uid.to_owned() }
    }

    fn gone(name: &str, uid: &str) -> Change<Pod> {
        Change::Gone { key: ObjectKey::new("n", name), uid: uid.to_owned() }
    }

    #[test]
    fn pods_of_the_same_name_are_distinguished_by_uid() {
        let pods = Pods::default();
        pods.apply_pod(Change::applied(pod("web-0", "u1", "")));
        assert!(matches!(pods.get(&named("web-0", "u1")), Lookup::Present(_)));
        assert!(
            matches!(pods.get(&named("web-0", "u2")), Lookup::Unknown),
            "the successor has not been delivered"
        );
        pods.apply_pod(Change::applied(pod("web-0", "u2", "")));
        pods.apply_pod(gone("web-0", "u1"));
        assert!(
            matches!(pods.get(&named("web-0", "u2")), Lookup::Present(_)),
            "a late event does not remove the successor"
        );
        assert!(matches!(pods.get(&named("web-0", "u1")), Lookup::Gone));
    }

    /// The mirror pod of a static pod with this UID at the kubelet.
    fn mirror(uid: &str, kubelet_uid: &str) -> Pod {
        let annotations = format!(
            r#","annotations":{{"kubernetes.io/config.source":"file","kubernetes.io/config.mirror":"{kubelet_uid}"}}"#
        );
        pod("etcd", uid, &annotations)
    }

    #[test]
    fn a_static_pod_is_found_by_exactly_its_uid_at_the_kubelet() {
        let pods = Pods::default();
        pods.apply_pod(Change::applied(mirror("u-api", "hash-1")));
        assert!(matches!(pods.get(&named("etcd", "hash-1")), Lookup::Present(_)));
        assert_eq!(pods.api_uid(&named("etcd", "hash-1")).as_deref(), Some("u-api"));
        assert!(matches!(pods.get(&named("etcd", "hash-0")), Lookup::Unknown), "the manifest before an edit");
        // Only the kubelet's annotation marks a mirror pod; users can write the other one.
        let pretender = r#","annotations":{"kubernetes.io/config.source":"file"}"#;
        pods.apply_pod(Change::applied(pod("web", "u-api", pretender)));
        assert!(matches!(pods.get(&named("web", "another")), Lookup::Unknown));
        assert!(matches!(pods.get(&named("web", "u-api")), Lookup::Present(_)));
    }

    #[test]
    fn a_static_pod_that_has_ended_may_start_again_under_its_uid() {
        let pods = Pods::default();
        let mut ended = mirror("u-api", "hash-1");
        ended.status.phase = "Failed".to_owned();
        pods.apply_pod(Change::applied(ended));
        assert!(matches!(pods.get(&named("etcd", "hash-1")), Lookup::StaticEnded(_)));
        assert!(matches!(pods.get(&named("etcd", "hash-0")), Lookup::Unknown));
        pods.apply_pod(Change::applied(mirror("u-api", "hash-1")));
        assert!(matches!(pods.get(&named("etcd", "hash-1")), Lookup::Present(_)));
    }

    #[test]
    fn without_a_uid_a_pod_that_leaves_is_not_the_one_of_a_new_sandbox() {
        let pods = Pods::default();
        let of_new = |uid| pods.of_new_sandbox(&named("web-0", uid));
        pods.apply_pod(Change::applied(pod("web-0", "u1", "")));
        assert!(matches!(of_new(""), Lookup::Present(_)));
        let deleting = r#","deletionTimestamp":"2026-01-02T03:04:05Z""#;
        pods.apply_pod(Change::applied(pod("web-0", "u1", deleting)));
        assert!(matches!(of_new(""), Lookup::Unknown), "its successor is awaited");
        assert!(matches!(of_new("u1"), Lookup::Present(_)), "the UID is evidence");
        let mut ended = pod("web-0", "u2", "");
        ended.status.phase = "Failed".to_owned();
        pods.apply_pod(Change::applied(ended));
        assert!(matches!(of_new(""), Lookup::Unknown));
        assert!(matches!(of_new("u2"), Lookup::Gone));
    }

    #[test]
    fn without_a_uid_a_kuryr_port_must_be_that_of_the_present_pod() {
        let pods = Pods::default();
        let port = r#"{"metadata":{"namespace":"n","name":"web","uid":"k1"},"spec":{"podUid":"u1"}}"#;
        pods.apply_kuryr_port(Change::applied(serde_json::from_str(port).unwrap()));
        assert!(pods.kuryr(&named("web", ""), false).is_none(), "the pod is not known");
        pods.apply_pod(Change::applied(pod("web", "u1", "")));
        assert!(pods.kuryr(&named("web", ""), false).is_some());
        pods.apply_pod(Change::applied(pod("web", "u2", "")));
        assert!(pods.kuryr(&named("web", ""), false).is_none(), "the KuryrPort of the predecessor");
    }

    #[test]
    fn a_terminated_pod_is_gone() {
        let pods = Pods::default();
        let is_end = |pod| pods.apply_pod(Change::applied(pod)).unwrap().is_end;
        assert!(!is_end(pod("job", "u1", "")));
        let mut ended = pod("job", "u1", "");
        ended.status.phase = "Succeeded".to_owned();
        assert!(is_end(ended));
        assert!(matches!(pods.get(&named("job", "u1")), Lookup::Gone));
    }

    #[tokio::test]
    async fn a_change_wakes_the_subscribers_of_its_pod_only() {
        let pods = Pods::default();
        let (mut a, mut b) = (pods.subscribe(&named("a", "")), pods.subscribe(&named("b", "")));
        pods.apply_pod(Change::applied(pod("a", "u1", "")));
        timeout(Duration::from_secs(5), a.changed()).await.unwrap();
        assert!(timeout(Duration::from_millis(20), b.changed()).await.is_err());
        pods.apply_pod(gone("b", "u2"));
        timeout(Duration::from_secs(5), b.changed()).await.unwrap();
        drop((a, b));
        assert!(pods.inner().waiting.is_empty(), "subscriptions do not leak");
    }

    #[test]
    fn the_number_of_remembered_gone_pods_is_bounded() {
        let pods = Pods::default();
        for number in 0..=MAX_GONE {
            pods.apply_pod(gone("a", &number.to_string()));
        }
        assert!(matches!(pods.get(&named("a", "0")), Lookup::Unknown));
        assert!(matches!(pods.get(&named("a", "1")), Lookup::Gone));
    }

    #[test]
    fn a_kuryr_port_belongs_to_the_pod_with_its_uid() {
        let pods = Pods::default();
        let port = r#"{"metadata":{"namespace":"n","name":"web","uid":"k1"},"spec":{"podUid":"u1"},"status":{"vifs":{"eth0":{}}}}"#;
        pods.apply_kuryr_port(Change::applied(serde_json::from_str(port).unwrap()));
        assert_eq!(
            pods.kuryr(&named("web", "u1"), false).unwrap().status_vifs.as_deref(),
            Some(r#"{"eth0":{}}"#)
        );
        assert!(pods.kuryr(&named("web", "u2"), false).is_none(), "the KuryrPort of the predecessor");
    }

    #[test]
    fn a_kuryr_port_of_a_static_pod_belongs_to_its_mirror_pod() {
        let pods = Pods::default();
        let port = |more: &str| {
            let port = format!(
                r#"{{"metadata":{{"namespace":"n","name":"etcd","uid":"k1"}},"spec":{{"podUid":"u-api"{more}}}}}"#
            );
            pods.apply_kuryr_port(Change::applied(serde_json::from_str(&port).unwrap()));
        };
        port("");
        let found =
            |kubelet_uid: &str, is_static| pods.kuryr(&named("etcd", kubelet_uid), is_static).is_some();
        assert!(!found("hash-1", false), "no mirror pod yet, and nothing says that the pod is static");
        assert!(found("hash-1", true), "the runtime says so");
        port(r#","podStatic":true"#);
        assert!(found("hash-1", false), "Kuryr says so");
        pods.apply_pod(Change::applied(mirror("u-api", "hash-1")));
        assert!(found("hash-1", true) && !found("hash-0", true), "the mirror pod is exact");
        pods.apply_pod(Change::applied(mirror("u-api-2", "hash-2")));
        assert!(!found("hash-2", true), "the KuryrPort of the manifest before an edit");
        pods.apply_pod(Change::applied(mirror("u-api", "hash-1")));
        pods.apply_pod(gone("etcd", "u-api"));
        assert!(!found("hash-2", true), "and its mirror pod is gone, the next one not there yet");
    }

    #[tokio::test]
    async fn the_end_of_the_list_wakes_every_subscriber() {
        let pods = Pods::default();
        assert!(!pods.is_synced());
        let (mut a, mut b) = (pods.subscribe(&named("a", "")), pods.subscribe(&named("b", "")));
        assert_eq!(pods.apply_pod(Change::Synced), None);
        timeout(Duration::from_secs(10), async { (a.changed().await, b.changed().await) }).await.unwrap();
        timeout(Duration::from_secs(10), pods.until_synced()).await.unwrap();
        assert!(pods.is_synced());
    }

    #[tokio::test]
    async fn a_kuryr_port_wakes_the_subscribers_of_its_pod() {
        let pods = Pods::default();
        let mut web = pods.subscribe(&named("web", "u1"));
        let key = ObjectKey::new("n", "web");
        for change in [Change::applied(port("k1")), Change::Gone { key: key.clone(), uid: "k1".to_owned() }] {
            pods.apply_kuryr_port(change);
            timeout(Duration::from_secs(10), web.changed()).await.unwrap();
        }
    }

    fn port(uid: &str) -> KuryrPort {
        let json = format!(
            r#"{{"metadata":{{"namespace":"n","name":"web","uid":"{uid}"}},"spec":{{"podUid":"u1"}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn only_the_deletion_of_the_present_kuryr_port_removes_it() {
        let pods = Pods::default();
        let found = || pods.kuryr(&named("web", "u1"), false).is_some();
        let gone = |uid: &str| {
            let (key, uid) = (ObjectKey::new("n", "web"), uid.to_owned());
            pods.apply_kuryr_port(Change::Gone { key, uid });
        };
        pods.apply_kuryr_port(Change::applied(port("k2")));
        gone("k1");
        assert!(found(), "a late event does not remove the successor");
        pods.apply_kuryr_port(Change::Synced);
        assert!(found());
        gone("k2");
        assert!(!found());
    }

    #[test]
    fn a_pod_without_uid_is_found_by_its_name_and_never_by_the_gone_ones() {
        let pods = Pods::default();
        let end = PodChange { key: ObjectKey::new("n", "web"), is_end: true };
        assert_eq!(pods.apply_pod(gone("web", "")), Some(end));
        assert!(matches!(pods.get(&named("web", "")), Lookup::Unknown));
        pods.apply_pod(Change::applied(pod("web", "u1", "")));
        assert!(matches!(pods.get(&named("web", "")), Lookup::Present(_)));
        assert_eq!(pods.api_uid(&named("web", "")).as_deref(), Some("u1"));
        assert_eq!(pods.api_uid(&named("web", "u2")), None);
        let listed = |name| pods.listed(&named(name, "u2")).map(|pod| pod.metadata.uid.clone());
        assert_eq!(listed("web").as_deref(), Some("u1"), "of any pod with the name");
        assert_eq!(listed("db"), None);
    }

    #[test]
    fn a_pod_that_comes_back_is_forgotten_as_gone_and_can_go_again() {
        let pods = Pods::default();
        for _ in 0..2 {
            pods.apply_pod(gone("web", "u1"));
            assert!(matches!(pods.get(&named("web", "u1")), Lookup::Gone));
            assert_eq!(pods.inner().gone.order.len(), 1);
            pods.apply_pod(Change::applied(pod("web", "u1", "")));
            assert!(matches!(pods.get(&named("web", "u1")), Lookup::Present(_)));
            assert!(pods.inner().gone.order.is_empty());
        }
    }

    #[test]
    fn the_last_4096_gone_pods_are_remembered() {
        let pods = Pods::default();
        for number in 0..4096 {
            pods.apply_pod(gone("a", &number.to_string()));
        }
        assert!(matches!(pods.get(&named("a", "0")), Lookup::Gone));
        pods.apply_pod(gone("a", "4096"));
        assert!(matches!(pods.get(&named("a", "0")), Lookup::Unknown));
        assert!(matches!(pods.get(&named("a", "1")), Lookup::Gone));
    }
}
