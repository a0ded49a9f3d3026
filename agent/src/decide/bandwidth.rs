//! Annotations about bandwidth that do not limit their pod. Runtimes decode them and pass numbers, so that
//! the agent compares afterwards, off the path of an ADD.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use ferrule_proto::quoted::Quoted;

use super::quantity;
use crate::{
    cluster::{Annotations, Lookup, PodRef, Pods},
    events::{Events, Reason},
    registry::{Registry, Wishes},
    watch::ObjectKey,
};

/// Reports each annotation about bandwidth once that cannot be read, or differs from the limit of its pod.
pub struct IgnoredBandwidths {
    registry: Arc<Registry>,
    pods: Pods,
    events: Events,
    /// What was reported of each pod.
    reported: Mutex<HashMap<ObjectKey, String>>,
}

/// More pods than run on a node. Beyond that, reports may be repeated.
const MOST: usize = 4096;

// === impl IgnoredBandwidths ===

impl IgnoredBandwidths {
    pub fn new(registry: Arc<Registry>, pods: Pods, events: Events) -> Self {
        Self { registry, pods, events, reported: Mutex::default() }
    }

    /// Looks at a pod that was added, modified or deleted.
    pub fn look(&self, key: &ObjectKey) {
        let named =
            PodRef { namespace: key.namespace().to_owned(), name: key.name().to_owned(), uid: String::new() };
        let pod = PodRef { uid: self.pods.uid_at(&named).unwrap_or_default(), ..named };
        let note = match self.pods.get(&pod) {
            Lookup::Present(annotations) => self.note(&pod, &annotations),
            _ => None,
        };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(note) = note else {
            reported.remove(key);
            return;
        };
        if reported.get(key) == Some(&note) {
            return;
        }
        if reported.len() >= MOST {
            reported.clear();
        }
        reported.insert(key.clone(), note.clone());
        tracing::warn!(%pod, note, "limits of traffic that have no effect");
        self.events.record(&pod, Reason::BandwidthIgnored, note);
    }

