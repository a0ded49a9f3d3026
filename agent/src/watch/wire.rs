//! What the API server sends, line by line and page by page.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::object::{Object, ObjectMeta};
use crate::api::{ApiError, Status};

/// A line of a watch.
#[derive(Debug)]
pub(super) enum Event<T> {
    /// It was added or modified; which of the two is of no interest to who may have missed the first.
    Applied { object: T, version: String },
    /// It has left what we look at: deleted, or moved.
    Deleted(ObjectMeta),
    /// Nothing happened up to a position.
    Bookmark { position: String, initial_end: bool },
    /// An object that is not understood, and where it is and which version, if that much is.
    Undecodable { metadata: Option<ObjectMeta>, why: String },
}

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct Page<'a> {
    pub metadata: PageMetadata,
    #[serde(borrow, default)]
    pub items: Option<Vec<&'a RawValue>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub resource_version: String,
    #[serde(default)]
    pub r#continue: String,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Placed {
    metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: String,
    #[serde(default)]
    annotations: InitialEnd,
}

#[derive(Default, Deserialize)]
struct InitialEnd {
    #[serde(default, rename = "k8s.io/initial-events-end")]
    end: String,
}

/// Reads a line of a watch.
///
/// # Errors
/// If the server says that the watch has failed; it ends then.
pub(super) fn event<T: Object>(what: &str, line: &[u8]) -> Result<Event<T>, ApiError> {
    if let Some((object, version)) = usual(line) {
        return Ok(Event::Applied { object, version });
    }
    let undecodable = |metadata: Option<ObjectMeta>, why: &dyn std::fmt::Display| Event::Undecodable {
        metadata,
        why: why.to_string(),
    };
    let Line { r#type, object } = match serde_json::from_slice(line) {
        Ok(line) => line,
        Err(error) => return Ok(undecodable(None, &error)),
    };
    let json = object.get();
    match r#type.as_ref() {
        "ADDED" | "MODIFIED" => match decode::<T>(json) {
            // One that cannot be placed is as good as one that cannot be read.
            Ok((object, version)) if !is_placed(&object, &version) => {
                Ok(undecodable(None, &"it has no name or no resourceVersion"))
            }
            Ok((object, version)) => Ok(Event::Applied { object, version }),
            Err(error) => Ok(undecodable(metadata(json), &error)),
        },
        // What it was like is of no interest, so that it need not be understood.
        "DELETED" => match metadata(json) {
            Some(metadata) => Ok(Event::Deleted(metadata)),
            None => Ok(undecodable(None, &"what was deleted has no name or no resourceVersion")),
        },
        "BOOKMARK" => match serde_json::from_str::<Bookmark>(json) {
            Ok(Bookmark { metadata: BookmarkMetadata { resource_version: position, annotations } }) => {
                Ok(Event::Bookmark { position, initial_end: annotations.end == "true" })
            }
            Err(error) => Ok(undecodable(None, &error)),
        },
        "ERROR" => {
            let status = serde_json::from_str::<Status>(json)
                .unwrap_or_else(|error| Status { message: error.to_string(), ..Status::default() });
            Err(ApiError::refused(what, status, None))
        }
        other => Ok(undecodable(metadata(json), &format_args!("its type is {other:?}"))),
    }
}

/// What nearly all lines are, as API servers write them: read in one go, and so in half the time. Whatever is out of the
/// ordinary is left to those who look closer.
fn usual<T: Object>(line: &[u8]) -> Option<(T, String)> {
    let object = [r#"{"type":"ADDED","object":"#, r#"{"type":"MODIFIED","object":"#]
        .iter()
        .find_map(|begin| line.strip_prefix(begin.as_bytes()))?;
    let mut object = serde_json::from_slice::<T>(object.strip_suffix(b"}")?).ok()?;
    let version = object.take_version();
    is_placed(&object, &version).then_some((object, version))
}

/// Where an object is and which version, whatever else may be in it.
pub(super) fn metadata(json: &str) -> Option<ObjectMeta> {
    let placed = serde_json::from_str::<Placed>(json).ok()?.metadata;
    placed.is_complete().then_some(placed)
}

/// Decodes an object, and takes its resourceVersion out.
pub(super) fn decode<T: Object>(json: &str) -> serde_json::Result<(T, String)> {
    let mut object = serde_json::from_str::<T>(json)?;
    let version = object.take_version();
    Ok((object, version))
}

fn is_placed<T: Object>(object: &T, version: &str) -> bool {
    !version.is_empty() && !object.key().name.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Pod;

    fn read(line: &str) -> Result<Event<Pod>, ApiError> {
        event("watch pods", line.as_bytes())
    }

    const POD: &str = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","managedFields":[{"x":1}],
        "annotations":{"other":"x","vif.ferrule.dev/v1":"{}"}},"spec":{"nodeName":"node","containers":[]},"status":{"phase":"Running"}}"#;

    #[test]
    fn objects_are_read_as_far_as_we_use_them() {
        let Ok(Event::Applied { object: pod, version }) =
            read(&format!(r#"{{"type":"ADDED","object":{POD}}}"#))
        else {
            panic!()
        };
        assert_eq!(pod.metadata.key().to_string(), "n/a");
        assert_eq!(pod.metadata.annotations.ferrule.as_deref(), Some("{}"));
        assert_eq!((version.as_str(), pod.status.phase.as_str()), ("7", "Running"));
        let kept = serde_json::to_string(&pod).unwrap();
        assert!(!kept.contains("other") && !kept.contains("resourceVersion") && kept.len() < 200, "{kept}");
        let again: Pod = serde_json::from_str(&kept).unwrap();
        assert_eq!(again.metadata.annotations, pod.metadata.annotations);
    }

    #[test]
    fn a_bookmark_moves_the_position() {
        let line = r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"12","creationTimestamp":null}}}"#;
        assert!(
            matches!(read(line), Ok(Event::Bookmark { position, initial_end: false }) if position == "12")
        );
        let line = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        assert!(matches!(read(line), Ok(Event::Bookmark { initial_end: true, .. })));
    }

    #[test]
    fn fix_an_error_is_not_taken_for_an_object() {
        let line = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
        assert!(read(line).unwrap_err().is_gone());
        let line =
            r#"{"type":"ERROR","object":{"code":504,"reason":"Timeout","details":{"retryAfterSeconds":3}}}"#;
        assert_eq!(read(line).unwrap_err().retry_after(), Some(std::time::Duration::from_secs(3)));
        assert!(read(r#"{"type":"ERROR","object":"odd"}"#).is_err());
    }

    #[test]
    fn what_cannot_be_read_does_not_end_the_stream_and_moves_the_position_where_it_can() {
        let odd = r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"8"},"spec":7}}"#;
        assert!(
            matches!(read(odd), Ok(Event::Undecodable { metadata: Some(it), .. }) if it.resource_version == "8")
        );
        let odd = odd.replace("ADDED", "DELETED");
        assert!(
            matches!(read(&odd), Ok(Event::Deleted(it)) if it.key().name == "a"),
            "it need not be understood"
        );
        for line in [
            "garbage",
            "{}",
            "[]",
            r#"{"type":"ADDED","object":{}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#,
        ] {
            assert!(matches!(read(line), Ok(Event::Undecodable { metadata: None, .. })), "{line}");
        }
        let new = r#"{"type":"RENAMED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}"#;
        assert!(matches!(read(new), Ok(Event::Undecodable { metadata: Some(_), .. })));
    }
}
