//! `Status` objects: the API's failure responses.

use std::fmt;

use http::StatusCode;
use serde_json::{Value, json};

use super::resource::Endpoint;

/// A failure response.
#[derive(Debug, Clone)]
pub struct Status {
    code: u16,
    reason: &'static str,
    message: String,
    details: Value,
    /// The continue token for an inconsistent list, after the request's token expired.
    next: Option<String>,
}

/// The object that a failure is about.
pub(super) struct About<'a>(pub Endpoint, pub &'a str);

impl Status {
    /// A failure with the code's usual reason.
    #[must_use]
    pub fn of_code(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            409 => "Conflict",
            410 => "Expired",
            413 => "RequestEntityTooLarge",
            415 => "UnsupportedMediaType",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self { code, reason, message: message.into(), details: json!({}), next: None }
    }

    /// Sets `details.retryAfterSeconds` and the `Retry-After` header.
    #[must_use]
    pub fn retry_after(mut self, seconds: Option<u64>) -> Self {
        if let (Some(seconds), Some(details)) = (seconds, self.details.as_object_mut()) {
            details.insert("retryAfterSeconds".to_owned(), seconds.into());
        }
        self
    }

    #[must_use]
    pub const fn code(&self) -> u16 {
        self.code
    }

    /// The machine-readable reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// The `Status` object as sent to clients.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut metadata = json!({});
        if let (Some(next), Some(metadata)) = (&self.next, metadata.as_object_mut()) {
            metadata.insert("continue".to_owned(), next.as_str().into());
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let (Some(status), false) = (status.as_object_mut(), self.details == json!({})) {
            status.insert("details".to_owned(), self.details.clone());
        }
        status
    }

    pub(super) fn http_status(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(super) fn retry_after_seconds(&self) -> Option<u64> {
        self.details.get("retryAfterSeconds").and_then(Value::as_u64)
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::of_code(400, message)
    }

    pub(super) fn unauthorized() -> Self {
        Self::of_code(401, "Unauthorized")
    }

    pub(super) fn forbidden(verb: &str, endpoint: Endpoint, namespace: Option<&str>) -> Self {
        let scope =
            namespace.map_or("at the cluster scope".to_owned(), |ns| format!("in the namespace {ns:?}"));
        let Endpoint { resource, group } = endpoint;
        let message = format!(
            "{resource} is forbidden: User \"test\" cannot {verb} resource \"{resource}\" in API group \"{group}\" \
             {scope}"
        );
        Self { details: json!({ "kind": resource.name() }), ..Self::of_code(403, message) }
    }

    pub(super) fn not_found(about: &About<'_>) -> Self {
        Self { details: about.details(), ..Self::of_code(404, format!("{about} not found")) }
    }

    pub(super) fn already_exists(about: &About<'_>) -> Self {
        let message = format!("{about} already exists");
        Self { reason: "AlreadyExists", details: about.details(), ..Self::of_code(409, message) }
    }

    pub(super) fn conflict(about: &About<'_>, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {about}: {why}");
        Self { details: about.details(), ..Self::of_code(409, message) }
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::of_code(405, "the server does not allow this method on the requested resource")
    }

    /// An invalid field of an object or, without `about`, of list options.
    pub(super) fn invalid(about: Option<&About<'_>>, field: &str, cause: &str, message: &str) -> Self {
        let (subject, mut details) = about.map_or_else(
            || {
                (
                    "ListOptions.meta.k8s.io \"\"".to_owned(),
                    json!({ "group": "meta.k8s.io", "kind": "ListOptions" }),
                )
            },
            |about| (format!("{} {:?}", about.0.resource.kind(), about.1), about.details()),
        );
        if let Some(details) = details.as_object_mut() {
            let causes = json!([{ "reason": cause, "message": message, "field": field }]);
            details.insert("causes".to_owned(), causes);
        }
        Self { details, ..Self::of_code(422, format!("{subject} is invalid: {field}: {message}")) }
    }

    /// The history no longer has the version.
    pub(super) fn expired(message: impl Into<String>) -> Self {
        Self::of_code(410, message)
    }

    /// The history no longer has the token's version; `next` continues the list inconsistently.
    pub(super) fn expired_token(next: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start \
                       a new list without the continue parameter, or use the continue token in this response to \
                       retrieve the remainder of the results. Continuing with the provided token results in an \
                       inconsistent list - objects that were created, modified, or deleted between the time the \
                       first chunk was returned and now may show up in the list.";
        Self { next: Some(next), ..Self::expired(message) }
    }

    /// The history has not reached the version yet.
    pub(super) fn too_large_version(wanted: u64, current: u64) -> Self {
        let details = json!({
            "retryAfterSeconds": 1,
            "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
        });
        let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
        Self { details, ..Self::of_code(504, message) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Status {}

// === impl About ===

impl About<'_> {
    fn details(&self) -> Value {
        let Self(Endpoint { resource, group }, name) = self;
        match *group {
            "" => json!({ "name": name, "kind": resource.name() }),
            group => json!({ "name": name, "group": group, "kind": resource.name() }),
        }
    }
}

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Endpoint { resource, group }, name) = self;
        match *group {
            "" => write!(f, "{resource} {name:?}"),
            group => write!(f, "{resource}.{group} {name:?}"),
        }
    }
}
