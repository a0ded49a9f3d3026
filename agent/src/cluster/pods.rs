//! The node's pods as the API server has them, and who waits for one of them.
//!
//! Whoever waits is woken by the change itself: nothing is polled.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{Annotations, KuryrPort, Pod, PodRef};
use crate::watch::{Change, ObjectKey};

/// The pods, and Kuryr's decisions for them. Cloning it is cheap, and gives the same ones.
#[derive(Clone, Default)]
pub struct Pods(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    pods: HashMap<ObjectKey, Pod>,
    ports: HashMap<ObjectKey, KuryrPort>,
    synced: watch::Sender<bool>,
    gone: Gone,
    waiting: HashMap<ObjectKey, watch::Sender<()>>,
}

/// The UIDs of pods that are no more; the oldest are forgotten.
#[derive(Default)]
struct Gone {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

/// What is known of a pod.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// It is there.
    Present(Annotations),
    /// It was, and is no more: deleted, moved to another node, or at its end.
    Gone,
    /// It was never seen. The watch may be behind.
    Unknown,
}

/// What Kuryr says of a pod: the JSON of a KuryrPort's `spec.vifs` and `status.vifs`.
#[derive(Debug, Clone, Default)]
pub struct Port {
    pub spec_vifs: Option<String>,
    pub status_vifs: Option<String>,
}

/// Wakes who waits for changes of one pod.
pub struct Subscription {
    pods: Pods,
    key: ObjectKey,
    /// `None` while it is dropped.
    receiver: Option<watch::Receiver<()>>,
}

/// More than a node sees in the time in which a late ADD can still come.
const MOST_GONE: usize = 4096;

// === impl Pods ===

impl Pods {
    /// The name of the watch that tells of them, and of its health.
    pub const WATCH: &'static str = "pods";

    /// Takes a change of a pod, and gives its key.
    pub fn apply_pod(&self, change: Change<Pod>) -> Option<ObjectKey> {
        let mut inner = self.inner();
        match change {
            Change::Applied(pod) => {
                let key = pod.metadata.key();
                if pod.is_terminal() {
                    inner.gone.insert(&pod.metadata.uid);
                } else {
                    inner.gone.remove(&pod.metadata.uid);
                }
                inner.pods.insert(key.clone(), pod);
                inner.wake(&key);
                Some(key)
            }
            Change::Gone { key, uid } => {
                inner.gone.insert(&uid);
                // Another one of the same name may be there already.
                if inner.pods.get(&key).is_some_and(|pod| pod.metadata.uid == uid) {
                    inner.pods.remove(&key);
                }
                inner.wake(&key);
                Some(key)
            }
            Change::Synced => {
                inner.synced.send_replace(true);
                let waiting: Vec<_> = inner.waiting.keys().cloned().collect();
                waiting.iter().for_each(|key| inner.wake(key));
                None
            }
        }
    }

    /// Takes a change of a KuryrPort.
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

    /// What is known of the pod that a runtime names.
    pub fn get(&self, name: &PodRef) -> Lookup {
        let inner = self.inner();
        if inner.gone.uids.contains(&name.uid) {
            return Lookup::Gone;
        }
        match inner.pods.get(&key(name)) {
            Some(pod) if is_it(name, pod) && pod.is_terminal() => Lookup::Gone,
            Some(pod) if is_it(name, pod) => Lookup::Present(pod.metadata.annotations.clone()),
            _ => Lookup::Unknown,
        }
    }

    /// What Kuryr says of the pod that a runtime names; `None` if it says nothing. `is_static` is whether the runtime
    /// has said that it is a static pod.
    pub fn kuryr(&self, name: &PodRef, is_static: bool) -> Option<Port> {
        let inner = self.inner();
        let port = inner.ports.get(&key(name))?;
        // The UID of a static pod at the kubelet is not the one that it has in the API.
        let is_static = is_static
            || port.spec.pod_static == Some(true)
            || inner.pods.get(&key(name)).is_some_and(Pod::is_static);
        if !is_static && !name.uid.is_empty() && port.spec.pod_uid != name.uid {
            return None;
        }
        let text =
            |json: &Option<Box<serde_json::value::RawValue>>| json.as_ref().map(|json| json.get().to_owned());
        let status_vifs = port.status.as_ref().and_then(|status| text(&status.vifs));
        Some(Port { spec_vifs: text(&port.spec.vifs), status_vifs })
    }

    /// Whether all pods are known that there were at the beginning.
    pub fn is_synced(&self) -> bool {
        *self.inner().synced.borrow()
    }

