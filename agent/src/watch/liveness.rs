//! Whether the watch delivers changes, and when a list has to stand in for it. Pure.
//!
//! One rule: if the watch fails or is silent for a while, a list follows, and further ones at a bounded rate,
//! until a stream delivers an event or a bookmark. Whatever is wrong with the watch (`watch` is forbidden,
//! each stream ends with an error, a proxy holds streams back), lists keep the known objects current.
//!
//! A list also tells a quiet cluster from a watch that does not deliver. Streams without events are common in
//! both cases: a real API server, too, sends a bookmark only after something of the resource has changed, or
//! after etcd has reported progress, which it does every ten minutes unless asked (`cacheWatcher.process` and
//! `Cacher.dispatchEvents` in Kubernetes). But a stream that works has delivered everything in the list that
//! is newer than the position.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::{Backoff, Policy};

#[derive(Debug)]
pub(super) struct Liveness {
    state: State,
    /// Whether the current stream has delivered an event or a bookmark.
    had_events: bool,
    /// How long the last silent stream lasted.
    silence: Duration,
    /// When the next list is due; `None` while the watch delivers.
    list_at: Option<Instant>,
    lists: Backoff,
    /// Whether a list has completed since the watch ceased to deliver.
    is_listed: bool,
    /// Whether a list has failed since the last stream.
    has_failed_list: bool,
    read_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Delivers,
    /// Requests or streams end with errors.
    Failing,
    /// Streams are silent, for an unknown reason.
    Silent,
    /// Streams are silent because nothing has changed: a list has proven it.
    Quiet,
    /// A list has shown changes that no silent stream had delivered.
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
    /// The watch has not delivered changes, now or since an earlier list.
    Deaf,
    Quiet,
    /// The list proves nothing about the watch.
    Open,
}

/// What follows a silent stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The next stream or list follows at once.
    Resume,
    /// The end of the stream counts as a failure.
    Fail,
    /// The watch is unhealthy, however its streams end.
    Deaf,
}

/// The wait before a list stands in for a watch that fails: 10 s, doubled at random, then 30 s. In a cluster
/// of 5000 nodes where no watch works, that is 170 lists per second for each source, each of one node's
/// objects and from the server's memory.
const STAND_IN: Policy = Policy::new(Duration::from_secs(10), Duration::from_secs(30)).with_jitter();
/// After a silent or failing stream that lasted this long, or the read timeout if that is shorter, there is
/// no hurry.
const UNHURRIED: Duration = Duration::from_secs(30);
/// The first silent stream counts as a failure if it was shorter (client-go's "very short watch").
const SHORT: Duration = Duration::from_secs(1);
/// A stream that was open this long without a refusal counts as healthy.
const SETTLED: Duration = Duration::from_secs(5);

// === impl Liveness ===

impl Liveness {
    pub(super) fn new(read_timeout: Duration) -> Self {
        Self {
            state: State::Delivers,
            had_events: false,
            silence: Duration::ZERO,
            list_at: None,
            lists: Backoff::new(STAND_IN),
            is_listed: false,
            has_failed_list: false,
            read_timeout,
        }
    }

    pub(super) fn stream_opened(&mut self) {
        self.had_events = false;
    }

    /// Whether the current stream has delivered an event or a bookmark.
    pub(super) fn had_events(&self) -> bool {
        self.had_events
    }

    /// How long the last silent stream lasted.
    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    /// Notes an event or a bookmark. Returns whether it ends a silence that was healthy, and has to be
    /// reported differently.
    pub(super) fn event(&mut self) -> bool {
        let was_quiet = self.state == State::Quiet;
        if self.state != State::Delivers {
            *self = Self::new(self.read_timeout);
        }
        (self.had_events, self.list_at) = (true, None);
        was_quiet
    }

    /// Notes a request or a stream of the watch that failed.
    pub(super) fn failed(&mut self, now: Instant) {
        if self.state != State::Deaf {
            self.state = State::Failing;
        }
        self.has_failed_list = false;
        self.expect_list(now);
    }

