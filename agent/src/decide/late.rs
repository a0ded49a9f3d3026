//! Annotations that come too late: a pod keeps the VIF that it was plugged with.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::source::VifSource;
use crate::{
    cluster::{Lookup, PodRef, Pods},
    events::{Events, Reason},
    registry::Registry,
    watch::ObjectKey,
};

/// Reports each annotation once that differs from what its pod was plugged with.
pub struct LateAnnotations {
    source: VifSource,
    registry: Arc<Registry>,
    pods: Pods,
    events: Events,
    /// The reported annotation of each pod.
    reported: Mutex<HashMap<ObjectKey, String>>,
}

/// More pods than run on a node. Beyond that, reports may be repeated.
const MOST: usize = 4096;

// === impl LateAnnotations ===

impl LateAnnotations {
    pub fn new(source: VifSource, registry: Arc<Registry>, pods: Pods, events: Events) -> Self {
        Self { source, registry, pods, events, reported: Mutex::default() }
    }

    /// Looks at a pod that was added, modified or deleted.
    pub fn look(&self, key: &ObjectKey) {
        if !matches!(self.source, VifSource::Auto | VifSource::Annotation) {
            return;
        }
        let named =
            PodRef { namespace: key.namespace().to_owned(), name: key.name().to_owned(), uid: String::new() };
        let pod = PodRef { uid: self.pods.uid_at(&named).unwrap_or_default(), ..named };
        let annotation = match self.pods.get(&pod) {
            Lookup::Present(annotations) => annotations.ferrule,
            _ => None,
        };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(annotation) = annotation else {
            reported.remove(key);
            return;
        };
        if reported.get(key) == Some(&annotation) {
            return;
        }
        let Some(plugged) = self.plugged_otherwise(&pod, &annotation) else { return };
        if reported.len() >= MOST {
            reported.clear();
        }
        reported.insert(key.clone(), annotation);
        let note = format!(
            "the annotation vif.ferrule.dev/v1 is ignored: the pod was plugged before with {plugged}; delete the pod, \
             and annotate its successor before it is scheduled"
        );
        tracing::warn!(%pod, note, "late annotation");
        self.events.record(&pod, Reason::VifIgnored, note);
    }

    /// The addresses of a pod's interface, if the annotation has others or cannot be decoded.
    fn plugged_otherwise(&self, pod: &PodRef, annotation: &str) -> Option<String> {
        let is_of_pod = |of: &PodRef| {
            (&of.namespace, &of.name) == (&pod.namespace, &pod.name)
                && (of.uid == pod.uid || of.uid.is_empty())
        };
        let plugged = self.registry.find(|it| it.with.is_none() && is_of_pod(&it.pod)).pop()?;
        let decided = ferrule_vif::from_annotation(annotation).ok();
        let decided = decided.as_ref().and_then(|vif| vif.interfaces.first());
        let has = |address| decided.is_some_and(|it| it.addresses.iter().any(|net| net.addr() == address));
        let count = decided.map_or(0, |it| it.addresses.len());
        let addresses = plugged.vif.addresses;
        let is_same = addresses.iter().all(has) && addresses.iter().count() == count;
        (!is_same).then(|| addresses.to_string())
    }
}

#[cfg(test)]
mod tests {
    use ferrule_proto::names::{ContainerId, IfName, NetworkName};

    use super::*;
    use crate::{
        ipam::PodCidrs,
        metrics::EventMetrics,
        registry::{Allocation, Key, NetnsId, NewAttachment, Wishes},
        watch::Change,
    };

    fn annotated(uid: &str, address: &str) -> Change<crate::cluster::Pod> {
        named("web", uid, address)
    }

