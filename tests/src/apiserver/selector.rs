//! Label and field selectors.

use super::{
    object::Object,
    resource::{Endpoint, Resource},
    status::Status,
};

/// The label and field selectors of a list or a watch.
#[derive(Debug, Clone)]
pub(super) struct Selector {
    pub resource: Resource,
    pub namespace: Option<String>,
    fields: Vec<FieldTerm>,
    labels: Vec<LabelTerm>,
}

#[derive(Debug, Clone)]
struct FieldTerm {
    field: Field,
    equal: bool,
    value: String,
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Name,
    Namespace,
    /// The index in [`Resource::fields`].
    Other(usize),
}

#[derive(Debug, Clone)]
enum LabelTerm {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

// === impl Selector ===

impl Selector {
    /// Parses the two selectors of a request.
    ///
    /// # Errors
    /// The API's status, if a selector is malformed or names an unsupported field.
    pub fn parse(
        endpoint: Endpoint,
        namespace: Option<&str>,
        fields: &str,
        labels: &str,
    ) -> Result<Self, Status> {
        let resource = endpoint.resource;
        let fields = fields.split(',').filter(|term| !term.is_empty());
        let fields = fields.map(|term| FieldTerm::parse(endpoint, term)).collect::<Result<_, _>>()?;
        let labels = split_terms(labels).map(LabelTerm::parse).collect::<Result<_, _>>()?;
        Ok(Self { resource, namespace: namespace.map(str::to_owned), fields, labels })
    }

    pub fn matches(&self, object: &Object) -> bool {
        self.resource == object.key.resource
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == object.key.namespace)
            && self.fields.iter().all(|term| term.matches(object))
            && self.labels.iter().all(|term| term.matches(object))
    }

    /// Whether the selector matches all objects of the resource or namespace.
    pub const fn is_plain(&self) -> bool {
        self.fields.is_empty() && self.labels.is_empty()
    }
}

// === impl FieldTerm ===

impl FieldTerm {
    fn parse(endpoint: Endpoint, term: &str) -> Result<Self, Status> {
        let operators = [("!=", false), ("==", true), ("=", true)];
        let (name, equal, value) = operators
            .iter()
            .find_map(|(operator, equal)| {
                term.split_once(operator).map(|(name, value)| (name, *equal, value))
            })
            .ok_or_else(|| {
                Status::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'"))
            })?;
        let mut others = endpoint.resource.fields().iter();
        let field = match name.trim() {
            "metadata.name" => Field::Name,
            "metadata.namespace" => Field::Namespace,
            other => others.position(|(label, _)| *label == other).map(Field::Other).ok_or_else(|| {
                let (version, resource) = (endpoint.api_version(), endpoint.resource);
                Status::bad_request(format!(
                    "Unable to find \"{version}, Resource={resource}\" that match label selector \"\", field selector \
                     \"{term}\": field label not supported: {other}"
                ))
            })?,
        };
        Ok(Self { field, equal, value: value.to_owned() })
    }

    fn matches(&self, object: &Object) -> bool {
        let value = match self.field {
            Field::Name => object.key.name.as_str(),
            Field::Namespace => object.key.namespace.as_str(),
            Field::Other(at) => object.field(at),
        };
        (value == self.value) == self.equal
    }
}

// === impl LabelTerm ===

impl LabelTerm {
    fn parse(term: &str) -> Result<Self, Status> {
        let term = term.trim();
        let refuse = || Status::bad_request(format!("unable to parse requirement: found '{term}'"));
        let (key, rest) = match term.strip_prefix('!') {
            Some(key) => return Ok(Self::Absent(checked_key(key.trim()).ok_or_else(refuse)?)),
            None => term.split_at(term.find(['=', '!', ' ', '(']).unwrap_or(term.len())),
        };
        let key = checked_key(key).ok_or_else(refuse)?;
        let rest = rest.trim();
        let one = |value: &str| vec![value.trim().to_owned()];
        let set = |set: &str| -> Option<Vec<String>> {
            let values = set.trim().strip_prefix('(')?.strip_suffix(')')?;
            Some(values.split(',').map(|value| value.trim().to_owned()).collect())
        };
        if rest.is_empty() {
            Ok(Self::Exists(key))
        } else if let Some(value) = rest.strip_prefix("!=") {
            Ok(Self::NotIn(key, one(value)))
        } else if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
            Ok(Self::In(key, one(value)))
        } else if let Some(values) = rest.strip_prefix("notin") {
            Ok(Self::NotIn(key, set(values).ok_or_else(refuse)?))
        } else if let Some(values) = rest.strip_prefix("in") {
            Ok(Self::In(key, set(values).ok_or_else(refuse)?))
        } else {
            Err(refuse())
        }
    }

    fn matches(&self, object: &Object) -> bool {
        match self {
            Self::In(key, values) => object.labels.get(key).is_some_and(|value| values.contains(value)),
            // `notin` also matches objects without the label.
            Self::NotIn(key, values) => object.labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => object.labels.contains_key(key),
            Self::Absent(key) => !object.labels.contains_key(key),
        }
    }
}

// === helpers ===

fn checked_key(key: &str) -> Option<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    (!key.is_empty() && key.bytes().all(allowed)).then(|| key.to_owned())
}

/// Splits a label selector at commas outside parentheses.
fn split_terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let at_comma = move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    selector.split(at_comma).filter(|term| !term.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apiserver::object::Key;

    fn object() -> Object {
        let key = Key::new(Resource::Pods, "shop", "web");
        let mut value = json!({
            "metadata": { "labels": { "app": "web", "example.org/tier": "front" } },
            "spec": { "nodeName": "a" },
        });
        Object::new(key, 7, &mut value)
    }

    fn matches(fields: &str, labels: &str) -> bool {
        Selector::parse(Resource::Pods.stored(), None, fields, labels).unwrap().matches(&object())
    }

    #[test]
    fn a_field_selector_compares_supported_fields_only() {
        assert!(matches("spec.nodeName=a,metadata.name==web,metadata.namespace!=other", ""));
        assert!(!matches("spec.nodeName!=a", ""));
        assert!(matches("status.phase=", ""));
        assert!(matches("spec.hostNetwork=false", "") && !matches("spec.hostNetwork=true", ""));
        let refused = Selector::parse(Resource::Pods.stored(), None, "spec.hostname=a", "").unwrap_err();
        assert_eq!(refused.code(), 400);
        assert!(Selector::parse(Resource::KuryrPorts.stored(), None, "spec.nodeName=a", "").is_err());
    }

    #[test]
    fn a_label_selector_supports_sets_and_existence() {
        for selector in
            ["app=web", "app==web", "app!=db", "app in (db, web)", "app notin (db,cache)", "app", "!db"]
        {
            assert!(matches("", selector), "{selector}");
        }
        assert!(matches("", "app in (web),example.org/tier=front,!db"));
        for selector in ["app=db", "app!=web", "app in (db)", "app notin (web)", "db", "!app", "app=web,db"] {
            assert!(!matches("", selector), "{selector}");
        }
        for selector in ["app in web", "app>1", "=web"] {
            assert!(Selector::parse(Resource::Pods.stored(), None, "", selector).is_err(), "{selector}");
        }
    }
}
