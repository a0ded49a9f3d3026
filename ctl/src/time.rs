//! Times and durations for people.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The time of milliseconds since the Unix epoch, in UTC.
pub(crate) fn clock(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| "?".to_owned(), |time| format!("{time:.3}"))
}

/// Age and time: `3m12s ago (2026-01-02T03:04:05Z)`.
pub(crate) fn since(since_ms: u64, now: u64) -> String {
    let seconds = since_ms / 1000;
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = time.map_or_else(|| "?".to_owned(), |time| time.to_string());
    format!("{} ago ({time})", duration(now.saturating_sub(seconds)))
}

/// A duration in its two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => format!("{}m{}s", seconds / MINUTE, seconds % MINUTE),
        HOUR..DAY => format!("{}h{}m", seconds / HOUR, seconds % HOUR / MINUTE),
        _ => format!("{}d{}h", seconds / DAY, seconds % DAY / HOUR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-02T03:04:05Z.
    const TIME: u64 = 1_767_323_045;

    #[test]
    fn durations_show_their_two_largest_units() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (192, "3m12s"), (3 * HOUR + 61, "3h1m"), (50 * HOUR + 1, "2d2h")]
        {
            assert_eq!(duration(seconds), text);
        }
        assert!(since(u64::MAX, TIME).starts_with("0s ago ("), "the clock may have been set back");
    }
}
