//! Percentiles of samples.

use std::time::Duration;

/// Samples of one measurement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(Vec<Duration>);

// === impl Series ===

impl Series {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn extend(&mut self, samples: impl IntoIterator<Item = Duration>) {
        self.0.extend(samples);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest sample that at least `percent` of all samples do not exceed (nearest rank), in
    /// milliseconds.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
    }

    pub(crate) fn p50(&self) -> f64 {
        self.percentile(50)
    }
}
