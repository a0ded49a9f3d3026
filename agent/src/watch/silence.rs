//! Distinguishes a quiet cluster from a watch that does not deliver changes. Pure.
//!
//! Silent streams are common in both cases. A proxy may hold responses back or may have lost its upstream.
//! But a real API server, too, sends a bookmark only after something of the resource has changed, or after
//! etcd has reported progress, which it does every ten minutes unless asked (`cacheWatcher.process` and
//! `Cacher.dispatchEvents` in Kubernetes). A list tells the two apart: the stream should have delivered
//! everything in the list that is newer than the position.

use std::time::Duration;

use tokio::time::Instant;

/// The evidence about silent streams.
#[derive(Debug)]
pub(super) struct Silence {
    /// Whether the current stream has delivered an event or a bookmark.
    had_events: bool,
    /// Consecutive streams without any event.
    silent_streams: u32,
    cause: Cause,
    /// The earliest time of the next comparison with a list; `None` for now.
    compare_at: Option<Instant>,
    read_timeout: Duration,
    max_backoff: Duration,
}

/// Why streams are silent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// They are not.
    #[default]
    None,
    Unknown,
    /// Nothing has changed: a list has proven it.
    Quiet,
    /// A list has shown changes that no stream had delivered.
    Deaf,
}

/// The end of a stream without any event.
#[derive(Debug, Clone, Copy)]
pub(super) struct SilentEnd {
    pub lasted: Duration,
    /// Whether the stream lasted as long as the request had asked for.
    pub as_requested: bool,
    /// Whether the stream was still open when the read timeout passed.
    pub is_idle: bool,
}

/// A complete list, compared with the inventory before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comparison {
    /// Positions; `None` for one that is not a number.
    pub ours: Option<u64>,
    pub server: Option<u64>,
    /// The newest version of an object in the list.
    pub newest: Option<u64>,
    /// Known objects that the list lacks.
    pub lost: usize,
}

/// The result of a [`Comparison`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The server has another history than the positions of the watch, for instance restored from a backup.
    /// It delivers nothing to a watch from its future, for hours: no event, no bookmark, no error.
    OtherHistory,
    MissedChanges,
    /// `is_healthy` unless the stream was so short that it may hide a failure.
    NoChanges {
        is_healthy: bool,
    },
}

/// What follows a silent stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Resume,
    /// The end of the stream counts as a failure.
    Fail,
    /// The watch is unhealthy, however its streams end.
    Deaf,
}

/// After a stream that lasted this long, or the read timeout if that is shorter, a known-quiet watch resumes
/// at once.
const UNHURRIED: Duration = Duration::from_secs(30);
/// After this long, the first silent stream resumes at once (client-go's "very short watch").
const SHORT: Duration = Duration::from_secs(1);
/// A stream that was open this long without a refusal counts as healthy.
const SETTLED: Duration = Duration::from_secs(5);

// === impl Silence ===

impl Silence {
    pub(super) fn new(read_timeout: Duration, max_backoff: Duration) -> Self {
        Self {
            had_events: false,
            silent_streams: 0,
            cause: Cause::None,
            compare_at: None,
            read_timeout,
            max_backoff,
        }
    }

    pub(super) fn stream_opened(&mut self) {
        self.had_events = false;
    }

    /// Whether the current stream has delivered an event or a bookmark.
    pub(super) fn had_events(&self) -> bool {
        self.had_events
    }

    /// Notes an event. Returns whether it ends a silence that was healthy, and has to be reported
    /// differently.
    pub(super) fn event(&mut self) -> bool {
        (self.had_events, self.silent_streams) = (true, 0);
        std::mem::take(&mut self.cause) == Cause::Quiet
    }

    /// Whether a stream without an event that has been open for a while proves a healthy watch. Silence is no
    /// failure, unless the streams before it were silent as well and the cause is unknown.
    pub(super) fn is_healthy_after(&self, open: Duration) -> bool {
        match self.cause {
            Cause::None => open >= SETTLED,
            Cause::Quiet => open >= self.unhurried(),
            Cause::Unknown | Cause::Deaf => false,
        }
    }

    /// Whether a complete list proves a healthy watch. It does not if streams are silent.
    pub(super) fn is_healthy_after_list(&self) -> bool {
        self.cause == Cause::None
    }

    /// Notes a silent stream. Returns whether a list should be compared now: not after the first one, nor too
    /// often.
    pub(super) fn stream_was_silent(&mut self, end: &SilentEnd, now: Instant) -> bool {
        self.silent_streams = self.silent_streams.saturating_add(1);
        if self.cause == Cause::None && !end.as_requested {
            self.cause = Cause::Unknown;
        }
        self.silent_streams > 1 && self.compare_at.is_none_or(|at| at <= now)
    }

    pub(super) fn compare(&mut self, list: &Comparison, lasted: Duration, now: Instant) -> Finding {
        self.compare_at = Some(now + 2 * self.read_timeout);
        if list.server < list.ours {
            (self.had_events, self.silent_streams, self.cause) = (false, 0, Cause::None);
            return Finding::OtherHistory;
        }
        if list.lost > 0 || list.newest > list.ours {
            self.cause = Cause::Deaf;
            return Finding::MissedChanges;
        }
        // A deaf watch stays deaf until a stream delivers something.
        if self.cause == Cause::Deaf {
            return Finding::NoChanges { is_healthy: false };
        }
        self.cause = Cause::Quiet;
        Finding::NoChanges { is_healthy: lasted >= self.unhurried() }
    }

    /// Notes that the list for a comparison failed. Earlier evidence of a quiet cluster expires.
    pub(super) fn comparison_failed(&mut self, now: Instant) {
        self.compare_at = Some(now + self.max_backoff);
        if self.cause == Cause::Quiet {
            self.cause = Cause::Unknown;
        }
    }

