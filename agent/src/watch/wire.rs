//! Decodes the events of a watch and the pages of a list.

use std::{borrow::Cow, fmt};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::object::{Object, ObjectKey, ObjectMeta};
use crate::api::{ApiError, Status};

/// An event of a watch.
#[derive(Debug)]
pub(super) enum Event<T> {
    /// `ADDED` and `MODIFIED` are the same to a watch that may have missed the first.
    Applied(Item<T>),
    Deleted(ObjectMeta),
    Bookmark {
        position: String,
        ends_initial_list: bool,
    },
    /// An event of another type, or without an identity.
    Unknown(Undecodable),
}

/// An object in an event or in a list.
#[derive(Debug)]
pub(super) enum Item<T> {
    Object { key: ObjectKey, object: T, version: String },
    Undecodable(Undecodable),
}

/// An object that cannot be decoded, with its identity if that much can be.
#[derive(Debug)]
pub(super) struct Undecodable {
    pub meta: Option<ObjectMeta>,
    pub why: String,
}

/// A page of a list.
#[derive(Debug)]
pub(super) struct Page<T> {
    pub items: Vec<Item<T>>,
    pub position: String,
    /// Empty in the last page.
    pub token: String,
}

#[derive(Deserialize)]
struct RawPage<'a> {
    metadata: PageMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Identified {
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
    annotations: BookmarkAnnotations,
}

#[derive(Default, Deserialize)]
struct BookmarkAnnotations {
    #[serde(default, rename = "k8s.io/initial-events-end")]
    initial_events_end: String,
}

// === impl Item ===

impl<T> Item<T> {
    pub(super) fn version(&self) -> Option<&str> {
        match self {
            Self::Object { version, .. } => Some(version),
            Self::Undecodable(undecodable) => {
                undecodable.meta.as_ref().map(|it| it.resource_version.as_str())
            }
        }
    }
}

/// Decodes a line of a watch.
///
/// # Errors
/// An `ERROR` event, which ends the watch.
pub(super) fn event<T: Object>(what: &str, line: &str) -> Result<Event<T>, ApiError> {
    if let Some(item) = common(line) {
        return Ok(Event::Applied(item));
    }
    let unknown = |meta, why: &dyn fmt::Display| Event::Unknown(Undecodable { meta, why: why.to_string() });
    let Line { r#type, object } = match serde_json::from_str(line) {
        Ok(line) => line,
        Err(error) => return Ok(unknown(None, &error)),
    };
    let json = object.get();
    match r#type.as_ref() {
        "ADDED" | "MODIFIED" => Ok(match item(json) {
            Item::Object { version, .. } if version.is_empty() => {
                unknown(None, &"an object without resourceVersion")
            }
            item => Event::Applied(item),
        }),
        // Only the identity counts, so that the rest need not be decoded.
        "DELETED" => Ok(match meta(json) {
            Some(meta) => Event::Deleted(meta),
            None => unknown(None, &"a deleted object without name or resourceVersion"),
        }),
        "BOOKMARK" => Ok(match serde_json::from_str(json) {
            Ok(Bookmark { metadata: BookmarkMetadata { resource_version: position, annotations } }) => {
                Event::Bookmark { position, ends_initial_list: annotations.initial_events_end == "true" }
            }
            Err(error) => unknown(None, &error),
        }),
        "ERROR" => {
            let status = serde_json::from_str::<Status>(json)
                .unwrap_or_else(|error| Status { message: error.to_string(), ..Status::default() });
            Err(ApiError::refused(what, status, None))
        }
        other => Ok(unknown(meta(json), &format_args!("an event of the unknown type {other:?}"))),
    }
}

