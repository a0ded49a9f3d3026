//! Conversions to the values of gauges.

use std::{
    sync::atomic::AtomicU64,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::metrics::gauge::Gauge;

/// A time in seconds since the Unix epoch.
pub type Time = Gauge<f64, AtomicU64>;

/// Converts a number of things to the type of a gauge.
pub fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Now, in seconds since the Unix epoch.
pub fn now() -> f64 {
    seconds(SystemTime::now())
}

/// A time in seconds since the Unix epoch.
pub fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
