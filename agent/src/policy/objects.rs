//! What policies need of API objects, as the watches keep it.

use std::{
    hash::{BuildHasher as _, RandomState},
    mem::take,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ferrule_policy::object::{self, Namespace, PolicyObject, Service};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer, ser::Error as _};

use crate::{
    cluster,
    watch::{Object, ObjectKey},
};

/// A pod of any node. The watch keeps one for each pod of the cluster, and needs the identity only, once the
/// compiler and the checkpoint have the rest.
#[derive(Debug, Deserialize)]
#[serde(from = "object::Pod")]
pub(super) struct AnyPod {
    key: ObjectKey,
    uid: Box<str>,
    /// Of all that policies need, by a secret hash function.
    digest: u64,
    /// `None` once the sink and a checkpoint have it.
    rest: Mutex<Option<Box<Rest>>>,
}

/// All that policies need of a pod.
#[derive(Debug)]
struct Rest {
    version: String,
    pod: Arc<object::Pod>,
    /// By the sink.
    is_taken: bool,
    /// In a checkpoint.
    is_saved: bool,
}

/// Of peers. The API server sends what was missed at once, from memory.
const REPLAY: Duration = Duration::from_secs(1);

/// The hash function of this process. No author of a pod can make two versions look alike.
static DIGEST: LazyLock<RandomState> = LazyLock::new(RandomState::new);

// === impl AnyPod ===

impl AnyPod {
    /// The pod, for the first caller.
    pub(super) fn take(&self) -> Option<Arc<object::Pod>> {
        let mut rest = self.rest();
        let it = rest.as_mut().filter(|it| !it.is_taken)?;
        it.is_taken = true;
        let pod = Arc::clone(&it.pod);
        if it.is_saved {
            *rest = None;
        }
        Some(pod)
    }

    fn rest(&self) -> MutexGuard<'_, Option<Box<Rest>>> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<object::Pod> for AnyPod {
    fn from(mut pod: object::Pod) -> Self {
        let version = take(&mut pod.metadata.resource_version);
        Self {
            key: key(&pod.metadata),
            uid: pod.metadata.uid.as_str().into(),
            digest: DIGEST.hash_one(&pod),
            rest: Mutex::new(Some(Box::new(Rest {
                version,
                pod: Arc::new(pod),
                is_taken: false,
                is_saved: false,
            }))),
        }
    }
}

impl Object for AnyPod {
    const REPLAY: Duration = REPLAY;

    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn take_version(&mut self) -> String {
        self.rest().as_mut().map(|it| take(&mut it.version)).unwrap_or_default()
    }

    /// Most versions of a pod differ in the status of its containers.
    fn is_repeated_from(&self, earlier: &Self) -> bool {
        self.uid == earlier.uid && self.digest == earlier.digest
    }

    fn is_writable(&self) -> bool {
        self.rest().as_ref().is_some_and(|it| !it.is_saved)
    }

    fn saved(&self) {
        let mut rest = self.rest();
        match rest.as_mut() {
            Some(it) if !it.is_taken => it.is_saved = true,
            _ => *rest = None,
        }
    }
}

impl Serialize for AnyPod {
    /// As the API server writes a pod, as far as policies need it.
    ///
    /// # Errors
    /// If the pod is not [writable](Object::is_writable) any more.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.rest().as_deref() {
            Some(it) => it.pod.serialize(serializer),
            None => Err(S::Error::custom("the pod has been given away")),
        }
    }
}

// === impl PolicyObject, Namespace, Service ===

macro_rules! watched {
    ($($type:ty $(, replayed in $replay:expr)? => $says_the_same:expr;)*) => {$(
        impl Object for $type {
            $(const REPLAY: Duration = $replay;)?

            fn key(&self) -> ObjectKey {
                key(&self.metadata)
            }

            fn uid(&self) -> &str {
                &self.metadata.uid
            }

            fn take_version(&mut self) -> String {
                take(&mut self.metadata.resource_version)
            }

            fn is_repeated_from(&self, earlier: &Self) -> bool {
                let says_the_same: fn(&Self, &Self) -> bool = $says_the_same;
                self.metadata.uid == earlier.metadata.uid && says_the_same(self, earlier)
            }
        }
    )*};
}
watched! {
    PolicyObject => |it, earlier| {
        it.spec.as_ref().map(|json| json.get()) == earlier.spec.as_ref().map(|json| json.get())
    };
    Namespace, replayed in REPLAY => |it, earlier| {
        it.metadata.labels == earlier.metadata.labels && it.is_audited == earlier.is_audited
    };
    Service, replayed in REPLAY => |it, earlier| it.addresses().eq(earlier.addresses());
}

/// What policies need of a Node.
pub(super) fn node(node: &cluster::Node) -> object::Node {
    let internal = node.addresses.iter().filter_map(cluster::Stated::read).chain(&node.others);
    let created = Timestamp::from_second(node.created).ok().filter(|_| node.created < i64::MAX);
    object::Node {
        metadata: object::Metadata {
            name: node.name().to_owned(),
            uid: node.uid.as_ref().to_owned(),
            creation_timestamp: created.map(|it| it.to_string()).unwrap_or_default(),
            // The API server has checked that the labels are texts.
            labels: serde_json::from_str(&node.labels.json(node.name())).unwrap_or_default(),
            ..object::Metadata::default()
        },
        status: object::NodeStatus {
            addresses: internal.map(|it| object::NodeAddress { address: it.to_string() }).collect(),
        },
    }
}

