//! The CNI error that the plugin prints when a call fails.

use ferrule_proto::cni::{self, error::Code};
use serde::Serialize;

/// An error of the CNI specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CniError {
    /// One of [`Code`], or a code of a newer agent.
    pub(crate) code: u32,
    /// The attempted operation, its object and the cause, in one line.
    pub(crate) msg: String,
    /// The remedy; may be empty.
    pub(crate) details: String,
}

// === impl CniError ===

impl CniError {
    pub(crate) fn new(code: Code, msg: impl Into<String>, details: impl Into<String>) -> Self {
        // No code of the enum is negative.
        Self { code: code as u32, msg: msg.into(), details: details.into() }
    }

    /// The JSON for standard output.
    pub(crate) fn to_json(&self, cni_version: &str) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Json<'a> {
            cni_version: &'a str,
            code: u32,
            msg: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            details: &'a str,
        }
        let json = Json { cni_version, code: self.code, msg: &self.msg, details: &self.details };
        // Serializing strings and a number cannot fail. The fallback still is valid JSON.
        serde_json::to_string(&json)
            .unwrap_or_else(|_| format!(r#"{{"cniVersion":"{cni_version}","code":{}}}"#, self.code))
    }
}

impl From<cni::Error> for CniError {
    /// Keeps the agent's error unchanged, but for a missing code and missing details.
    fn from(error: cni::Error) -> Self {
        let code = u32::try_from(error.code).unwrap_or_default();
        // Runtimes take code 0 for success.
        let code = if code == 0 { Code::Internal as u32 } else { code };
        let mut details = error.details;
        if let (true, Some(agent)) = (details.is_empty(), error.api) {
            details = format!(
                "this plugin supports API {}, the agent {agent}: install plugin and agent from one release",
                ferrule_proto::API
            );
        }
        Self { code, msg: error.message, details }
    }
}

#[cfg(test)]
mod tests {
    use ferrule_proto::cni::ApiRange;

    use super::*;

    #[test]
    fn error_is_printed_as_specified() {
        let error = CniError::new(Code::InvalidEnvironment, "no \"x\"", "set it");
        assert_eq!(
            error.to_json("1.0.0"),
            r#"{"cniVersion":"1.0.0","code":4,"msg":"no \"x\"","details":"set it"}"#
        );
        let error = CniError::new(Code::TryAgainLater, "later", "");
        assert_eq!(error.to_json("0.4.0"), r#"{"cniVersion":"0.4.0","code":11,"msg":"later"}"#);
    }

    #[test]
    fn agent_error_is_kept_unchanged() {
        let error = cni::Error { code: 4711, message: "m".into(), details: "d".into(), api: None };
        assert_eq!(CniError::from(error), CniError { code: 4711, msg: "m".into(), details: "d".into() });
    }

    #[test]
    fn agent_error_without_a_code_is_an_internal_error() {
        for code in [0, -1, i32::MIN] {
            let error = cni::Error { code, message: "m".into(), ..Default::default() };
            assert_eq!(CniError::from(error).code, 999);
        }
    }

    #[test]
    fn incompatible_agent_is_reported_with_its_api_range() {
        let api = Some(ApiRange { min: 2, max: 3 });
        let error = cni::Error { code: 100, message: "m".into(), details: String::new(), api };
        assert!(CniError::from(error).details.contains("supports API v1, the agent v2 to v3"));
    }
}
