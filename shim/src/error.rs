//! What is printed when a call fails.

use std::fmt;

use ferrule_proto::cni::{self, error::Code};
use serde::Serialize;

/// A failure as the CNI specification has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CniError {
    /// One of [`Code`], or what a newer agent said.
    pub(crate) code: u32,
    /// What was attempted, on what, and why it failed: one line.
    pub(crate) msg: String,
    /// What to do about it; may be empty.
    pub(crate) details: String,
}

/// A text from outside, made fit for a message: quoted, escaped, and cut to a length that cannot flood a log.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

/// How many characters [`Shown`] shows.
const SHOWN: usize = 64;

// === impl CniError ===

impl CniError {
    pub(crate) fn new(code: Code, msg: impl Into<String>, details: impl Into<String>) -> Self {
        // Codes are not negative: see the enum.
        Self { code: code as u32, msg: msg.into(), details: details.into() }
    }

    /// The error as the JSON that the specification wants on standard output.
    pub(crate) fn to_json(&self, cni_version: &str) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Printed<'a> {
            cni_version: &'a str,
            code: u32,
            msg: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            details: &'a str,
        }
        let printed = Printed { cni_version, code: self.code, msg: &self.msg, details: &self.details };
        // Strings and a number cannot fail to serialise; were it otherwise, a runtime still gets JSON.
        serde_json::to_string(&printed)
            .unwrap_or_else(|_| format!(r#"{{"cniVersion":"{cni_version}","code":{}}}"#, self.code))
    }
}

impl From<cni::Error> for CniError {
    /// Takes the agent's error as it is, except where it would not say anything.
    fn from(error: cni::Error) -> Self {
        let code = u32::try_from(error.code).unwrap_or_default();
        // A runtime takes code 0 for no error.
        let code = if code == 0 { Code::Internal as u32 } else { code };
        let mut details = error.details;
        if let (true, Some(agent)) = (details.is_empty(), error.api) {
            details = format!(
                "this plugin speaks API {}, the agent {agent}: install the plugin that came with the agent",
                ferrule_proto::API
            );
        }
        Self { code, msg: error.message, details }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{:?}...", self.0.get(..end).unwrap_or_default()),
            None => write!(f, "{:?}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrule_proto::cni::ApiRange;

    use super::*;

    #[test]
    fn an_error_is_printed_as_the_specification_has_it() {
        let error = CniError::new(Code::InvalidEnvironment, "no \"x\"", "set it");
        assert_eq!(
            error.to_json("1.0.0"),
            r#"{"cniVersion":"1.0.0","code":4,"msg":"no \"x\"","details":"set it"}"#
        );
        let error = CniError::new(Code::TryAgainLater, "later", "");
        assert_eq!(error.to_json("0.4.0"), r#"{"cniVersion":"0.4.0","code":11,"msg":"later"}"#);
    }

    #[test]
    fn an_error_of_the_agent_is_taken_as_it_is() {
        let error = cni::Error { code: 4711, message: "m".into(), details: "d".into(), api: None };
        assert_eq!(CniError::from(error), CniError { code: 4711, msg: "m".into(), details: "d".into() });
    }

    #[test]
    fn an_error_without_a_code_is_still_an_error() {
        for code in [0, -1, i32::MIN] {
            let error = cni::Error { code, message: "m".into(), ..Default::default() };
            assert_eq!(CniError::from(error).code, 999);
        }
    }

    #[test]
    fn an_incompatible_agent_is_named_with_its_range() {
        let api = Some(ApiRange { min: 2, max: 3 });
        let error = cni::Error { code: 100, message: "m".into(), details: String::new(), api };
        assert!(CniError::from(error).details.contains("speaks API v1, the agent v2 to v3"));
    }

    #[test]
    fn a_shown_text_is_escaped_and_short() {
        assert_eq!(Shown("a\n\u{1b}[31m").to_string(), r#""a\n\u{1b}[31m""#);
        let long = Shown(&"ü".repeat(1 << 20)).to_string();
        assert_eq!(long.chars().count(), SHOWN + 5);
    }
}
