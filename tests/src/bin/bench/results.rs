//! What a benchmark returns: its figures, in several formats.

use std::fmt::Display;

use serde_json::Value;

/// The text of `Display` is for terminals.
pub(crate) trait Results: Display {
    fn to_json(&self) -> Value;

    /// Tables for a document, without a heading.
    fn to_markdown(&self) -> String;

    /// A picture of the most important figures.
    fn to_svg(&self) -> Option<String> {
        None
    }
}
