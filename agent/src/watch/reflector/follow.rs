//! Follows one stream of a watch, and judges its end.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    super::{
        error::WatchError,
        liveness::{SilentEnd, Verdict},
        object::Object,
        sink::Sink,
        stream::{Lines, Received},
        unconfirmed::CAUGHT_UP,
        wire::{self, Event, Item, Undecodable},
    },
    FOLLOWING, NO_ANSWER, Reflector,
};

/// The times of one stream.
#[derive(Clone, Copy)]
struct Deadlines {
    opened: Instant,
    /// The server should have ended the stream long before.
    overdue: Instant,
}

/// A stream that ends sooner is reopened with backoff.
const SHORT: Duration = Duration::from_secs(1);
/// Seconds. The request asks the server to end the stream after a random time from this to its double, as
/// client-go does.
const WATCH_SECONDS: u64 = 300;
/// A stream that ends at most this much before the requested time ends as requested.
const EARLY: Duration = Duration::from_secs(5);
/// A stream that lasts longer than twice the requested time, and this, has lost its server.
const OVERDUE: Duration = Duration::from_secs(60);
/// The interval of checkpoints. After a crash, the watch resumes that much earlier.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// The longest streamed list.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest silence before a streamed list begins; the server waits at most three seconds for its own
/// cache.
const LIST_IDLE: Duration = Duration::from_secs(15);
/// A stream with an event that could not be identified ends after this time, stretched at random up to its
/// double, for a list.
const DOUBT: Duration = Duration::from_secs(30);

// === impl Reflector ===

impl<T: Object, S: Sink<T>> Reflector<T, S> {
    /// Watches from the position, until the stream ends. Without a position, the stream begins with a list.
    pub(super) async fn watch(&mut self) -> Result<(), WatchError> {
        let requested = Duration::from_secs(fastrand::u64(WATCH_SECONDS..2 * WATCH_SECONDS));
        let opened = match self.open(requested).await {
            Ok(opened) => opened,
            Err(error) => return Err(self.watch_failed(error)),
        };
        let (what, lines, deadlines) = opened;
        let streamed = self.follow(&what, lines, deadlines).await;
        let lasted = deadlines.opened.elapsed();
        let had_events = self.liveness.had_events();
        let error = match streamed {
            Ok(()) if self.inventory.is_listing() => {
                let why = "ended before the end of its initial list".to_owned();
                return Err(self.watch_failed(WatchError::Broken { what, why }));
            }
            Ok(()) => WatchError::Short { what, after: lasted, had_events },
            Err(error @ WatchError::Broken { .. })
                if lasted >= SHORT && self.inventory.position().is_some() =>
            {
                error
            }
            Err(error @ WatchError::Idle { .. }) if !self.inventory.is_listing() => error,
            Err(error) => return Err(self.watch_failed(error)),
        };
        if self.inventory.expire_if_in_doubt() {
            tracing::info!(
                watch = self.scope.name,
                "relisting: a change may be missing, because an event had no usable name or UID, or the \
                 checkpoint lost objects"
            );
        }
        match error {
            WatchError::Short { .. } if had_events && lasted < SHORT => Err(error),
            WatchError::Short { .. } if had_events => Ok(()),
            WatchError::Broken { .. } if had_events => {
                self.resume_after(&error);
                Ok(())
            }
            _ => {
                let end = SilentEnd {
                    lasted,
                    as_requested: matches!(error, WatchError::Short { .. }) && lasted + EARLY >= requested,
                    is_idle: matches!(error, WatchError::Idle { .. }),
                };
                self.silent_stream(error, &end)
            }
        }
    }

    /// Opens a stream that the server should end after the requested time.
    async fn open(&mut self, requested: Duration) -> Result<(String, Lines, Deadlines), WatchError> {
        let what = format!("watch {}", self.scope.name);
        let path = self.watch_request(requested);
        let resumes = self.inventory.position().is_some();
        if resumes {
            self.counters.resumes.inc();
        } else {
            self.inventory.begin_list();
        }
        let api = Arc::clone(&self.api);
        let response = self.waiting(api.open(&what, &path)).await?;
        let opened = Instant::now();
        self.liveness.stream_opened();
        if resumes {
            self.unconfirmed.shorten(opened + T::REPLAY);
        }
        let deadlines = Deadlines { opened, overdue: opened + 2 * requested + OVERDUE };
        Ok((what, Lines::new(response.into_body()), deadlines))
    }

    /// Notes an error of the watch, unless a list would fail too, or follows anyway.
    fn watch_failed(&mut self, error: WatchError) -> WatchError {
        if !error.is_unreachable() && !error.is_not_found() && !error.is_expired() {
            self.liveness.failed(Instant::now());
        }
        error
    }