/// Decodes a page of a list.
///
/// # Errors
/// If the page as a whole cannot be decoded.
pub(super) fn page<T: Object>(json: &[u8]) -> serde_json::Result<Page<T>> {
    let RawPage { metadata, items } = serde_json::from_slice(json)?;
    let items = items.into_iter().flatten().map(|raw| item(raw.get())).collect();
    Ok(Page { items, position: metadata.resource_version, token: metadata.r#continue })
}

/// Decodes nearly all lines, in the form in which API servers write them, in one pass instead of two.
fn common<T: Object>(line: &str) -> Option<Item<T>> {
    let object = [r#"{"type":"ADDED","object":"#, r#"{"type":"MODIFIED","object":"#]
        .iter()
        .find_map(|begin| line.strip_prefix(begin))?;
    let item = versioned(object.strip_suffix('}')?).ok();
    item.filter(|item| item.version().is_some_and(|version| !version.is_empty()))
}

fn item<T: Object>(json: &str) -> Item<T> {
    versioned(json).unwrap_or_else(|why| Item::Undecodable(Undecodable { meta: meta(json), why }))
}

fn versioned<T: Object>(json: &str) -> Result<Item<T>, String> {
    let mut object = serde_json::from_str::<T>(json).map_err(|error| error.to_string())?;
    let version = object.take_version();
    let key = object.key();
    if key.name().is_empty() {
        Err("an object without name".to_owned())
    } else {
        Ok(Item::Object { key, object, version })
    }
}

fn meta(json: &str) -> Option<ObjectMeta> {
    let Identified { metadata } = serde_json::from_str(json).ok()?;
    metadata.is_complete().then_some(metadata)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::TestObject, *};

    fn decode(line: &str) -> Result<Event<TestObject>, ApiError> {
        event("watch pods", line)
    }

    #[test]
    fn objects_lose_their_version_and_all_unused_fields() {
        let object =
            r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"x":"y"}}}"#;
        for line in [
            format!(r#"{{"type":"ADDED","object":{object}}}"#),
            format!(r#"{{ "object": {object}, "type": "MODIFIED" }}"#),
        ] {
            let Ok(Event::Applied(Item::Object { key, object, version })) = decode(&line) else {
                panic!("{line}")
            };
            assert_eq!((key.to_string(), version), ("n/a".to_owned(), "7".to_owned()));
            let stored = serde_json::to_string(&object).unwrap();
            assert!(!stored.contains("labels") && !stored.contains('7'), "{stored}");
        }
    }

    #[test]
    fn bookmarks_have_a_position_and_may_end_the_initial_list() {
        let line = r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"12","creationTimestamp":null}}}"#;
        let Ok(Event::Bookmark { position, ends_initial_list: false }) = decode(line) else { panic!() };
        assert_eq!(position, "12");
        let line = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        assert!(matches!(decode(line), Ok(Event::Bookmark { ends_initial_list: true, .. })));
    }

    #[test]
    fn an_error_event_is_an_error_and_no_object() {
        let line = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
        assert!(decode(line).unwrap_err().is_expired());
        let line =
            r#"{"type":"ERROR","object":{"code":504,"reason":"Timeout","details":{"retryAfterSeconds":3}}}"#;
        assert_eq!(decode(line).unwrap_err().retry_after(), Some(std::time::Duration::from_secs(3)));
        let odd = decode(r#"{"type":"ERROR","object":"odd"}"#).unwrap_err().to_string();
        assert!(odd.contains(r#"invalid type: string "odd""#), "{odd}");
    }

    #[test]
    fn undecodable_events_keep_their_identity_where_possible() {
        let odd = r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"8"},"spec":7}}"#;
        let Ok(Event::Applied(Item::Undecodable(Undecodable { meta: Some(meta), .. }))) = decode(odd) else {
            panic!()
        };
        assert_eq!((meta.key().name(), meta.resource_version.as_str()), ("a", "8"));
        let deleted = odd.replace("ADDED", "DELETED");
        assert!(matches!(decode(&deleted), Ok(Event::Deleted(meta)) if meta.key().name() == "a"));
        for line in ["garbage", "{}", "[]", r#"{"type":"DELETED","object":{}}"#] {
            assert!(matches!(decode(line), Ok(Event::Unknown(Undecodable { meta: None, .. }))), "{line}");
        }
        for object in
            ["{}", r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"name":"","resourceVersion":"8"}}"#]
        {
            let line = format!(r#"{{"type":"ADDED","object":{object}}}"#);
            let decoded = decode(&line);
            let Ok(
                Event::Applied(Item::Undecodable(Undecodable { meta: None, .. }))
                | Event::Unknown(Undecodable { meta: None, .. }),
            ) = decoded
            else {
                panic!("{line}")
            };
        }
        let renamed = r#"{"type":"RENAMED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}"#;
        assert!(matches!(decode(renamed), Ok(Event::Unknown(Undecodable { meta: Some(_), .. }))));
    }
}
