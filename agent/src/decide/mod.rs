//! Decides which VIF a pod gets: from the runtime's call, from the watched API objects, or from the agent's
//! own IPAM.
//!
//! [`source`] has the precedence of the sources, [`admit`] the rules that a VIF must satisfy on this node. A
//! decision never queries the API server: an ADD waits until the watch delivers the missing object, and the
//! watch wakes the ADD.

mod admit;
mod bandwidth;
mod late;
mod quantity;
mod source;

use std::{sync::Arc, time::Duration};

use ferrule_vif::{VifError, VifRequest};
use ipnet::IpNet;
use tokio::time::{Instant, timeout_at};

pub use admit::{Refused, Rules};
pub use bandwidth::IgnoredBandwidths;
pub use late::LateAnnotations;
pub use source::{Decision, VifSource};

use crate::{
    cluster::{Annotations, Lookup, PodRef, Pods},
    events::{Events, Reason},
    ipam::Ranges,
    registry::Registry,
};
use source::{Facts, Outcome};

/// Decides VIFs by the node's configuration.
pub struct Decider {
    pub source: VifSource,
    /// How long an ADD waits for its VIF to be decided and to become active, together: the caller has one
    /// deadline.
    pub timeout: Duration,
    /// Ranges that a decided address must be in; empty for the node's pod CIDRs.
    pub vif_cidrs: Vec<IpNet>,
    /// Whether pods are watched: without Kubernetes, annotations come with the call or not at all.
    has_watch: bool,
    registry: Arc<Registry>,
    pods: Pods,
    events: Events,
}

/// The pod that a decision is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub pod: &'a PodRef,
    /// The pod's annotations, if the runtime passes them.
    pub annotations: Option<&'a Annotations>,
    /// The end of all waits for this pod together.
    pub deadline: Instant,
}

