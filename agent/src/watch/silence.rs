//! Streams that say nothing, though they are accepted: whether there is nothing to say, or nobody who would.
//!
//! Neither is rare. A proxy that keeps answers back, or whose upstream is gone, is deaf. But a real server too sends a
//! bookmark only if something of the resource has changed or etcd has told how far it is, which it does every ten minutes
//! unless it is asked to (`cacheWatcher.process` and `Cacher.dispatchEvents` in Kubernetes). A list tells one from the
//! other: what is newer in it than our position, the stream should have told.

use std::{mem, time::Duration};

use tokio::time::Instant;

use super::{
    Sink,
    list::{Listed, number},
    object::Object,
    source::Source,
};
use crate::api::ApiError;

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Whether the stream has said something.
    pub heard: bool,
    /// How many streams in a row ended without a word.
    mute: u32,
    means: Means,
    /// When all may be listed because of it; at once, if that was never done.
    list_at: Option<Instant>,
}

/// What it means that nothing comes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// There is no silence.
    #[default]
    Nothing,
    /// Nobody knows yet.
    Unknown,
    /// There is nothing to say: a list has shown it.
    Quiet,
    /// Something has changed, and the stream did not say it.
    Deaf,
}

/// How a stream ended that had said nothing.
pub(super) struct Mute {
    pub error: ApiError,
    pub lasted: Duration,
    /// Whether we had asked for the end.
    pub as_asked: bool,
}

/// Streams that say nothing are opened again at once if they lasted as long.
const UNHURRIED: Duration = Duration::from_secs(30);
/// The same, for the first of them (client-go's "very short watch").
const SHORT: Duration = Duration::from_secs(1);
/// How long a stream that says nothing must have been open to count as followed.
const SETTLED: Duration = Duration::from_secs(5);

impl<T: Object, S: Sink<T>> Source<T, S> {
    /// The stream says something.
    pub(super) fn heard(&mut self) {
        let silence = &mut self.state.silence;
        (silence.heard, silence.mute) = (true, 0);
        if mem::take(&mut silence.means) == Means::Quiet {
            self.recovered_and("following the changes");
        }
    }

    /// A stream has been open for a while, and was not refused: that nothing happens is no failure, unless nothing has
    /// come from those before it either and nobody knows why.
    pub(super) fn settled(&mut self, open: Duration) {
        let unhurried = self.unhurried();
        let is_followed = match self.state.silence.means {
            Means::Nothing => open >= SETTLED,
            Means::Quiet => open >= unhurried,
            Means::Unknown | Means::Deaf => false,
        };
        if is_followed && self.state.listed.is_none() && self.state.synced {
            self.recovered();
        }
    }

    /// A list has come to its end; it says nothing of the streams.
    pub(super) fn recovered_by_list(&mut self) {
        if self.state.silence.means == Means::Nothing {
            self.recovered();
        }
    }

    /// What to make of a stream that said nothing: `Ok` if the next one may be opened at once.
    pub(super) async fn mute(&mut self, mute: Mute) -> Result<(), ApiError> {
        let Mute { error, lasted, as_asked } = mute;
        let silence = &mut self.state.silence;
        silence.mute = silence.mute.saturating_add(1);
        if silence.means == Means::Nothing && !as_asked {
            silence.means = Means::Unknown;
        }
        let is_first = silence.mute == 1;
        if !is_first && self.state.position.is_some() && silence.list_at.is_none_or(|at| at <= Instant::now())
        {
            self.list_in_silence(lasted).await?;
        }
        let is_idle = matches!(error, ApiError::Idle { .. });
        match self.state.silence.means {
            Means::Deaf => Err(ApiError::Deaf { what: format!("watch {}", self.scope.name) }),
            _ if as_asked => Ok(()),
            Means::Quiet if lasted < self.unhurried() => Err(error),
            Means::Unknown if !is_first || is_idle || lasted < SHORT => Err(error),
            // Among them: a history that the server does not know is left behind.
            Means::Quiet | Means::Unknown | Means::Nothing => {
                self.passed_over(&error);
                Ok(())
            }
        }
    }

    /// Less, where we are less patient ourselves.
    fn unhurried(&self) -> Duration {
        UNHURRIED.min(self.settings.read_timeout)
    }

    /// Notes a failure that nothing is to be done about.
    pub(super) fn passed_over(&self, error: &ApiError) {
        self.metrics.failures.get_or_create(&self.failure(error.reason())).inc();
        tracing::debug!(source = self.scope.name, %error, "resuming");
    }

    /// Lists, so that what is known is right though no stream tells of it, and finds out why none does.
    async fn list_in_silence(&mut self, lasted: Duration) -> Result<(), ApiError> {
        let position = self.state.position.clone().unwrap_or_default();
        let listed = self.list().await;
        let again = if listed.is_ok() { 2 * self.settings.read_timeout } else { self.settings.max_backoff };
        let list_at = Some(Instant::now() + again);
        self.state.silence.list_at = list_at;
        if listed.is_err() && self.state.silence.means == Means::Quiet {
            self.state.silence.means = Means::Unknown;
        }
        let (Listed { position: server, newest, lost }, source) = (listed?, self.scope.name);
        if number(&server) < number(&position) {
            // One that was restored from an older copy says nothing to a watch from its future, for hours: no event, no
            // bookmark, no error.
            tracing::warn!(source, position, server, "the API server's history is another one: listed");
            self.state.silence = Silence { list_at, ..Silence::default() };
            self.recovered();
        } else if lost > 0 || newest > number(&position) {
            tracing::warn!(
                source,
                position,
                server,
                "changes have been found that the watch had not told of"
            );
            self.state.silence.means = Means::Deaf;
            // It has been for longer than that it is known.
            let since = Instant::now().checked_sub(lasted);
            self.state.failing_since = self.state.failing_since.or(since);
        } else if self.state.silence.means != Means::Deaf {
            self.state.silence.means = Means::Quiet;
            if lasted >= self.unhurried() {
                self.recovered_and("nothing comes from the watch; a list has shown that nothing has changed");
            }
        }
        Ok(())
    }
}
