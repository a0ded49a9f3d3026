//! The agent's own log: text on a terminal and JSON otherwise, with a filter that changes at run time.

mod bounded;
mod filter;
mod recent;
mod repeats;

use std::{
    io::{self, IsTerminal as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{self, MakeWriter, format, writer::MakeWriterExt as _},
    layer::SubscriberExt as _,
    registry::LookupSpan,
    reload,
};

use bounded::Bounded;
use recent::Recent;

/// The form of the lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    Text,
    Json,
}

/// A filter of log lines: levels, and targets with levels, such as `info,ferrule_agent::watch=debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(String);

/// Changes the filter of a running agent, and has the last lines. Clones share both.
#[derive(Debug, Clone)]
pub struct Control(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handle: reload::Handle<EnvFilter, Registry>,
    configured: Filter,
    current: Mutex<Filter>,
    recent: Recent,
}

/// Why a filter is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidFilter(String);

/// The agent at level debug, the libraries as before.
const VERBOSE: &str = "ferrule_agent=debug";

/// Starts the log on standard error.
///
/// # Errors
/// If the process has a log already.
pub fn start(format: Format, filter: Filter) -> Result<Control, tracing::subscriber::SetGlobalDefaultError> {
    let is_json = match format {
        Format::Auto => !io::stderr().is_terminal(),
        Format::Text => false,
        Format::Json => true,
    };
    let (log, control) = build(is_json, io::stderr().is_terminal(), io::stderr, filter);
    tracing::subscriber::set_global_default(log)?;
    // The eBPF programs' records come by the crate `log`. Fails only if the process has a logger already,
    // which the line above excludes.
    let _ = tracing_log::LogTracer::init();
    Ok(control)
}

fn build<W>(is_json: bool, has_colours: bool, writer: W, filter: Filter) -> (impl Subscriber, Control)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (reloadable, handle) = reload::Layer::new(filter.parsed());
    let recent = Recent::default();
    let kept = recent.clone();
    let log = Registry::default().with(reloadable).with(lines(
        is_json,
        has_colours,
        writer.and(move || kept.clone()),
    ));
    let inner = Inner { handle, configured: filter.clone(), current: Mutex::new(filter), recent };
    (log, Control(Arc::new(inner)))
}

fn lines<S, W>(is_json: bool, has_colours: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    if is_json {
        let format =
            Bounded::json(format::Format::default().json().flatten_event(true).with_current_span(false));
        let layer = fmt::layer().with_writer(writer).fmt_fields(format::JsonFields::new());
        return layer.event_format(format).boxed();
    }
    let format = Bounded::text(format::Format::default().with_ansi(has_colours));
    fmt::layer().with_writer(writer).with_ansi(has_colours).event_format(format).boxed()
}

// === impl Filter ===

impl Filter {
    /// Reads a filter; a blank text is no filter.
    ///
    /// # Errors
    /// If a level or target is unknown: a typing error would silence the log.
    pub fn new(text: &str) -> Result<Option<Self>, InvalidFilter> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        filter::parse(text).map_err(InvalidFilter)?;
        Ok(Some(Self(text.trim().to_owned())))
    }

    /// The default: level info. `has_programs`: the eBPF programs log, too.
    pub fn default_with(has_programs: bool) -> Self {
        // The programs log under the target `ferrule`, which is a prefix of the agent's own target. kube logs
        // each refused connection as an error, which the agent reports itself.
        Self(if has_programs {
            "info,kube_client=off,ferrule=trace,ferrule_agent=info".to_owned()
        } else {
            "info,kube_client=off".to_owned()
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parsed(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

// === impl Control ===

impl Control {
    /// Sets the filter, or the configured one for `None`, and returns the filter of before.
    pub fn set(&self, filter: Option<Filter>) -> Filter {
        let filter = filter.unwrap_or_else(|| self.0.configured.clone());
        let mut current = self.lock();
        // Fails only if the subscriber is gone, which the process keeps until its end.
        let _ = self.0.handle.reload(filter.parsed());
        let before = std::mem::replace(&mut *current, filter);
        drop(current);
        before
    }

    /// The last lines, as far as memory is kept for them.
    pub fn recent(&self) -> String {
        self.0.recent.text()
    }

    pub fn current(&self) -> Filter {
        self.lock().clone()
    }

    /// Switches between the configured filter and the agent's level debug.
    pub fn toggle(&self) {
        let verbose = Filter(format!("{},{VERBOSE}", self.0.configured.as_str()));
        let is_verbose = *self.lock() == verbose;
        let before = self.set((!is_verbose).then_some(verbose));
        let (before, now) = (before.as_str().to_owned(), self.current());
        tracing::info!(before, now = now.as_str(), "a signal switched the filter of the log");
    }

    fn lock(&self) -> MutexGuard<'_, Filter> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