/// There is no decision, or the decision was replaced.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error("the pod {0} is gone: deleted, terminated, or scheduled to another node")]
    PodGone(PodRef),
    /// The missing object did not arrive within the deadline.
    #[error("no {missing} within {} s", waited.as_secs())]
    TimedOut { missing: &'static str, waited: Duration },
    /// No source can deliver the missing object.
    #[error("no {0}, and no watch of the API server that could deliver one later")]
    Never(&'static str),
    /// The node has lost its pod CIDRs, for this reason.
    #[error("no pod CIDR: {0}")]
    RangesWithdrawn(String),
    /// The annotation or the KuryrPort cannot be decoded.
    #[error("cannot decode the pod's VIF: {0}")]
    Vif(#[from] VifError),
    /// The source replaced the VIF after the ADD had plugged it.
    #[error("the pod's VIF changed before it became active")]
    Changed,
}

/// The delay before the pod gets an Event about the wait: most decisions arrive at once.
const EVENT_DELAY: Duration = Duration::from_secs(2);

// === impl Decider ===

impl Decider {
    pub fn new(
        source: VifSource,
        timeout: Duration,
        vif_cidrs: Vec<IpNet>,
        has_watch: bool,
        registry: Arc<Registry>,
        pods: Pods,
        events: Events,
    ) -> Self {
        Self { source, timeout, vif_cidrs, has_watch, registry, pods, events }
    }

    /// Waits for the decision about a pod's VIF; `tell` gets what is missing, each time that something is.
    ///
    /// # Errors
    /// See [`DecideError`].
    pub(crate) async fn decide(
        &self,
        request: &Request<'_>,
        tell: impl Fn(&'static str),
    ) -> Result<Decision, DecideError> {
        let deadline = request.deadline;
        let start = Instant::now();
        let mut is_reported = false;
        let mut changes = self.pods.subscribe(request.pod);
        let mut ranges = self.registry.ranges();
        loop {
            let known = ranges.borrow_and_update().clone();
            let missing = match (self.evaluate(request, !known.nets().is_empty())?, known) {
                (Outcome::Decided(decision), _) => return Ok(decision),
                (Outcome::MissingRange(_), Ranges::Withdrawn(why)) => {
                    let error = DecideError::RangesWithdrawn(why);
                    self.events.record(request.pod, Reason::NoAddress, error.to_string());
                    return Err(error);
                }
                (Outcome::Never(missing), _) => return Err(DecideError::Never(missing)),
                (Outcome::Missing(missing) | Outcome::MissingRange(missing), _) => missing,
            };
            tell(missing);
            let wake = if is_reported { deadline } else { deadline.min(start + EVENT_DELAY) };
            let changed = async {
                tokio::select! {
                    () = changes.changed() => {}
                    _ = ranges.changed() => {}
                }
            };
            if timeout_at(wake, changed).await.is_ok() {
                continue;
            }
            if Instant::now() < deadline {
                is_reported = true;
                self.events.record(request.pod, Reason::WaitingForVif, format!("waiting for {missing}"));
                continue;
            }
            let reason = match self.source {
                VifSource::Kuryr => Reason::TimedOutWaitingForKuryrPort,
                VifSource::Auto | VifSource::Annotation | VifSource::Ipam => Reason::TimedOutWaitingForVif,
            };
            let error = DecideError::TimedOut { missing, waited: self.timeout };
            self.events.record(request.pod, reason, error.to_string());
            return Err(error);
        }
    }

    /// Waits until every interface of a decided VIF is active.
    ///
    /// # Errors
    /// If the pod goes, the VIF is replaced, or the deadline passes.
    pub(crate) async fn until_active(
        &self,
        request: &Request<'_>,
        decided: &VifRequest,
    ) -> Result<(), DecideError> {
        self.events.record(
            request.pod,
            Reason::WaitingForActiveVifs,
            "the interface is plugged; waiting for its VIF to become active",
        );
        let mut changes = self.pods.subscribe(request.pod);
        // The annotations in the call are a snapshot of its beginning.
        let request = Request { annotations: None, ..*request };
        loop {
            if let Outcome::Decided(Decision::Fixed(now)) = self.evaluate(&request, true)? {
                if !source::is_same(&now, decided) {
                    return Err(DecideError::Changed);
                }
                if is_active(&now) {
                    return Ok(());
                }
            }
            if timeout_at(request.deadline, changes.changed()).await.is_err() {
                let error = DecideError::TimedOut { missing: "active VIF", waited: self.timeout };
                self.events.record(request.pod, Reason::TimedOutWaitingForActiveVifs, error.to_string());
                return Err(error);
            }
        }
    }

    fn evaluate(&self, request: &Request<'_>, has_ranges: bool) -> Result<Outcome, DecideError> {
        let Request { pod, annotations: from_call, .. } = *request;
        let is_watched = self.has_watch && pod.is_of_kubernetes();
        let known = if is_watched { self.pods.of_new_sandbox(pod) } else { Lookup::Unknown };
        let from_watch = match &known {
            Lookup::Gone => return Err(DecideError::PodGone(pod.clone())),
            Lookup::Present(annotations) | Lookup::StaticEnded(annotations) => Some(annotations),
            Lookup::Unknown => None,
        };
        let is_static = from_call.is_some_and(Annotations::is_static);
        let port = (self.source == VifSource::Kuryr).then(|| self.pods.kuryr(pod, is_static)).flatten();
        let facts = Facts {
            is_watched,
            from_call,
            from_watch,
            port: port.as_ref(),
            has_ranges,
            has_vif_cidrs: !self.vif_cidrs.is_empty(),
        };
        Ok(self.source.evaluate(&facts)?)
    }
}

/// Whether all interfaces of a VIF are active.
pub(crate) fn is_active(vif: &VifRequest) -> bool {
    vif.interfaces.iter().all(|interface| interface.active)
}

#[cfg(test)]
mod tests {
    use tokio::{
        sync::mpsc::Receiver,
        time::{sleep, timeout},
    };

    use super::*;
    use crate::{events::Event, ipam::PodCidrs, metrics::EventMetrics, watch::Change};

    struct Fixture {
        decider: Arc<Decider>,
        registry: Arc<Registry>,
        pods: Pods,
        notes: Receiver<Event>,
        _dir: tempfile::TempDir,
    }

    fn fixture(source: VifSource, has_watch: bool) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Registry::open(dir.path()).unwrap());
        let pods = Pods::default();
        let (events, notes) = Events::channel(EventMetrics::default(), pods.clone());
        let decider = Decider::new(
            source,
            Duration::from_secs(60),
            Vec::new(),
            has_watch,
            Arc::clone(&registry),
            pods.clone(),
            events,
        );
        Fixture { decider: Arc::new(decider), registry, pods, notes, _dir: dir }
    }

    fn ranges() -> PodCidrs {
        PodCidrs::new(vec!["10.0.0.0/24".parse().unwrap()]).unwrap()
    }

    fn pod() -> PodRef {
        PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u1".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_tells_what_is_missing_and_a_decision_that_is_there_tells_nothing() {
        let fixture = fixture(VifSource::Annotation, true);
        let (pod, told) = (pod(), std::cell::RefCell::new(Vec::new()));
        let deadline = Instant::now() + Duration::from_secs(3);
        let request = Request { pod: &pod, annotations: None, deadline };
        fixture.decider.decide(&request, |missing| told.borrow_mut().push(missing)).await.unwrap_err();
        assert_eq!(told.borrow().first(), Some(&"annotation vif.ferrule.dev/v1 on the pod"));
        told.borrow_mut().clear();
        fixture.registry.set_ranges(ranges(), &[]);
        let annotations = Annotations {
            ferrule: Some(r#"{"interfaces":[{"addresses":["10.0.0.7"]}]}"#.to_owned()),
            ..Annotations::default()
        };
        let request = Request { annotations: Some(&annotations), ..request };
        fixture.decider.decide(&request, |missing| told.borrow_mut().push(missing)).await.unwrap();
        assert!(told.borrow().is_empty());
    }

    async fn decide(decider: &Decider) -> Result<Decision, DecideError> {
        let pod = pod();
        let deadline = Instant::now() + decider.timeout;
        let request = Request { pod: &pod, annotations: None, deadline };
        decider.decide(&request, |_| ()).await
    }

    impl Fixture {
        fn reasons(&mut self) -> Vec<&'static str> {
            std::iter::from_fn(|| self.notes.try_recv().ok()).map(|it| it.reason).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn withdrawn_ranges_end_the_wait_at_once_and_known_ones_decide() {
        let mut fixture = fixture(VifSource::Ipam, true);
        let decider = Arc::clone(&fixture.decider);
        let waiting = tokio::spawn(async move { decide(&decider).await });
        sleep(Duration::from_secs(1)).await;
        fixture.registry.withdraw_ranges("the Node was deleted".to_owned());
        let error = timeout(Duration::from_millis(10), waiting).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "no pod CIDR: the Node was deleted");
        assert_eq!(fixture.reasons(), ["CNINoAddress"]);
        fixture.registry.set_ranges(ranges(), &[]);
        assert_eq!(decide(&fixture.decider).await.unwrap(), Decision::FromIpam);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_add_reports_once_after_two_seconds_and_fails_at_its_deadline() {
        let mut fixture = fixture(VifSource::Auto, true);
        let decider = Arc::clone(&fixture.decider);
        let start = Instant::now();
        let waiting = tokio::spawn(async move { decide(&decider).await });
        sleep(Duration::from_millis(1999)).await;
        assert_eq!(fixture.reasons(), [""; 0]);
        sleep(Duration::from_millis(2)).await;
        assert_eq!(fixture.reasons(), ["CNIWaitingForVIF"]);
        let error = waiting.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("within 60 s"), "{error}");
        assert_eq!(start.elapsed().as_secs(), 60);
        assert_eq!(fixture.reasons(), ["CNITimedOutWaitingForVIF"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_and_the_ranges_wake_a_waiting_add() {
        let fixture = fixture(VifSource::Auto, true);
        let decider = Arc::clone(&fixture.decider);
        let waiting = tokio::spawn(async move { decide(&decider).await });
        sleep(Duration::from_secs(5)).await;
        let json = r#"{"metadata":{"namespace":"n","name":"web","uid":"u1"}}"#;
        fixture.pods.apply_pod(Change::applied(serde_json::from_str(json).unwrap()));
        sleep(Duration::from_secs(5)).await;
        fixture.registry.set_ranges(ranges(), &[]);
        let decided = timeout(Duration::from_millis(10), waiting).await.unwrap().unwrap();
        assert_eq!(decided.unwrap(), Decision::FromIpam);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_watch_nothing_is_waited_for_that_only_a_watch_could_deliver() {
        let annotation = fixture(VifSource::Annotation, false);
        let error = timeout(Duration::from_millis(10), decide(&annotation.decider)).await.unwrap();
        assert!(matches!(error, Err(DecideError::Never(_))));
        let auto = fixture(VifSource::Auto, false);
        auto.registry.set_ranges(ranges(), &[]);
        assert_eq!(decide(&auto.decider).await.unwrap(), Decision::FromIpam);
    }

    fn annotated(name: &str, text: &str) -> Change<crate::cluster::Pod> {
        let annotations = serde_json::json!({ name: text });
        let pod = serde_json::json!({ "metadata": {
            "namespace": "n", "name": "web", "uid": "u1", "annotations": annotations,
        } });
        Change::applied(serde_json::from_value(pod).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugged_vif_becomes_active_or_was_changed() {
        let pod: serde_json::Value =
            serde_json::from_str(include_str!("../../../vif/testdata/era2_pod_real_doc.json")).unwrap();
        let kuryr = "openstack.org/kuryr-vif";
        let active = pod["metadata"]["annotations"][kuryr].as_str().unwrap();
        let inactive = active.replacen("\"active\": true", "\"active\": false", 1);
        let changed = active.replacen("fa:16:3e:bf:84:ff", "fa:16:3e:bf:84:fe", 1);
        assert!(inactive != active && changed != active);
        for (next, becomes_active) in [(active, true), (&changed, false)] {
            let fixture = fixture(VifSource::Kuryr, true);
            fixture.registry.set_ranges(ranges(), &[]);
            fixture.pods.apply_pod(annotated(kuryr, &inactive));
            let Decision::Fixed(decided) = decide(&fixture.decider).await.unwrap() else {
                panic!("decided by the IPAM")
            };
            assert!(!is_active(&decided));
            let decider = Arc::clone(&fixture.decider);
            let waiting = tokio::spawn(async move {
                let pod = super::tests::pod();
                let deadline = Instant::now() + decider.timeout;
                let request = Request { pod: &pod, annotations: None, deadline };
                decider.until_active(&request, &decided).await
            });
            sleep(Duration::from_secs(5)).await;
            assert!(!waiting.is_finished());
            fixture.pods.apply_pod(annotated(kuryr, next));
            let ended = timeout(Duration::from_millis(10), waiting).await.unwrap().unwrap();
            assert_eq!(ended.is_ok(), becomes_active, "{ended:?}");
            assert!(becomes_active || matches!(ended, Err(DecideError::Changed)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_annotations_of_the_call_do_not_keep_a_vif_inactive() {
        let fixture = fixture(VifSource::Annotation, true);
        fixture.registry.set_ranges(ranges(), &[]);
        let now = r#"{"interfaces":[{"addresses":["10.0.0.7"]}]}"#;
        fixture.pods.apply_pod(annotated("vif.ferrule.dev/v1", now));
        let mut decided = ferrule_vif::from_annotation(now).unwrap();
        decided.interfaces[0].active = false;
        let old = r#"{"interfaces":[{"addresses":["10.0.0.9"]}]}"#.to_owned();
        let of_call = Annotations { ferrule: Some(old), ..Annotations::default() };
        let (pod, deadline) = (pod(), Instant::now() + Duration::from_secs(60));
        let request = Request { pod: &pod, annotations: Some(&of_call), deadline };
        fixture.decider.until_active(&request, &decided).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn both_waits_of_an_add_end_at_the_deadline_of_the_caller() {
        let fixture = fixture(VifSource::Auto, true);
        let (pod, start) = (pod(), Instant::now());
        let within = |seconds| {
            let deadline = start + Duration::from_secs(seconds);
            Request { pod: &pod, annotations: None, deadline }
        };
        let error = fixture.decider.decide(&within(10), |_| ()).await.unwrap_err();
        assert!(matches!(error, DecideError::TimedOut { .. }), "{error}");
        assert_eq!(start.elapsed().as_secs(), 10);
        let vif = ferrule_vif::from_annotation(r#"{"interfaces":[{"addresses":["10.0.0.7"]}]}"#).unwrap();
        let error = fixture.decider.until_active(&within(15), &vif).await.unwrap_err();
        assert!(matches!(error, DecideError::TimedOut { .. }), "{error}");
        assert_eq!(start.elapsed().as_secs(), 15);
    }

    #[test]
    fn a_vif_is_active_if_all_its_interfaces_are() {
        let two = r#"{"interfaces":[{"addresses":["10.0.0.7"]},{"name":"eth1","addresses":["10.0.0.8"]}]}"#;
        let mut vif = ferrule_vif::from_annotation(two).unwrap();
        assert!(is_active(&vif));
        vif.interfaces[1].active = false;
        assert!(!is_active(&vif));
    }

    #[tokio::test(start_paused = true)]
    async fn explicit_ranges_replace_those_of_the_node() {
        let mut fixture = fixture(VifSource::Annotation, true);
        let vif = r#"{"interfaces":[{"addresses":["10.0.0.9"]}]}"#;
        fixture.pods.apply_pod(annotated("vif.ferrule.dev/v1", vif));
        let decider = Arc::get_mut(&mut fixture.decider).unwrap();
        decider.vif_cidrs = vec!["10.0.0.0/24".parse().unwrap()];
        assert!(matches!(decide(&fixture.decider).await, Ok(Decision::Fixed(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gone_pod_is_not_waited_for() {
        let fixture = fixture(VifSource::Auto, true);
        let json = r#"{"metadata":{"namespace":"n","name":"web","uid":"u1"},"status":{"phase":"Failed"}}"#;
        fixture.pods.apply_pod(Change::applied(serde_json::from_str(json).unwrap()));
        let error = timeout(Duration::from_millis(10), decide(&fixture.decider)).await.unwrap();
        assert!(matches!(error, Err(DecideError::PodGone(_))));
    }
}