    fn named(pod: &str, uid: &str, address: &str) -> Change<crate::cluster::Pod> {
        let vif = format!(r#"{{\"interfaces\":[{{\"addresses\":[\"{address}\"]}}]}}"#);
        let json = format!(
            r#"{{"metadata":{{"namespace":"n","name":"{pod}","uid":"{uid}","annotations":{{"vif.ferrule.dev/v1":"{vif}"}}}}}}"#
        );
        Change::applied(serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn an_annotation_that_differs_from_the_plugged_vif_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::open(dir.path()).unwrap());
        registry.set_ranges(PodCidrs::new(vec!["10.0.0.0/24".parse().unwrap()]).unwrap(), &[]);
        let pods = Pods::default();
        let (events, mut notes) = Events::channel(EventMetrics::default(), pods.clone());
        let late = LateAnnotations::new(VifSource::Auto, Arc::clone(&registry), pods.clone(), events.clone());
        let mut change = |late: &LateAnnotations, change| {
            late.look(&pods.apply_pod(change).unwrap().key);
            std::iter::from_fn(|| notes.try_recv().ok()).map(|it| (it.reason, it.note)).collect::<Vec<_>>()
        };
        assert_eq!(change(&late, annotated("u1", "10.0.0.9")), [], "not plugged yet");
        let pod = PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u1".to_owned() };
        let key = Key {
            network: NetworkName::new("net").unwrap(),
            container_id: ContainerId::new("a").unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        };
        let (netns_id, allocation) = (NetnsId { dev: 4, ino: 7 }, Allocation::FromIpam { mtu: 1500 });
        let eth1 = Key { ifname: IfName::new("eth1").unwrap(), ..key.clone() };
        let with = Some(key.clone());
        let new = NewAttachment {
            key,
            with: None,
            pod,
            netns: "/x".into(),
            netns_id,
            allocation,
            wishes: Wishes::default(),
        };
        assert_eq!(registry.reserve(new.clone()).unwrap().vif.addresses.to_string(), "10.0.0.2");
        // A further interface does not count.
        registry.reserve(NewAttachment { key: eth1, with, ..new }).unwrap();
        let [(reason, note)] = change(&late, annotated("u1", "10.0.0.9")).try_into().unwrap();
        assert_eq!(reason, "CNIVIFIgnored");
        assert!(note.contains("plugged before with 10.0.0.2"), "{note}");
        assert_eq!(change(&late, annotated("u1", "10.0.0.9")), [], "once");
        assert_eq!(change(&late, annotated("u1", "10.0.0.8")).len(), 1, "another annotation");
        assert_eq!(change(&late, annotated("u1", "10.0.0.2")), [], "what the pod has");
        let both = r#"10.0.0.2\",\"fd00::2"#;
        assert_eq!(change(&late, annotated("u1", both)).len(), 1, "a second address");
        let without = r#"{"metadata":{"namespace":"n","name":"web","uid":"u1"}}"#;
        let without = Change::applied(serde_json::from_str(without).unwrap());
        assert_eq!(change(&late, without), []);
        assert_eq!(change(&late, annotated("u1", both)).len(), 1, "again after the annotation was gone");
        assert_eq!(change(&late, annotated("u2", "10.0.0.9")), [], "the successor is not plugged");
        let other = LateAnnotations::new(VifSource::Ipam, registry, pods.clone(), events);
        assert_eq!(change(&other, annotated("u1", "10.0.0.9")), [], "annotations do not count");
    }

    #[test]
    fn the_report_about_one_pod_does_not_repeat_that_about_another() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::open(dir.path()).unwrap());
        registry.set_ranges(PodCidrs::new(vec!["10.0.0.0/24".parse().unwrap()]).unwrap(), &[]);
        for name in ["web", "db"] {
            let new = NewAttachment {
                key: Key::try_from(format!("net/{name}/eth0")).unwrap(),
                with: None,
                pod: PodRef { namespace: "n".to_owned(), name: name.to_owned(), uid: "u1".to_owned() },
                netns: "/x".into(),
                netns_id: NetnsId { dev: 4, ino: 7 },
                allocation: Allocation::FromIpam { mtu: 1500 },
                wishes: Wishes::default(),
            };
            registry.reserve(new).unwrap();
        }
        let pods = Pods::default();
        let (events, mut notes) = Events::channel(EventMetrics::default(), pods.clone());
        let late = LateAnnotations::new(VifSource::Auto, registry, pods.clone(), events);
        let reports: Vec<usize> = ["web", "db", "web", "db"]
            .into_iter()
            .map(|pod| {
                late.look(&pods.apply_pod(named(pod, "u1", "10.0.0.9")).unwrap().key);
                std::iter::from_fn(|| notes.try_recv().ok()).count()
            })
            .collect();
        assert_eq!(reports, [1, 1, 0, 0]);
    }
}
