//! Untrusted text in messages.

use std::fmt;

/// Displays an untrusted text quoted, escaped and cut to 64 characters: a hostile text can neither forge nor
/// flood a log.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

const MAX_CHARS: usize = 64;

// === impl Quoted ===

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(MAX_CHARS) {
            Some((end, _)) => write!(f, "{:?}...", self.0.get(..end).unwrap_or_default()),
            None => write!(f, "{:?}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(Quoted("a\n\u{1b}[31m").to_string(), r#""a\n\u{1b}[31m""#);
        let long = Quoted(&"ü".repeat(1 << 20)).to_string();
        assert_eq!(long.chars().count(), MAX_CHARS + "\"\"...".len());
    }
}