    /// Notes a silent stream, and decides what follows.
    pub(super) fn was_silent(&mut self, end: &SilentEnd, now: Instant) -> Verdict {
        self.silence = end.lasted;
        let is_first = self.state == State::Delivers;
        if end.as_requested {
            self.list_at.get_or_insert(now + self.interval());
        } else {
            if matches!(self.state, State::Delivers | State::Failing) {
                self.state = State::Silent;
            }
            self.expect_list(now);
        }
        if self.list_is_due(now) {
            return Verdict::Resume;
        }
        match self.state {
            State::Deaf => Verdict::Deaf,
            _ if end.as_requested => Verdict::Resume,
            State::Quiet if end.lasted < self.unhurried() => Verdict::Fail,
            State::Silent if !is_first || end.is_idle || end.lasted < SHORT => Verdict::Fail,
            State::Delivers | State::Failing | State::Silent | State::Quiet => Verdict::Resume,
        }
    }

    /// Whether a list should precede the next stream.
    pub(super) fn list_is_due(&self, now: Instant) -> bool {
        self.list_at.is_some_and(|at| at <= now)
    }

    /// The time until the next list is due, if it is not due yet.
    pub(super) fn list_in(&self, now: Instant) -> Option<Duration> {
        self.list_at.and_then(|at| at.checked_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Whether the next list may be streamed, which needs a watch that works.
    pub(super) fn can_stream_lists(&self) -> bool {
        self.state == State::Delivers || self.has_failed_list
    }

    /// Whether a stream without an event that has been open for a while proves a healthy watch. Silence is no
    /// failure, unless the streams before it were silent as well and the cause is unknown.
    pub(super) fn is_healthy_after(&self, open: Duration) -> bool {
        match self.state {
            State::Delivers => open >= SETTLED,
            State::Failing if !self.is_listed => open >= SETTLED,
            State::Failing | State::Quiet => open >= self.unhurried(),
            State::Silent | State::Deaf => false,
        }
    }

    /// Whether a complete list proves a healthy watch: not if lists stand in for it.
    pub(super) fn is_healthy_after_list(&self) -> bool {
        self.state == State::Delivers
    }

    /// Whether lists keep the objects current, because the watch does not.
    pub(super) fn lists_stand_in(&self) -> bool {
        self.is_listed && self.state != State::Delivers
    }

    /// Notes a complete list that was due.
    pub(super) fn compare(&mut self, list: &Comparison, now: Instant) -> Finding {
        if list.server < list.ours {
            *self = Self::new(self.read_timeout);
            return Finding::OtherHistory;
        }
        let has_missed = list.lost > 0 || list.newest > list.ours;
        let finding = match self.state {
            // What changed while requests failed was not missed by a stream.
            State::Failing => Finding::Open,
            State::Deaf => Finding::Deaf,
            _ if has_missed => Finding::Deaf,
            _ if self.silence >= self.unhurried() => Finding::Quiet,
            _ => Finding::Open,
        };
        self.state = match self.state {
            State::Failing => State::Failing,
            _ if finding == Finding::Deaf => State::Deaf,
            _ => State::Quiet,
        };
        self.is_listed = true;
        let wait = if self.state == State::Failing { self.lists.next(now) } else { self.interval() };
        self.list_at = Some(now + wait);
        finding
    }

    /// Notes a list that failed: a stream is tried before the next one. Earlier evidence of a quiet cluster
    /// expires.
    pub(super) fn list_failed(&mut self) {
        (self.list_at, self.has_failed_list) = (None, true);
        if self.state == State::Quiet {
            self.state = State::Silent;
        }
    }

    fn expect_list(&mut self, now: Instant) {
        if self.list_at.is_none() {
            self.list_at = Some(now + self.lists.next(now).min(self.read_timeout));
        }
    }

    /// From list to list while streams are silent.
    fn interval(&self) -> Duration {
        2 * self.read_timeout
    }

    fn unhurried(&self) -> Duration {
        UNHURRIED.min(self.read_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_TIMEOUT: Duration = Duration::from_secs(90);
    const SAME: Comparison = Comparison { ours: Some(10), server: Some(50), newest: Some(10), lost: 0 };

    fn liveness() -> Liveness {
        Liveness::new(READ_TIMEOUT)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn idle() -> SilentEnd {
        SilentEnd { lasted: READ_TIMEOUT, as_requested: false, is_idle: true }
    }

    fn ended(seconds: u64) -> SilentEnd {
        SilentEnd { lasted: secs(seconds), as_requested: false, is_idle: false }
    }

    /// Seconds until a list is due, rounded up.
    fn wait(liveness: &Liveness, now: Instant) -> Option<u64> {
        (0..4000).find(|seconds| liveness.list_is_due(now + secs(*seconds)))
    }

    #[test]
    fn a_failing_watch_is_listed_after_ten_to_twenty_seconds_and_then_every_half_minute() {
        for _ in 0..50 {
            let (mut liveness, mut now) = (liveness(), Instant::now());
            assert_eq!(wait(&liveness, now), None);
            liveness.failed(now);
            let first = wait(&liveness, now).unwrap();
            assert!((10..=20).contains(&first), "{first}");
            liveness.failed(now + secs(9));
            assert_eq!(wait(&liveness, now), Some(first), "further failures do not postpone it");
            for _ in 0..5 {
                now += secs(100);
                assert!(!liveness.lists_stand_in() || liveness.is_listed);
                assert_eq!(
                    liveness.compare(&Comparison { lost: 1, newest: Some(11), ..SAME }, now),
                    Finding::Open
                );
                assert!(liveness.lists_stand_in() && !liveness.is_healthy_after_list());
                let next = wait(&liveness, now).unwrap();
                assert!((20..=30).contains(&next), "{next}");
            }
            assert_eq!(wait(&liveness, now), Some(30));
        }
    }

    #[test]
    fn the_first_lists_of_many_nodes_are_spread() {
        let waits: std::collections::BTreeSet<_> = (0..200)
            .map(|_| {
                let (mut liveness, now) = (liveness(), Instant::now());
                liveness.failed(now);
                wait(&liveness, now).unwrap()
            })
            .collect();
        assert!(waits.len() >= 8, "{waits:?}");
    }

    #[test]
    fn an_event_ends_the_lists_and_their_backoff() {
        let (mut liveness, now) = (liveness(), Instant::now());
        for _ in 0..5 {
            liveness.failed(now);
            liveness.compare(&SAME, now);
        }
        assert!(!liveness.can_stream_lists());
        assert!(!liveness.event());
        assert!(liveness.can_stream_lists() && !liveness.lists_stand_in() && wait(&liveness, now).is_none());
        liveness.failed(now);
        assert!(wait(&liveness, now).unwrap() <= 20);
    }

    #[test]
    fn after_a_failed_list_a_stream_is_tried_first() {
        let (mut liveness, now) = (liveness(), Instant::now());
        liveness.failed(now);
        assert!(!liveness.can_stream_lists());
        liveness.list_failed();
        assert!(wait(&liveness, now).is_none() && liveness.can_stream_lists());
        liveness.failed(now);
        assert!(!liveness.can_stream_lists());
        let next = wait(&liveness, now).unwrap();
        assert!((20..=30).contains(&next), "{next}");
    }

    #[test]
    fn a_silent_watch_is_listed_by_the_second_stream_and_then_every_three_minutes() {
        let (mut liveness, now) = (liveness(), Instant::now());
        assert_eq!(liveness.was_silent(&idle(), now), Verdict::Fail, "the cause is unknown");
        assert!(wait(&liveness, now).unwrap() <= 20);
        assert_eq!(liveness.was_silent(&idle(), now + READ_TIMEOUT), Verdict::Resume, "with a list");
        assert_eq!(liveness.compare(&SAME, now), Finding::Quiet);
        assert_eq!(wait(&liveness, now), Some(180));
        let mut short = Liveness::new(secs(2));
        short.was_silent(&SilentEnd { lasted: secs(2), ..idle() }, now);
        assert_eq!(wait(&short, now), Some(2));
    }

    #[test]
    fn a_quiet_cluster_is_healthy_and_resumes_unless_its_streams_are_short() {
        let (mut liveness, now) = (liveness(), Instant::now());
        liveness.was_silent(&idle(), now);
        assert!(!liveness.is_healthy_after(READ_TIMEOUT) && !liveness.is_healthy_after_list());
        assert_eq!(liveness.compare(&SAME, now), Finding::Quiet);
        assert_eq!(liveness.was_silent(&idle(), now), Verdict::Resume);
        assert!(liveness.is_healthy_after(secs(30)) && !liveness.is_healthy_after(secs(29)));
        assert_eq!(liveness.was_silent(&ended(29), now), Verdict::Fail);
        assert_eq!(liveness.compare(&SAME, now), Finding::Open);
        assert!(liveness.event(), "the end of the silence is reported");
        assert!(
            !liveness.event() && liveness.is_healthy_after(secs(5)) && !liveness.is_healthy_after(secs(4))
        );
    }

    #[test]
    fn missed_changes_make_a_silent_watch_deaf_until_a_stream_delivers_an_event() {
        for missed in [Comparison { newest: Some(11), ..SAME }, Comparison { lost: 1, ..SAME }] {
            let (mut liveness, now) = (liveness(), Instant::now());
            liveness.was_silent(&idle(), now);
            assert_eq!(liveness.compare(&missed, now), Finding::Deaf);
            assert_eq!(liveness.compare(&SAME, now), Finding::Deaf);
            let as_requested = SilentEnd { as_requested: true, ..ended(300) };
            assert_eq!(liveness.was_silent(&as_requested, now), Verdict::Deaf);
            liveness.failed(now);
            assert!(!liveness.is_healthy_after(READ_TIMEOUT), "an accepted stream proves nothing");
            assert!(!liveness.event() && liveness.is_healthy_after(secs(5)));
        }
    }

    #[test]
    fn a_failing_watch_recovers_only_by_a_stream_that_lasts() {
        let (mut liveness, now) = (liveness(), Instant::now());
        liveness.failed(now);
        assert!(liveness.is_healthy_after(secs(5)) && !liveness.is_healthy_after(secs(4)));
        assert!(!liveness.is_healthy_after_list());
        liveness.compare(&SAME, now);
        assert!(
            liveness.is_healthy_after(secs(30)) && !liveness.is_healthy_after(secs(29)),
            "streams that all end with an error after a few seconds deliver nothing"
        );
    }

    #[test]
    fn a_server_behind_the_position_has_another_history() {
        for fail in [false, true] {
            let (mut liveness, now) = (liveness(), Instant::now());
            if fail {
                liveness.failed(now);
            } else {
                liveness.was_silent(&idle(), now);
            }
            let restored = Comparison { ours: Some(1200), server: Some(40), newest: None, lost: 2 };
            assert_eq!(liveness.compare(&restored, now), Finding::OtherHistory);
            assert!(liveness.is_healthy_after_list() && wait(&liveness, now).is_none());
        }
    }

    #[test]
    fn a_stream_that_ends_as_requested_is_no_failure_and_is_compared_rarely() {
        let (mut liveness, end) = (liveness(), SilentEnd { as_requested: true, ..ended(300) });
        let now = Instant::now();
        assert_eq!(liveness.was_silent(&end, now), Verdict::Resume);
        assert!(liveness.is_healthy_after_list());
        assert_eq!(wait(&liveness, now), Some(180));
    }

    #[test]
    fn the_first_silent_stream_resumes_unless_it_ended_at_once() {
        for (lasted, verdict) in [(999, Verdict::Fail), (1000, Verdict::Resume)] {
            let (mut liveness, now) = (liveness(), Instant::now());
            let end = SilentEnd { lasted: Duration::from_millis(lasted), ..ended(0) };
            assert_eq!(liveness.was_silent(&end, now), verdict);
            assert_eq!(liveness.was_silent(&end, now), Verdict::Fail, "the second one");
        }
    }

    #[test]
    fn a_failed_list_ends_the_evidence_of_a_quiet_cluster() {
        let (mut liveness, now) = (liveness(), Instant::now());
        liveness.was_silent(&idle(), now);
        liveness.compare(&SAME, now);
        liveness.list_failed();
        assert_eq!(liveness.was_silent(&idle(), now), Verdict::Fail);
        assert!(!liveness.is_healthy_after(READ_TIMEOUT));
    }
}