    fn watch_request(&self, requested: Duration) -> String {
        let seconds = requested.as_secs().to_string();
        let mut parameters =
            vec![("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", seconds.as_str())];
        match self.inventory.position() {
            Some(position) => parameters.push(("resourceVersion", position)),
            None => {
                let known = self.inventory.last_position().unwrap_or_default();
                parameters.extend([("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]);
                parameters.push(("resourceVersion", known));
            }
        }
        self.scope.request(&parameters)
    }

    /// Applies the events of a stream until it ends.
    async fn follow(
        &mut self,
        what: &str,
        mut lines: Lines,
        Deadlines { opened, overdue }: Deadlines,
    ) -> Result<(), WatchError> {
        let mut save_at = opened + CHECKPOINT_INTERVAL;
        // Only complete lines count: single bytes now and then prove nothing.
        let mut idle_after = self.settings.read_timeout;
        if self.inventory.is_listing() {
            idle_after = idle_after.min(LIST_IDLE);
        }
        let mut idle_at = opened + idle_after;
        let mut doubt_until = None;
        let mut caught_up_at = opened + CAUGHT_UP;
        loop {
            let until = self.unconfirmed.until();
            // A list confirms by its end.
            let caught_up = until.filter(|_| !self.inventory.is_listing()).map(|_| caught_up_at);
            let wake_at = [Some(idle_at), Some(save_at), Some(overdue), until, caught_up, doubt_until];
            let wake_at = wake_at.into_iter().flatten().min().unwrap_or(idle_at);
            let received = tokio::select! {
                received = lines.receive() => Some(received),
                () = sleep_until(wake_at) => None,
            };
            let now = Instant::now();
            if received.is_none() && caught_up.is_some_and(|at| at <= now) {
                self.confirmed("a resumed stream has delivered all that was missed");
            } else if until.is_some_and(|at| at <= now) {
                self.confirmed(NO_ANSWER);
            }
            if save_at <= now {
                self.stream_stays_open(now.duration_since(opened));
                self.save().await;
                save_at = Instant::now() + CHECKPOINT_INTERVAL;
            }
            if self.inventory.is_in_doubt() && doubt_until.is_none() && !self.inventory.is_listing() {
                doubt_until = Some(Instant::now() + DOUBT.mul_f64(1.0 + fastrand::f64()));
            }
            if doubt_until.is_some_and(|until| until <= now) {
                return Ok(());
            }
            if now >= overdue {
                let why = "the server has not ended it in time".to_owned();
                return Err(WatchError::Broken { what: what.to_owned(), why });
            }
            match received {
                None if now >= idle_at => {
                    return Err(WatchError::Idle { what: what.to_owned(), after: idle_after });
                }
                None => continue,
                Some(Received::Bytes(bytes)) => self.counters.received(bytes),
                Some(Received::End) => return Ok(()),
                Some(Received::Broken(why)) => {
                    return Err(WatchError::Broken { what: what.to_owned(), why });
                }
            }
            while let Some(line) = lines.next() {
                let now = Instant::now();
                idle_after = self.settings.read_timeout;
                (idle_at, caught_up_at) = (now + idle_after, now + CAUGHT_UP);
                match line {
                    Ok(line) => self.event(wire::event(what, &line)?)?,
                    Err(_) => {
                        let why = "a line that is too long or not UTF-8".to_owned();
                        self.undecodable(Undecodable { meta: None, why });
                    }
                }
            }
            self.counters.set_buffered(lines.buffered());
            if self.inventory.is_listing() && opened.elapsed() > LIST_TIMEOUT {
                return Err(WatchError::ListTimeout { what: what.to_owned(), after: LIST_TIMEOUT });
            }
        }
    }

    fn event(&mut self, event: Event<T>) -> Result<(), WatchError> {
        let counted = match event {
            Event::Applied(item @ Item::Object { .. }) => {
                self.item(item);
                &self.counters.applied
            }
            Event::Deleted(meta) => {
                let removed = self.inventory.delete(meta.key(), meta.uid(), meta.resource_version.clone());
                self.removed(removed);
                &self.counters.deleted
            }
            Event::Bookmark { position, ends_initial_list } => {
                if ends_initial_list && self.inventory.is_listing() {
                    self.end_list(position)?;
                } else {
                    self.inventory.move_to(position);
                    if !self.inventory.is_listing() {
                        self.confirmed("a bookmark follows all that was missed");
                    }
                }
                &self.counters.bookmarks
            }
            Event::Applied(Item::Undecodable(undecodable)) | Event::Unknown(undecodable) => {
                let is_identified = undecodable.meta.is_some();
                self.undecodable(undecodable);
                if is_identified {
                    self.heard();
                }
                return Ok(());
            }
        };
        counted.inc();
        if !self.inventory.is_listing() {
            self.counters.set_current();
        }
        self.heard();
        self.recovered();
        Ok(())
    }

    fn heard(&mut self) {
        if self.liveness.event() {
            self.recovered_as(FOLLOWING);
        }
    }

    fn stream_stays_open(&mut self, open: Duration) {
        if self.liveness.is_healthy_after(open) && !self.inventory.is_listing() && self.inventory.has_synced()
        {
            self.recovered();
        }
    }

    /// Reacts to a stream without events. `Ok` if the next one, or a list, may follow at once.
    fn silent_stream(&mut self, error: WatchError, end: &SilentEnd) -> Result<(), WatchError> {
        match self.liveness.was_silent(end, Instant::now()) {
            Verdict::Deaf => Err(WatchError::Deaf { what: format!("watch {}", self.scope.name) }),
            Verdict::Fail => Err(error),
            Verdict::Resume if end.as_requested => Ok(()),
            Verdict::Resume => {
                self.resume_after(&error);
                Ok(())
            }
        }
    }
}
