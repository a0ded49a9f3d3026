//! The one layer of output: an answer as a table for people, or as data for programs.

use serde::Serialize;

/// Control characters in data are escaped by the format; tables escape them by [`crate::table::plain`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[default]
    Table,
    /// A table with more columns, where a command has more
    Wide,
    /// For programs: the fields of the protocol
    Json,
    /// The same in YAML
    Yaml,
}

/// The output of a command; empty if the command has printed it. Failures go to standard error and set the
/// exit code.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) text: String,
    pub(crate) failures: Vec<String>,
    /// Go to standard error, and are no failures.
    pub(crate) notes: Vec<String>,
    /// What the exit code is without failures.
    pub(crate) code: u8,
}

// === impl Output ===

impl Output {
    /// An answer as data, or as `render` shows it.
    ///
    /// # Errors
    /// If the answer cannot be serialized.
    pub(crate) fn show<T: Serialize>(
        self,
        answer: &T,
        render: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<String> {
        match self {
            Self::Table | Self::Wide => Ok(render(answer)),
            Self::Json => Ok(serde_json::to_string_pretty(answer)?),
            Self::Yaml => yaml(answer),
        }
    }

    /// Whether people read the output.
    pub(crate) fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    pub(crate) fn is_wide(self) -> bool {
        self == Self::Wide
    }
}

/// One YAML document without the line break at its end.
///
/// # Errors
/// If the answer cannot be serialized.
pub(crate) fn yaml<T: Serialize>(answer: &T) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(answer)?;
    Ok(text.trim_end().to_owned())
}

// === impl Report ===

impl From<String> for Report {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl Report {
    /// A report with at most one failure.
    pub(crate) fn new(text: String, failure: Option<String>) -> Self {
        Self { text, failures: failure.into_iter().collect(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Answer {
        name: &'static str,
        reasons: Vec<&'static str>,
        count: u64,
    }

    const ANSWER: Answer = Answer { name: "no", reasons: vec![], count: 7 };

    #[test]
    fn data_has_the_same_fields_in_both_formats_and_tables_are_rendered() {
        let show = |output: Output| output.show(&ANSWER, |it| format!("rendered {}", it.name)).unwrap();
        assert_eq!((show(Output::Table), show(Output::Wide)), ("rendered no".into(), "rendered no".into()));
        let json: serde_json::Value = serde_json::from_str(&show(Output::Json)).unwrap();
        let yaml: serde_json::Value = serde_saphyr::from_str(&show(Output::Yaml)).unwrap();
        assert_eq!(json, serde_json::json!({"name": "no", "reasons": [], "count": 7}));
        assert_eq!(yaml, json, "{}", show(Output::Yaml));
    }

    #[test]
    fn yaml_keeps_text_that_looks_like_something_else() {
        for text in
            ["no", "1e3", "null", "~", "0x1f", "a: b", "- x", "#", "'", "\"", "a\nb", "\u{1b}[31m", ""]
        {
            let written = yaml(&serde_json::json!([text])).unwrap();
            let read: Vec<String> = serde_saphyr::from_str(&written).unwrap();
            assert_eq!(read, [text], "{written}");
        }
    }
}
