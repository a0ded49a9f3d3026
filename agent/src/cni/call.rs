//! What is told of a call when it is over: how long it took, and where the time went.

use ferrule_proto::{
    cni::{Error, error::Code},
    names::NetworkName,
};
use tonic::metadata::MetadataMap;

use crate::attach::{Phases, Spell, Timeline};
use crate::{
    cluster::PodRef,
    metrics::CniMetrics,
    registry::Key,
    trace::{Attribute, CallSpan, Context, Part, Tracer, Value},
};

/// Who is told.
#[derive(Debug, Clone)]
pub struct Calls {
    pub metrics: CniMetrics,
    pub tracer: Tracer,
}

/// A call in work. When it is dropped, its caller has gone.
#[derive(Debug)]
pub(super) struct Call<'a> {
    calls: &'a Calls,
    verb: &'static str,
    phases: Phases,
    /// `None` if it is not part of a trace that is told.
    traced: Option<(Context, Vec<Attribute>)>,
}

// === impl Calls ===

impl Calls {
    /// A call begins; its metadata tell of which trace it is a part.
    pub(super) fn begin(&self, verb: &'static str, metadata: &MetadataMap) -> Call<'_> {
        let traced = self.tracer.context(metadata).map(|context| (context, Vec::new()));
        Call { calls: self, verb, phases: Phases::begin(traced.is_some()), traced }
    }
}

// === impl Call ===

impl Call<'_> {
    pub(super) fn phases(&self) -> &Phases {
        &self.phases
    }

    /// Which network it is about.
    pub(super) fn about_network(&mut self, network: &NetworkName) {
        self.note(|| vec![("cni.network", Value::from(network.as_str()))]);
    }

    /// Which attachment it is about.
    pub(super) fn about(&mut self, key: &Key) {
        self.about_network(&key.network);
        self.note(|| {
            vec![
                ("container.id", Value::from(key.container_id.as_str())),
                ("cni.ifname", Value::from(key.ifname.as_str())),
            ]
        });
    }

    /// Whose it is, as far as that is known.
    pub(super) fn of_pod(&mut self, pod: &PodRef) {
        let known =
            [("k8s.namespace.name", &pod.namespace), ("k8s.pod.name", &pod.name), ("k8s.pod.uid", &pod.uid)];
        let known = known.into_iter().filter(|(_, value)| !value.is_empty());
        self.note(|| known.map(|(name, value)| (name, Value::from(value.as_str()))).collect());
    }

    /// Whether it is worth finding out more about it.
    pub(super) fn is_traced(&self) -> bool {
        self.traced.is_some()
    }

    /// It has been answered.
    pub(super) fn end(mut self, error: Option<&Error>) {
        self.finish(error.map(|error| (error.code, error.message.as_str())));
    }

    fn note(&mut self, attributes: impl FnOnce() -> Vec<Attribute>) {
        if let Some((_, noted)) = &mut self.traced {
            noted.extend(attributes());
        }
    }

    /// The first time only: [`Self::end`] ends it, and so does dropping it.
    fn finish(&mut self, error: Option<(i32, &str)>) {
        let Some(timeline) = self.phases.end() else { return };
        let code = error.map_or(0, |(code, _)| code);
        for (phase, spent) in timeline.spent() {
            self.calls.metrics.observe(self.verb, phase.as_str(), code, spent);
        }
        self.calls.metrics.observe(self.verb, "total", code, timeline.total);
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
        // The shim's own deadline gives this code, too.
        self.finish(Some((Code::TryAgainLater.into(), "the caller has gone")));
    }
}
