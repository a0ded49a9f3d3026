//! The form of a line, with the bound on repeats.

use std::{fmt, time::Instant};

use serde_json::json;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    registry::LookupSpan,
};

use super::repeats::{Repeats, Verdict};

/// A form of lines that leaves out repeats. A line after some that were left out says how many.
#[derive(Debug)]
pub(super) struct Bounded<F> {
    form: F,
    is_json: bool,
    repeats: Repeats,
}

// === impl Bounded ===

impl<F> Bounded<F> {
    pub(super) fn text(form: F) -> Self {
        Self { form, is_json: false, repeats: Repeats::default() }
    }

    pub(super) fn json(form: F) -> Self {
        Self { form, is_json: true, repeats: Repeats::default() }
    }

    fn note(&self, suppressed: u64, metadata: &Metadata<'_>, writer: &mut Writer<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let (level, target) = (metadata.level().as_str(), metadata.target());
        let message = "lines of the same place in the code were suppressed";
        if self.is_json {
            let line = json!({
                "timestamp": time, "level": level, "message": message, "suppressed": suppressed, "target": target,
            });
            return writeln!(writer, "{line}");
        }
        writeln!(writer, "{time} {level:>5} {target}: {message} suppressed={suppressed}")
    }
}

impl<F, S, N> FormatEvent<S, N> for Bounded<F>
where
    F: FormatEvent<S, N>,
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.repeats.judge(event.metadata(), Instant::now()) {
            // The layer writes an empty line as nothing at all.
            Verdict::Suppress => return Ok(()),
            Verdict::Log { suppressed: 0 } => {}
            Verdict::Log { suppressed } => self.note(suppressed, event.metadata(), &mut writer)?,
        }
        self.form.format_event(context, writer, event)
    }
}