    /// What follows, after the comparison if there was one.
    pub(super) fn verdict(&self, end: &SilentEnd) -> Verdict {
        let is_first = self.silent_streams == 1;
        match self.cause {
            Cause::Deaf => Verdict::Deaf,
            _ if end.as_requested => Verdict::Resume,
            Cause::Quiet if end.lasted < self.unhurried() => Verdict::Fail,
            Cause::Unknown if !is_first || end.is_idle || end.lasted < SHORT => Verdict::Fail,
            Cause::None | Cause::Unknown | Cause::Quiet => Verdict::Resume,
        }
    }

    fn unhurried(&self) -> Duration {
        UNHURRIED.min(self.read_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_TIMEOUT: Duration = Duration::from_secs(90);
    const SAME: Comparison = Comparison { ours: Some(10), server: Some(50), newest: Some(5), lost: 0 };

    fn silence() -> Silence {
        Silence::new(READ_TIMEOUT, Duration::from_secs(30))
    }

    fn idle() -> SilentEnd {
        SilentEnd { lasted: READ_TIMEOUT, as_requested: false, is_idle: true }
    }

    fn ended(seconds: u64) -> SilentEnd {
        SilentEnd { lasted: Duration::from_secs(seconds), as_requested: false, is_idle: false }
    }

    #[test]
    fn the_second_silent_stream_is_compared_with_a_list_and_later_ones_now_and_then() {
        let (mut silence, now) = (silence(), Instant::now());
        assert!(!silence.stream_was_silent(&idle(), now));
        assert!(silence.stream_was_silent(&idle(), now));
        silence.compare(&SAME, READ_TIMEOUT, now);
        assert!(!silence.stream_was_silent(&idle(), now + READ_TIMEOUT));
        assert!(silence.stream_was_silent(&idle(), now + 2 * READ_TIMEOUT));
        silence.comparison_failed(now);
        assert!(silence.stream_was_silent(&idle(), now + Duration::from_secs(30)));
    }

    #[test]
    fn a_quiet_cluster_is_healthy_and_resumes_unless_its_streams_are_short() {
        let (mut silence, now) = (silence(), Instant::now());
        silence.stream_was_silent(&idle(), now);
        assert_eq!(silence.verdict(&idle()), Verdict::Fail, "the cause is unknown");
        assert!(!silence.is_healthy_after(READ_TIMEOUT) && !silence.is_healthy_after_list());
        silence.stream_was_silent(&idle(), now);
        let finding = silence.compare(&SAME, READ_TIMEOUT, now);
        assert_eq!(finding, Finding::NoChanges { is_healthy: true });
        assert_eq!(silence.verdict(&idle()), Verdict::Resume);
        assert!(silence.is_healthy_after(UNHURRIED) && !silence.is_healthy_after(SETTLED));
        let finding = silence.compare(&SAME, SHORT, now);
        assert_eq!(
            (finding, silence.verdict(&ended(2))),
            (Finding::NoChanges { is_healthy: false }, Verdict::Fail)
        );
        assert!(silence.event(), "the end of the silence is reported");
        assert!(!silence.event() && silence.is_healthy_after(SETTLED));
    }

    #[test]
    fn missed_changes_make_a_watch_deaf_until_a_stream_delivers_an_event() {
        for missed in [Comparison { newest: Some(11), ..SAME }, Comparison { lost: 1, ..SAME }] {
            let (mut silence, now) = (silence(), Instant::now());
            silence.stream_was_silent(&idle(), now);
            assert_eq!(silence.compare(&missed, READ_TIMEOUT, now), Finding::MissedChanges);
            let finding = silence.compare(&SAME, READ_TIMEOUT, now);
            assert_eq!(finding, Finding::NoChanges { is_healthy: false });
            let as_requested = SilentEnd { as_requested: true, ..ended(300) };
            assert_eq!(silence.verdict(&as_requested), Verdict::Deaf);
            assert!(!silence.event() && silence.is_healthy_after(SETTLED));
        }
    }

    #[test]
    fn a_server_behind_the_position_has_another_history() {
        let (mut silence, now) = (silence(), Instant::now());
        silence.stream_was_silent(&idle(), now);
        let restored = Comparison { ours: Some(1200), server: Some(40), newest: None, lost: 2 };
        assert_eq!(silence.compare(&restored, READ_TIMEOUT, now), Finding::OtherHistory);
        assert!(silence.is_healthy_after_list());
    }

    #[test]
    fn a_stream_that_ends_as_requested_is_no_silence() {
        let (mut silence, end) = (silence(), SilentEnd { as_requested: true, ..ended(300) });
        silence.stream_was_silent(&end, Instant::now());
        assert_eq!(silence.verdict(&end), Verdict::Resume);
        assert!(silence.is_healthy_after_list());
    }

    #[test]
    fn the_first_silent_stream_resumes_unless_it_ended_at_once() {
        for (seconds, verdict) in [(0, Verdict::Fail), (2, Verdict::Resume)] {
            let (mut silence, end) = (silence(), ended(seconds));
            silence.stream_was_silent(&end, Instant::now());
            assert_eq!(silence.verdict(&end), verdict);
        }
    }

    #[test]
    fn a_failed_list_ends_the_evidence_of_a_quiet_cluster() {
        let (mut silence, now) = (silence(), Instant::now());
        silence.stream_was_silent(&idle(), now);
        silence.compare(&SAME, READ_TIMEOUT, now);
        silence.comparison_failed(now);
        assert_eq!(silence.verdict(&idle()), Verdict::Fail);
    }
}
