//! Query parameters of a request.

use std::{collections::BTreeMap, time::Duration};

use super::status::Status;

/// A parsed query. The last value of a repeated parameter wins.
#[derive(Debug, Default)]
pub(super) struct Params(BTreeMap<String, String>);

/// The `resourceVersion` of a list or a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// The most recent version.
    Unset,
    /// `0`: any version.
    Any,
    At(u64),
}

/// `resourceVersionMatch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    Unset,
    NotOlderThan,
    Exact,
}

// === impl Params ===

impl Params {
    pub fn parse(query: &str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// The value of a parameter; empty if missing.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Whether a boolean parameter is true.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.text(name), "true" | "1")
    }

    ///
    /// # Errors
    /// If the value is not a number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Status> {
        match self.text(name) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|error| Status::bad_request(format!("{name}: invalid value {text:?}: {error}"))),
        }
    }

    /// A time in seconds; none if 0 or missing.
    ///
    /// # Errors
    /// If the value is not a number.
    pub fn seconds(&self, name: &str) -> Result<Option<Duration>, Status> {
        Ok(self.number(name)?.filter(|seconds| *seconds > 0).map(Duration::from_secs))
    }

    /// `resourceVersion`.
    ///
    /// # Errors
    /// If the value is not a number.
    pub fn version(&self) -> Result<Version, Status> {
        Ok(match self.number("resourceVersion")? {
            None => Version::Unset,
            Some(0) => Version::Any,
            Some(version) => Version::At(version),
        })
    }

    /// `resourceVersionMatch`, validated as the real server does.
    ///
    /// # Errors
    /// If the value is not allowed together with the other parameters.
    pub fn version_match(&self, is_watch_list_on: bool) -> Result<Match, Status> {
        let text = self.text("resourceVersionMatch");
        let initial = !self.text("sendInitialEvents").is_empty();
        let is_watch = self.flag("watch");
        let found = match text {
            "" => Match::Unset,
            "NotOlderThan" => Match::NotOlderThan,
            "Exact" if !is_watch => Match::Exact,
            other => {
                let supported = if is_watch { r#""NotOlderThan""# } else { r#""", "Exact", "NotOlderThan""# };
                let message = format!("Unsupported value: {other:?}: supported values: {supported}");
                return Err(Status::invalid(
                    None,
                    "resourceVersionMatch",
                    "FieldValueNotSupported",
                    &message,
                ));
            }
        };
        let is_set = found != Match::Unset;
        if is_watch && initial && found != Match::NotOlderThan {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            Err(forbidden("resourceVersionMatch", why))
        } else if is_watch && initial && !is_watch_list_on {
            let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            Err(forbidden("sendInitialEvents", why))
        } else if is_watch && is_set && !initial {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            Err(forbidden("resourceVersionMatch", why))
        } else if !is_watch && initial {
            Err(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
        } else if !is_watch && is_set && self.text("resourceVersion").is_empty() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            Err(forbidden("resourceVersionMatch", why))
        } else if is_set && !self.text("continue").is_empty() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            Err(forbidden("resourceVersionMatch", why))
        } else if found == Match::Exact && self.text("resourceVersion") == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            Err(forbidden("resourceVersionMatch", why))
        } else {
            Ok(found)
        }
    }
}

// === helpers ===

fn forbidden(field: &str, why: &str) -> Status {
    Status::invalid(None, field, "FieldValueForbidden", &format!("Forbidden: {why}"))
}