    fn note(&self, pod: &PodRef, annotations: &Annotations) -> Option<String> {
        let Annotations { ingress_bandwidth, egress_bandwidth, .. } = annotations;
        let (ingress, egress) = (ingress_bandwidth.as_deref(), egress_bandwidth.as_deref());
        if ingress.is_none() && egress.is_none() {
            return None;
        }
        let limits = self.limits(pod);
        let problems = [
            problem("kubernetes.io/ingress-bandwidth", ingress, limits.map(|(ingress, _)| ingress)),
            problem("kubernetes.io/egress-bandwidth", egress, limits.map(|(_, egress)| egress)),
        ];
        let problems: Vec<_> = problems.into_iter().flatten().collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// The pod's limits, in bits per second: what it receives, and what it sends. `None` before it is
    /// attached.
    fn limits(&self, pod: &PodRef) -> Option<(Option<u64>, Option<u64>)> {
        let is_of_pod = |of: &PodRef| {
            (&of.namespace, &of.name) == (&pod.namespace, &pod.name)
                && (of.uid == pod.uid || of.uid.is_empty())
        };
        let attached = self.registry.find(|it| it.with.is_none() && is_of_pod(&it.pod)).pop()?;
        let Wishes { ingress, egress, .. } = attached.wishes;
        Some((ingress.map(|it| it.bits), egress.map(|it| it.bits)))
    }
}

/// `limit`: of the attached pod, if there is one. An attached pod without a limit is none: another plugin of
/// the chain may have the request.
fn problem(name: &str, value: Option<&str>, limit: Option<Option<u64>>) -> Option<String> {
    let value = value?;
    let shown = Quoted(value);
    match (quantity::parse(value), limit) {
        (None | Some(0), _) => Some(format!(
            "the annotation {name} is {shown}, expected bits per second such as 10M: it limits nothing"
        )),
        (Some(wanted), Some(Some(limit))) if wanted != limit => Some(format!(
            "the annotation {name} is {shown}, and the pod was started with {limit} bit/s, which stays; delete the \
             pod, and annotate its successor before it is scheduled"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::Receiver;

    use super::*;
    use crate::{
        events::Event,
        ipam::PodCidrs,
        metrics::EventMetrics,
        registry::{Allocation, Key, NetnsId, NewAttachment, Rate},
        watch::Change,
    };

    struct Fixture {
        ignored: IgnoredBandwidths,
        registry: Arc<Registry>,
        pods: Pods,
        notes: Receiver<Event>,
        _dir: tempfile::TempDir,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::open(dir.path()).unwrap());
        registry.set_ranges(PodCidrs::new(vec!["10.0.0.0/24".parse().unwrap()]).unwrap(), &[]);
        let pods = Pods::default();
        let (events, notes) = Events::channel(EventMetrics::default(), pods.clone());
        let ignored = IgnoredBandwidths::new(Arc::clone(&registry), pods.clone(), events);
        Fixture { ignored, registry, pods, notes, _dir: dir }
    }

    impl Fixture {
        fn change(&mut self, uid: &str, annotations: &[(&str, &str)]) -> Vec<String> {
            let annotations: HashMap<_, _> = annotations.iter().copied().collect();
            let pod = serde_json::json!({
                "metadata": { "namespace": "n", "name": "web", "uid": uid, "annotations": annotations }
            });
            let changed = self.pods.apply_pod(Change::applied(serde_json::from_value(pod).unwrap())).unwrap();
            self.ignored.look(&changed.key);
            let events = std::iter::from_fn(|| self.notes.try_recv().ok());
            events
                .map(|it| {
                    assert_eq!(
                        (it.reason, it.name.as_str(), it.is_warning),
                        ("CNIBandwidthIgnored", "web", true)
                    );
                    it.note
                })
                .collect()
        }

        fn attach(&self, wishes: Wishes) {
            let new = NewAttachment {
                key: Key::try_from("net/a/eth0".to_owned()).unwrap(),
                with: None,
                pod: PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u1".to_owned() },
                netns: "/x".into(),
                netns_id: NetnsId { dev: 4, ino: 7 },
                allocation: Allocation::FromIpam { mtu: 1500 },
                wishes,
            };
            self.registry.reserve(new).unwrap();
        }
    }

    const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
    const EGRESS: &str = "kubernetes.io/egress-bandwidth";

    #[test]
    fn an_annotation_that_cannot_be_read_is_reported_once_and_before_the_pod_is_attached() {
        let mut fixture = fixture();
        assert!(fixture.change("u1", &[(INGRESS, "10M"), (EGRESS, "1.5Gi")]).is_empty());
        let bad = [(INGRESS, "10Mbit"), (EGRESS, "10M")];
        let notes = fixture.change("u1", &bad);
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.contains("ingress-bandwidth is \"10Mbit\", expected bits per second"), "{note}");
        assert!(!note.contains("egress"), "{note}");
        assert!(fixture.change("u1", &bad).is_empty(), "once");
        assert_eq!(fixture.change("u1", &[(INGRESS, "0")]).len(), 1, "another text");
        assert!(fixture.change("u1", &[]).is_empty());
        assert_eq!(fixture.change("u1", &bad).len(), 1, "again after the annotation was gone");
    }

    #[test]
    fn an_annotation_that_differs_from_the_limit_of_the_pod_is_reported() {
        let mut fixture = fixture();
        let rate = |bits| Some(Rate { bits, burst_bits: 0 });
        fixture.attach(Wishes { ingress: rate(10_000_000), egress: None, ..Wishes::default() });
        assert!(fixture.change("u1", &[(INGRESS, "10M")]).is_empty());
        assert!(fixture.change("u1", &[(INGRESS, "10M"), (EGRESS, "5M")]).is_empty(), "of another plugin");
        let notes = fixture.change("u1", &[(INGRESS, "20M")]);
        assert!(notes[0].contains("is \"20M\", and the pod was started with 10000000 bit/s"), "{notes:?}");
        assert!(fixture.change("u2", &[(INGRESS, "20M")]).is_empty(), "the successor is not attached");
    }
}
