//! Decides which VIF a pod gets: from the runtime's call, from the watched API objects, or from the agent's own IPAM.
//!
//! A decision never asks the API server: an ADD waits for the watch to deliver the missing object, and the watch
//! wakes the ADD.

mod admit;

use std::{collections::BTreeMap, time::Duration};

use ferrule_vif::{InterfaceRequest, VifError, VifRequest, kuryr};
use ipnet::IpNet;
use tokio::time::{Instant, timeout_at};

use crate::{
    events::{Events, Reason},
    registry::{Known, Pod, Registry},
    watch::Annotations,
};

pub use admit::{Refused, Rules};

/// Who decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VifSource {
    /// The annotation, where there is one; else the agent's own IPAM.
    #[default]
    Auto,
    /// The annotation `vif.ferrule.dev/v1`, which is waited for.
    Annotation,
    /// Kuryr: a KuryrPort, or its annotation on the pod.
    Kuryr,
    /// The agent's own IPAM, over the node's pod CIDRs.
    Ipam,
}

/// By what rules it is decided.
#[derive(Debug, Clone)]
pub struct Decider {
    pub source: VifSource,
    /// How long an ADD waits for a decision and for it to become active, together: its caller has one deadline.
    pub timeout: Duration,
    /// Where decided addresses may be from; empty for the node's pod CIDRs.
    pub vif_cidrs: Vec<IpNet>,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The next addresses that are free.
    Ipam,
    This(VifRequest),
}

/// The pod that a decision is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub pod: &'a Pod,
    /// The pod's annotations, if the runtime passes them.
    pub annotations: Option<&'a Annotations>,
}

