//! The metrics of one watch. Each exists from the start, and is looked up once: events come by the thousand.

use std::time::SystemTime;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

use crate::metrics::{EventLabels, FailureLabels, SourceLabels, WatchMetrics, count, now, seconds};

pub(super) struct Counters {
    source: &'static str,
    metrics: WatchMetrics,
    pub applied: Counter,
    pub deleted: Counter,
    pub bookmarks: Counter,
    pub undecodable: Counter,
    pub lists: Counter,
    pub resumes: Counter,
    bytes: Counter,
    buffered: Gauge,
    objects: Gauge,
    unsaved: Gauge,
}

// === impl Counters ===

impl Counters {
    pub(super) fn new(source: &'static str, metrics: WatchMetrics) -> Self {
        let labels = SourceLabels { source };
        let event = |kind| metrics.events.get_or_create_owned(&EventLabels { source, kind });
        // A watch that never becomes current grows old from its start.
        metrics.current.get_or_create(&labels).set(now());
        Self {
            source,
            applied: event("applied"),
            deleted: event("deleted"),
            bookmarks: event("bookmark"),
            undecodable: metrics.undecodable.get_or_create_owned(&labels),
            lists: metrics.lists.get_or_create_owned(&labels),
            resumes: metrics.resumes.get_or_create_owned(&labels),
            bytes: metrics.bytes.get_or_create_owned(&labels),
            buffered: metrics.buffered.get_or_create_owned(&labels),
            objects: metrics.objects.get_or_create_owned(&labels),
            unsaved: metrics.unsaved.get_or_create_owned(&labels),
            metrics,
        }
    }

    pub(super) fn failure(&self, reason: &'static str) {
        self.metrics.failures.get_or_create(&FailureLabels { source: self.source, reason }).inc();
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes.inc_by(bytes as u64);
    }

    pub(super) fn set_buffered(&self, bytes: usize) {
        self.buffered.set(count(bytes));
    }

    pub(super) fn set_objects(&self, objects: usize) {
        self.objects.set(count(objects));
    }

    /// The inventory is as the server has it now.
    pub(super) fn set_current(&self) {
        self.set_current_at(now());
    }

    /// The inventory is that of a checkpoint. One from the future was written before the clock was set back.
    pub(super) fn set_restored(&self, written: SystemTime) {
        self.set_current_at(seconds(written).min(now()));
    }

    /// The cluster does not have the resource: the inventory gets no older.
    pub(super) fn absent(&self) {
        self.metrics.current.remove(&SourceLabels { source: self.source });
    }

    /// The watch has ended: the inventory gets no older.
    pub(super) fn ended(&self) {
        self.set_objects(0);
        self.absent();
    }

    fn set_current_at(&self, seconds: f64) {
        self.metrics.current.get_or_create(&SourceLabels { source: self.source }).set(seconds);
    }

    pub(super) fn set_unsaved(&self, changes: usize) {
        self.unsaved.set(count(changes));
    }
}
