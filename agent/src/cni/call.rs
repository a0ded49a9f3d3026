//! Metrics, trace and log of one call: its duration by phase, and its failure.

use std::sync::Arc;

use ferrule_proto::{
    cni::{Error, error::Code},
    names::NetworkName,
};
use tonic::metadata::MetadataMap;

use super::error::CallError;
use crate::{
    attach::{Journal, Phases, Spell, Timeline},
    cluster::PodRef,
    metrics::CniMetrics,
    registry::Key,
    trace::{Attribute, CallSpan, Context, Part, Tracer, Value},
};

/// Where calls are reported.
#[derive(Debug, Clone)]
pub struct Calls {
    pub metrics: CniMetrics,
    pub tracer: Tracer,
    pub journal: Arc<Journal>,
}

/// A call in flight. Dropped before [`Call::end`], the call counts as abandoned by its caller.
#[derive(Debug)]
pub(super) struct Call<'a> {
    calls: &'a Calls,
    verb: &'static str,
    phases: Phases,
    /// For the log.
    key: Option<Key>,
    pod: Option<PodRef>,
    /// `None` unless the call is part of an exported trace.
    traced: Option<(Context, Vec<Attribute>)>,
    /// The number of an ADD in the journal.
    noted: Option<u64>,
}

// === impl Calls ===

impl Calls {
    /// Begins a call; its metadata carry the trace context.
    pub(super) fn begin(&self, verb: &'static str, metadata: &MetadataMap) -> Call<'_> {
        let traced = self.tracer.context(metadata).map(|context| (context, Vec::new()));
        let phases = Phases::begin(traced.is_some());
        Call { calls: self, verb, phases, key: None, pod: None, traced, noted: None }
    }
}

// === impl Call ===

impl Call<'_> {
    pub(super) fn phases(&self) -> &Phases {
        &self.phases
    }

    pub(super) fn set_network(&mut self, network: &NetworkName) {
        self.add_attributes(|| vec![("cni.network", Value::from(network.as_str()))]);
    }

    pub(super) fn set_key(&mut self, key: &Key) {
        self.key = Some(key.clone());
        self.set_network(&key.network);
        self.add_attributes(|| {
            vec![
                ("container.id", Value::from(key.container_id.as_str())),
                ("cni.ifname", Value::from(key.ifname.as_str())),
            ]
        });
    }

    pub(super) fn set_pod(&mut self, pod: &PodRef) {
        self.pod = Some(pod.clone());
        let fields =
            [("k8s.namespace.name", &pod.namespace), ("k8s.pod.name", &pod.name), ("k8s.pod.uid", &pod.uid)];
        let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
        self.add_attributes(|| fields.map(|(name, value)| (name, Value::from(value.as_str()))).collect());
    }

    /// Notes an ADD in the journal.
    pub(super) fn note(&mut self, key: &Key, pod: &PodRef) {
        self.noted = Some(self.calls.journal.begin(key.clone(), pod.clone(), self.phases.clone()));
    }

    /// Logs a failure, and turns it into the answer. `what`: the call, as error messages name it.
    pub(super) fn failed(&self, error: CallError, what: &str) -> Error {
        let error = error.into_proto(what);
        let key = self.key.as_ref().map(ToString::to_string);
        let pod = self.pod.as_ref().map(ToString::to_string);
        let trace = self.traced.as_ref().map(|(context, _)| context.trace_hex());
        tracing::warn!(
            code = error.code,
            key,
            pod,
            trace,
            error = error.message,
            call = what,
            "a CNI call failed"
        );
        error
    }

    /// Reports the call as answered.
    pub(super) fn end(mut self, error: Option<&Error>) {
        self.finish(error.map(|error| (error.code, error.message.as_str())));
    }

    fn add_attributes(&mut self, attributes: impl FnOnce() -> Vec<Attribute>) {
        if let Some((_, all)) = &mut self.traced {
            all.extend(attributes());
        }
    }

    /// Reports once: [`Self::end`] consumes the phase clock, and a later drop finds it stopped.
    fn finish(&mut self, error: Option<(i32, &str)>) {
        let Some(timeline) = self.phases.end() else { return };
        let code = error.map_or(0, |(code, _)| code);
        let trace = self.traced.as_ref().map(|(context, _)| context.trace_hex());
        for (phase, spent) in timeline.spent() {
            self.calls.metrics.observe(self.verb, phase.as_str(), code, spent, trace.clone());
        }
        self.calls.metrics.observe(self.verb, "total", code, timeline.total, trace);
        if let Some(number) = self.noted.take() {
            self.calls.journal.end(number, &timeline, error);
        }
        let Some((context, mut attributes)) = self.traced.take() else { return };
        attributes.extend(error.map(|(code, _)| ("cni.code", Value::Number(code.into()))));
        let Timeline { began, total, spells, .. } = timeline;
        let part = |Spell { phase, from, to }| Part { name: phase.as_str(), from, to };
        self.calls.tracer.tell(CallSpan {
            context,
            name: format!("CNI {}", self.verb),
            began,
            took: total,
            attributes,
            error: error.map(|(_, message)| message.to_owned()),
            parts: spells.into_iter().map(part).collect(),
        });
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // The code with which the shim itself answers when its deadline passes.
        self.finish(Some((Code::TryAgainLater.into(), "the caller disconnected before the answer")));
    }
}