    /// Waits until [`Self::is_synced`].
    pub async fn until_synced(&self) {
        let mut synced = self.inner().synced.subscribe();
        // The sender is ours, so that there is no end to wait for.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Waits for changes of a pod from now on.
    pub fn subscribe(&self, name: &PodRef) -> Subscription {
        let key = key(name);
        let receiver =
            self.inner().waiting.entry(key.clone()).or_insert_with(|| watch::Sender::new(())).subscribe();
        Subscription { pods: self.clone(), key, receiver: Some(receiver) }
    }

    /// The UID in the API of the pod that a runtime names, for what is told about it there.
    pub fn api_uid(&self, name: &PodRef) -> Option<String> {
        let inner = self.inner();
        inner.pods.get(&key(name)).filter(|pod| is_it(name, pod)).map(|pod| pod.metadata.uid.clone())
    }

    /// The UID of what the API server has by a name, whichever pod it is.
    pub fn uid_at(&self, name: &PodRef) -> Option<String> {
        self.inner().pods.get(&key(name)).map(|pod| pod.metadata.uid.clone())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Subscription ===

impl Subscription {
    /// Returns after the next change, also one since the last call.
    pub async fn changed(&mut self) {
        if let Some(receiver) = &mut self.receiver {
            // The sender lives as long as there is a receiver.
            let _ = receiver.changed().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.pods.inner();
        // Under the lock, so that of two at once one is the last.
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
    /// It is there after all: it was moved here again, or could not be read for a while.
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
        if self.order.len() > MOST_GONE
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}

fn key(name: &PodRef) -> ObjectKey {
    ObjectKey::new(&name.namespace, &name.name)
}

/// Whether the API's pod is the one that a runtime names. Static pods have a UID of their own at the kubelet.
fn is_it(name: &PodRef, pod: &Pod) -> bool {
    name.uid.is_empty() || name.uid == pod.metadata.uid || pod.is_static()
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
    fn pain_6_a_pod_is_known_by_its_uid_and_not_by_its_name_alone() {
        let pods = Pods::default();
        pods.apply_pod(Change::Applied(pod("web-0", "u1", "")));
        assert!(matches!(pods.get(&named("web-0", "u1")), Lookup::Present(_)));
        assert!(matches!(pods.get(&named("web-0", "u2")), Lookup::Unknown), "its successor is not known yet");
        pods.apply_pod(Change::Applied(pod("web-0", "u2", "")));
        pods.apply_pod(gone("web-0", "u1"));
        assert!(
            matches!(pods.get(&named("web-0", "u2")), Lookup::Present(_)),
            "a late event takes nothing from it"
        );
        assert!(matches!(pods.get(&named("web-0", "u1")), Lookup::Gone));
    }

    #[test]
    fn a_static_pod_has_another_uid_at_the_kubelet() {
        let pods = Pods::default();
        let mirror = r#","annotations":{"kubernetes.io/config.source":"file"}"#;
        pods.apply_pod(Change::Applied(pod("etcd", "u-api", mirror)));
        assert!(matches!(pods.get(&named("etcd", "hash-of-the-file")), Lookup::Present(_)));
        let from_api = r#","annotations":{"kubernetes.io/config.source":"api"}"#;
        pods.apply_pod(Change::Applied(pod("web", "u-api", from_api)));
        assert!(matches!(pods.get(&named("web", "another")), Lookup::Unknown));
    }

    #[test]
    fn a_pod_at_its_end_is_gone_though_it_is_still_listed() {
        let pods = Pods::default();
        let mut ended = pod("job", "u1", "");
        ended.status.phase = "Succeeded".to_owned();
        pods.apply_pod(Change::Applied(ended));
        assert!(matches!(pods.get(&named("job", "u1")), Lookup::Gone));
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_the_change_and_nobody_else() {
        let pods = Pods::default();
        let (mut a, mut b) = (pods.subscribe(&named("a", "")), pods.subscribe(&named("b", "")));
        pods.apply_pod(Change::Applied(pod("a", "u1", "")));
        timeout(Duration::from_secs(5), a.changed()).await.unwrap();
        assert!(timeout(Duration::from_millis(20), b.changed()).await.is_err());
        pods.apply_pod(gone("b", "u2"));
        timeout(Duration::from_secs(5), b.changed()).await.unwrap();
        drop((a, b));
        assert!(pods.inner().waiting.is_empty(), "nothing is kept of who waited");
    }

    #[test]
    fn those_who_are_gone_are_remembered_for_a_while_only() {
        let pods = Pods::default();
        for number in 0..=MOST_GONE {
            pods.apply_pod(gone("a", &number.to_string()));
        }
        assert!(matches!(pods.get(&named("a", "0")), Lookup::Unknown));
        assert!(matches!(pods.get(&named("a", "1")), Lookup::Gone));
    }

    #[test]
    fn fix_a_kuryr_port_belongs_to_a_pod_of_the_same_uid() {
        let pods = Pods::default();
        let port = r#"{"metadata":{"namespace":"n","name":"web","uid":"k1"},"spec":{"podUid":"u1"},"status":{"vifs":{"eth0":{}}}}"#;
        pods.apply_kuryr_port(Change::Applied(serde_json::from_str(port).unwrap()));
        assert_eq!(
            pods.kuryr(&named("web", "u1"), false).unwrap().status_vifs.as_deref(),
            Some(r#"{"eth0":{}}"#)
        );
        assert!(pods.kuryr(&named("web", "u2"), false).is_none(), "the port of its predecessor");
        pods.apply_pod(Change::Applied(pod(
            "web",
            "u9",
            r#","annotations":{"kubernetes.io/config.source":"file"}"#,
        )));
        assert!(pods.kuryr(&named("web", "hash"), false).is_some(), "a static pod");
    }
}