/// No decision, or not the one that was acted on.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error("the pod {0} is gone: deleted, terminated, or scheduled to another node")]
    PodGone(Pod),
    /// The API server delivered no decision within the deadline.
    #[error("no {missing} within {} s", waited.as_secs())]
    TimedOut { missing: &'static str, waited: Duration },
    /// The annotation or the KuryrPort cannot be decoded.
    #[error("cannot decode the pod's VIF: {0}")]
    Vif(#[from] VifError),
    /// The source replaced the VIF after the ADD had plugged it.
    #[error("the pod's VIF changed before it became active")]
    Changed,
}

/// Where things stand with a pod.
enum Standing {
    Decided(Decision),
    /// Not yet: what is missing.
    Missing(&'static str),
}

/// How long to wait before those who look at the pod are told: most decisions come at once.
const QUIET: Duration = Duration::from_secs(2);

// === impl Decider ===

impl Decider {
    /// Waits until it is decided what a pod gets.
    ///
    /// # Errors
    /// If the pod is gone, what was decided is not understood, or nothing was decided in time.
    pub(crate) async fn decide(
        &self,
        registry: &Registry,
        events: &Events,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<Decision, DecideError> {
        let start = Instant::now();
        let mut told = false;
        let mut changes = registry.pods.subscribe(request.pod);
        let mut ranges = registry.ranges();
        loop {
            let has_ranges = !ranges.borrow_and_update().is_empty();
            let missing = match self.stand(registry, request, has_ranges)? {
                Standing::Decided(decision) => return Ok(decision),
                Standing::Missing(missing) => missing,
            };
            let wake = if told { deadline } else { deadline.min(start + QUIET) };
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
                told = true;
                events.tell(request.pod, Reason::WaitingForVif, format!("waiting for {missing}"));
                continue;
            }
            let waited = self.timeout;
            let reason = match self.source {
                VifSource::Kuryr => Reason::TimedOutWaitingForKuryrPort,
                _ => Reason::TimedOutWaitingForVif,
            };
            events.tell(request.pod, reason, format!("there was no {missing} within {} s", waited.as_secs()));
            return Err(DecideError::TimedOut { missing, waited });
        }
    }

    /// Waits until all of a decision is active.
    ///
    /// # Errors
    /// If the pod goes, the decision changes, or nothing happens in time.
    pub(crate) async fn until_active(
        &self,
        registry: &Registry,
        events: &Events,
        request: &Request<'_>,
        decided: &VifRequest,
        deadline: Instant,
    ) -> Result<(), DecideError> {
        events.tell(
            request.pod,
            Reason::WaitingForActiveVifs,
            "the interface is plugged, and its VIF is not active yet",
        );
        let mut changes = registry.pods.subscribe(request.pod);
        // What came with the call is how it was then.
        let request = Request { annotations: None, ..*request };
        loop {
            if let Standing::Decided(Decision::This(now)) = self.stand(registry, &request, true)? {
                if !is_same(&now, decided) {
                    return Err(DecideError::Changed);
                }
                if is_active(&now) {
                    return Ok(());
                }
            }
            if timeout_at(deadline, changes.changed()).await.is_err() {
                let waited = self.timeout;
                let note = format!("the VIF did not become active within {} s", waited.as_secs());
                events.tell(request.pod, Reason::TimedOutWaitingForActiveVifs, note);
                return Err(DecideError::TimedOut { missing: "active VIF", waited });
            }
        }
    }

    fn stand(
        &self,
        registry: &Registry,
        request: &Request<'_>,
        has_ranges: bool,
    ) -> Result<Standing, DecideError> {
        let known = if request.pod.is_of_kubernetes() { registry.pods.get(request.pod) } else { Known::Not };
        if let Known::Gone = known {
            return Err(DecideError::PodGone(request.pod.clone()));
        }
        // The call is from now, while the watch may be behind; and a watch knows more when the call knows nothing.
        let from_call = request.annotations;
        let from_watch = if let Known::Here(annotations) = &known { Some(annotations) } else { None };
        let ipam = || {
            let pod_cidrs = "pod CIDR in the node's spec.podCIDRs";
            if has_ranges { Standing::Decided(Decision::Ipam) } else { Standing::Missing(pod_cidrs) }
        };
        // What is decided is held against ranges, and so has to wait for them too.
        let may_check = has_ranges || !self.vif_cidrs.is_empty();
        let decided = |decision: Decision| {
            let ranges = "range to hold the pod's VIF against: the node's spec.podCIDRs, or --vif-cidr";
            if may_check { Standing::Decided(decision) } else { Standing::Missing(ranges) }
        };
        let ours =
            || annotation(from_call, from_watch, |it| it.ferrule.as_deref(), ferrule_vif::from_annotation);
        let missing = Standing::Missing("annotation vif.ferrule.dev/v1 on the pod");
        match self.source {
            VifSource::Ipam => Ok(ipam()),
            VifSource::Annotation => Ok(ours()?.map_or(missing, decided)),
            VifSource::Auto => match ours()? {
                Some(decision) => Ok(decided(decision)),
                None if from_call.is_some() || from_watch.is_some() || !request.pod.is_of_kubernetes() => {
                    Ok(ipam())
                }
                None => Ok(Standing::Missing("pod of this name and UID at the API server")),
            },
            VifSource::Kuryr => kuryr(registry, request.pod, from_call, from_watch, decided),
        }
    }
}

/// Whether all interfaces are active.
pub(crate) fn is_active(vif: &VifRequest) -> bool {
    vif.interfaces.iter().all(|interface| interface.active)
}

/// Whether it is the same but for what becomes of it by and by: its being active.
fn is_same(now: &VifRequest, before: &VifRequest) -> bool {
    let active = |vif: &VifRequest| -> Vec<_> {
        let interfaces = vif.interfaces.iter().cloned();
        interfaces.map(|it| InterfaceRequest { active: true, details: BTreeMap::new(), ..it }).collect()
    };
    active(now) == active(before)
}

fn kuryr(
    registry: &Registry,
    pod: &Pod,
    from_call: Option<&Annotations>,
    from_watch: Option<&Annotations>,
    decided: impl FnOnce(Decision) -> Standing,
) -> Result<Standing, DecideError> {
    if let Some(port) = registry.pods.kuryr(pod, from_call.is_some_and(Annotations::is_static)) {
        let vif = kuryr::from_vifs(port.spec_vifs.as_deref(), port.status_vifs.as_deref())?;
        let missing = Standing::Missing("VIF in the pod's KuryrPort");
        // A KuryrPort is not the pods' to write, and needs no ranges.
        return Ok(vif.map_or(missing, |vif| Standing::Decided(Decision::This(vif))));
    }
    // Kuryr rewrites its annotation: what the watch has is newer, if it has it.
    let vif = annotation(from_watch, from_call, |it| it.kuryr.as_deref(), kuryr::from_annotation)?;
    let missing = Standing::Missing("KuryrPort of the pod, nor an annotation of Kuryr's on it");
    Ok(vif.map_or(missing, decided))
}

fn annotation(
    first: Option<&Annotations>,
    second: Option<&Annotations>,
    text: impl Fn(&Annotations) -> Option<&str>,
    decode: impl Fn(&str) -> Result<VifRequest, VifError>,
) -> Result<Option<Decision>, DecideError> {
    let text = first.and_then(&text).or_else(|| second.and_then(&text));
    Ok(text.map(decode).transpose()?.map(Decision::This))
}
