//! Decides which VIF a pod gets: from the runtime's call, from the watched API objects, or from the agent's
//! own IPAM.
//!
//! [`source`] has the precedence of the sources, [`admit`] the rules that a VIF must satisfy on this node. A
//! decision never queries the API server: an ADD waits until the watch delivers the missing object, and the
//! watch wakes the ADD.

mod admit;
mod late;
mod source;

use std::{sync::Arc, time::Duration};

use ferrule_vif::{VifError, VifRequest};
use ipnet::IpNet;
use tokio::time::{Instant, timeout_at};

pub use admit::{Refused, Rules};
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

    /// Waits for the decision about a pod's VIF.
    ///
    /// # Errors
    /// See [`DecideError`].
    pub(crate) async fn decide(&self, request: &Request<'_>) -> Result<Decision, DecideError> {
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
