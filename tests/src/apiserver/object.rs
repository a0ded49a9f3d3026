//! Stored objects and their changes. Each is serialised once for all readers.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    resource::{Endpoint, Resource},
    selector::Selector,
};

/// An object's identity in the store; also its position in lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub resource: Resource,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
}

/// One version of an object, kept as JSON because most readers want JSON.
#[derive(Debug)]
pub(super) struct Object {
    pub key: Key,
    pub labels: BTreeMap<String, String>,
    fields: Vec<String>,
    json: Bytes,
    /// Offset in the JSON behind the opening brace, `apiVersion` and `kind`.
    untyped_at: usize,
}

/// One entry of the history.
#[derive(Debug)]
pub(super) struct Change {
    pub version: u64,
    pub old: Option<Arc<Object>>,
    pub new: Option<Arc<Object>>,
    lines: [OnceLock<Bytes>; 3],
}

/// The event type that a watcher receives for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventType {
    Added,
    Modified,
    Deleted,
}

// === impl Key ===

impl Key {
    pub fn new(resource: Resource, namespace: &str, name: &str) -> Self {
        let namespace = if resource.is_namespaced() { namespace } else { "" };
        Self { resource, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

// === impl Object ===

impl Object {
    /// Stores a value as version `version`; also writes the version into `value`.
    pub fn new(key: Key, version: u64, value: &mut Value) -> Self {
        set_version(value, version);
        if let Some(object) = value.as_object_mut() {
            object.remove("apiVersion");
            object.remove("kind");
        }
        let fields = key.resource.fields().iter().map(|(_, pointer)| field(value, pointer)).collect();
        let labels = value.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        let labels =
            labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();

        let endpoint = key.resource.stored();
        let mut json =
            format!(r#"{{"apiVersion":"{}","kind":"{}","#, endpoint.api_version(), key.resource.kind());
        let untyped_at = json.len();
        // The object is not empty: metadata.resourceVersion is always set.
        json.push_str(value.to_string().trim_start_matches('{'));
        if let Some(object) = value.as_object_mut() {
            endpoint.name_type(object);
        }
        Self { key, labels, fields, json: Bytes::from(json), untyped_at }
    }

    /// A selectable field, by its index in [`Resource::fields`].
    pub fn field(&self, at: usize) -> &str {
        self.fields.get(at).map_or("", String::as_str)
    }

    /// The stored object.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default()
    }

    /// The object as an endpoint serves it.
    pub fn json(&self, endpoint: Endpoint) -> Bytes {
        if endpoint.is_stored() { self.json.clone() } else { Bytes::from(self.converted(endpoint, true)) }
    }

    /// Appends the object to a list. In lists, objects of built-in types carry no `kind` and `apiVersion`.
    pub fn append_item(&self, endpoint: Endpoint, list: &mut Vec<u8>) {
        if !endpoint.is_stored() {
            list.extend_from_slice(self.converted(endpoint, false).as_bytes());
        } else if endpoint.resource.is_custom() {
            list.extend_from_slice(&self.json);
        } else {
            list.push(b'{');
            list.extend_from_slice(self.json.get(self.untyped_at..).unwrap_or_default());
        }
    }

    /// The object with another resourceVersion.
    pub fn json_at(&self, version: u64) -> Bytes {
        let mut value = self.value();
        set_version(&mut value, version);
        Bytes::from(value.to_string())
    }

    fn converted(&self, endpoint: Endpoint, typed: bool) -> String {
        let mut value = endpoint.serving(self.value());
        if let Some(object) = value.as_object_mut() {
            object.remove("apiVersion");
            object.remove("kind");
            if typed {
                endpoint.name_type(object);
            }
        }
        value.to_string()
    }
}

// === impl Change ===

impl Change {
    pub const fn new(version: u64, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> Self {
        Self { version, old, new, lines: [const { OnceLock::new() }; 3] }
    }

    /// The event for a selector: an object that starts to match is ADDED, one that stops matching is DELETED.
    pub fn seen_by(&self, selector: &Selector) -> Option<EventType> {
        let was = self.old.as_ref().is_some_and(|object| selector.matches(object));
        let is = self.new.as_ref().is_some_and(|object| selector.matches(object));
        match (was, is) {
            (false, true) => Some(EventType::Added),
            (true, true) => Some(EventType::Modified),
            (true, false) => Some(EventType::Deleted),
            (false, false) => None,
        }
    }

    /// The watch event line, serialised once for all watchers.
    pub fn line(&self, kind: EventType, endpoint: Endpoint) -> Bytes {
        if !endpoint.is_stored() {
            return self.make_line(kind, endpoint);
        }
        let [added, modified, deleted] = &self.lines;
        let line = match kind {
            EventType::Added => added,
            EventType::Modified => modified,
            EventType::Deleted => deleted,
        };
        line.get_or_init(|| self.make_line(kind, endpoint)).clone()
    }

    fn make_line(&self, kind: EventType, endpoint: Endpoint) -> Bytes {
        // A DELETED event carries the last state with the resourceVersion of the deletion.
        let object = match (kind, &self.old, &self.new) {
            (EventType::Deleted, Some(old), _) if endpoint.is_stored() => old.json_at(self.version),
            (EventType::Deleted, Some(old), _) => {
                Object::new(old.key.clone(), self.version, &mut old.value()).json(endpoint)
            }
            (_, _, Some(new)) => new.json(endpoint),
            _ => Bytes::from_static(b"null"),
        };
        event_line(kind.name(), &object)
    }
}

// === impl EventType ===

impl EventType {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

// === helpers ===

/// A line of a watch stream.
pub(super) fn event_line(kind: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + kind.len() + 24);
    for part in [br#"{"type":""#, kind.as_bytes(), br#"","object":"#, object, b"}\n"] {
        line.extend_from_slice(part);
    }
    Bytes::from(line)
}

/// A field as selectors compare it: a missing text is empty, and a missing bool is false.
fn field(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(Value::Bool(it)) => it.to_string(),
        Some(Value::String(it)) => it.clone(),
        _ if pointer == "/spec/hostNetwork" => "false".to_owned(),
        _ => String::new(),
    }
}

fn set_version(value: &mut Value, version: u64) {
    let Some(object) = value.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
    }
}
