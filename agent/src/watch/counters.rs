//! The metrics of one watch.

use crate::metrics::{EventLabels, FailureLabels, SourceLabels, WatchMetrics, count};

pub(super) struct Counters {
    source: &'static str,
    metrics: WatchMetrics,
}

// === impl Counters ===

impl Counters {
    pub(super) fn new(source: &'static str, metrics: WatchMetrics) -> Self {
        Self { source, metrics }
    }

    pub(super) fn event(&self, kind: &'static str) {
        self.metrics.events.get_or_create(&EventLabels { source: self.source, kind }).inc();
    }

    pub(super) fn failure(&self, reason: &'static str) {
        self.metrics.failures.get_or_create(&FailureLabels { source: self.source, reason }).inc();
    }

    pub(super) fn undecodable(&self) {
        self.metrics.undecodable.get_or_create(&self.labels()).inc();
    }

    pub(super) fn list(&self) {
        self.metrics.lists.get_or_create(&self.labels()).inc();
    }

    pub(super) fn resume(&self) {
        self.metrics.resumes.get_or_create(&self.labels()).inc();
    }

    pub(super) fn received(&self, bytes: usize) {
        self.metrics.bytes.get_or_create(&self.labels()).inc_by(bytes as u64);
    }

    pub(super) fn set_buffered(&self, bytes: usize) {
        self.metrics.buffered.get_or_create(&self.labels()).set(count(bytes));
    }

    pub(super) fn set_objects(&self, objects: usize) {
        self.metrics.objects.get_or_create(&self.labels()).set(count(objects));
    }

    pub(super) fn set_unsaved(&self, changes: usize) {
        self.metrics.unsaved.get_or_create(&self.labels()).set(count(changes));
    }

    fn labels(&self) -> SourceLabels {
        SourceLabels { source: self.source }
    }
}