fn key(metadata: &object::Metadata) -> ObjectKey {
    ObjectKey::new(&metadata.namespace, &metadata.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = r#"{"metadata":{"namespace":"n","name":"a","uid":"u","resourceVersion":"7",
        "labels":{"app":"x"},"creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[{"x":1}]},
        "spec":{"nodeName":"node-1","containers":[{"name":"c","image":"i","ports":[
            {"name":"web","containerPort":80},{"containerPort":81}]},{"name":"d"}]},
        "status":{"phase":"Pending","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}"#;

    fn pod(json: &str) -> AnyPod {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_pod_is_kept_as_its_identity_once_the_sink_has_taken_the_rest() {
        let mut any = pod(POD);
        assert_eq!((any.key().as_str(), any.uid()), ("n/a", "u"));
        assert_eq!((any.take_version(), any.take_version()), ("7".to_owned(), String::new()));
        let taken = any.take().unwrap();
        assert_eq!(taken.metadata.labels.get("app"), Some("x"));
        let ports: Vec<_> = taken.ports.iter().map(|it| (&*it.name, it.container_port)).collect();
        assert_eq!((ports, &*taken.addresses), (vec![("web", 80)], &["10.0.0.1".into()][..]));
        assert!(any.take().is_none());
    }

    #[test]
    fn a_pod_is_written_as_it_was_read_until_a_checkpoint_has_it() {
        let whole = pod(POD).take().unwrap();
        let stored = |any: &AnyPod| serde_json::to_string(any).ok();
        for is_taken_first in [true, false] {
            let any = pod(POD);
            assert!(!is_taken_first || any.take().is_some());
            let written = stored(&any).unwrap();
            assert!(any.is_writable() && !written.contains("managedFields"));
            let read = pod(&written);
            assert!(read.is_repeated_from(&any), "{written}");
            assert_eq!(read.take(), Some(whole.clone()));
            any.saved();
            assert_eq!(any.take().is_some(), !is_taken_first);
            assert!(!any.is_writable() && stored(&any).is_none() && any.take().is_none());
        }
    }

    #[test]
    fn a_version_that_changes_nothing_for_policies_repeats_the_pod() {
        let first = pod(POD);
        first.take();
        for (from, to) in [
            ("\"7\"", "\"8\""),
            ("Pending", "Running"),
            ("\"image\":\"i\"", "\"image\":\"j\""),
            ("node-1", "node-2"),
        ] {
            assert!(pod(&POD.replace(from, to)).is_repeated_from(&first), "{to}");
        }
        for (from, to) in [
            ("\"x\"", "\"y\""),
            ("\"u\"", "\"v\""),
            ("Pending", "Failed"),
            ("80", "8080"),
            ("10.0.0.1", "10.0.0.2"),
            ("\"uid\"", "\"deletionTimestamp\":\"2026-01-02T03:04:06Z\",\"uid\""),
            ("\"nodeName\"", "\"hostNetwork\":true,\"nodeName\""),
        ] {
            assert!(!pod(&POD.replace(from, to)).is_repeated_from(&first), "{to}");
        }
    }

    #[test]
    fn only_what_policies_ask_for_is_news_of_other_objects() {
        fn repeats<T: Object>(json: &str, from: &str, to: &str) -> bool {
            let read = |json: &str| serde_json::from_str::<T>(json).unwrap();
            read(&json.replace(from, to)).is_repeated_from(&read(json))
        }
        let policy = r#"{"metadata":{"name":"a","uid":"u","labels":{"x":"y"}},"spec":{"podSelector":{}}}"#;
        assert!(repeats::<PolicyObject>(policy, "\"y\"", "\"z\""));
        assert!(!repeats::<PolicyObject>(policy, "{}", "{\"matchLabels\":{}}"));
        assert!(!repeats::<PolicyObject>(policy, "\"u\"", "\"v\""));
        let namespace =
            r#"{"metadata":{"name":"a","uid":"u","labels":{"x":"y"}},"status":{"phase":"Active"}}"#;
        assert!(repeats::<Namespace>(namespace, "Active", "Terminating"));
        assert!(!repeats::<Namespace>(namespace, "\"y\"", "\"z\""));
        let audited = r#""annotations":{"policy.ferrule.dev/audit":"true"},"labels""#;
        assert!(!repeats::<Namespace>(namespace, "\"labels\"", audited));
        let service =
            r#"{"metadata":{"name":"a","uid":"u"},"spec":{"clusterIP":"10.0.0.1","ports":[{"port":80}]}}"#;
        assert!(repeats::<Service>(service, "80", "81"));
        assert!(!repeats::<Service>(service, "10.0.0.1", "10.0.0.2"));
    }

    #[test]
    fn a_node_has_its_labels_and_all_addresses() {
        let json = r#"{"metadata":{"name":"a","uid":"u","creationTimestamp":"2026-01-02T03:04:05Z",
            "labels":{"role":"db"}},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},
            {"type":"Hostname","address":"a"},{"type":"ExternalIP","address":"198.51.100.1"}]}}"#;
        let object = node(&serde_json::from_str(json).unwrap());
        assert_eq!((object.metadata.name.as_str(), object.metadata.uid.as_str()), ("a", "u"));
        assert_eq!(object.metadata.labels.get("role"), Some("db"));
        assert_eq!(object.metadata.creation_timestamp, "2026-01-02T03:04:05Z");
        let addresses: Vec<_> = object.status.addresses.iter().map(|it| it.address.as_str()).collect();
        assert_eq!(addresses, ["192.0.2.1", "198.51.100.1"]);
        let bare = node(&serde_json::from_str(r#"{"metadata":{"name":"a"}}"#).unwrap());
        assert!(bare.metadata.labels.is_empty() && bare.metadata.creation_timestamp.is_empty());
    }
}
