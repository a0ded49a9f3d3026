//! Labels of objects.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};

/// Labels, sorted by key. An agent holds those of all pods of the cluster for a moment: a sorted list takes a
/// third of a [`BTreeMap`]'s memory.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

struct Labelled;

// === impl Labels ===

impl Labels {
    /// Keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(it, _)| *it == key).map(|(_, value)| value)
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: &str, value: &str) {
        let rest = self.0.iter().filter(|(it, _)| **it != *key).cloned();
        *self = rest.chain([(key.into(), value.into())]).collect();
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Of equal keys, the last one counts.
impl FromIterator<(Box<str>, Box<str>)> for Labels {
    fn from_iter<T: IntoIterator<Item = (Box<str>, Box<str>)>>(labels: T) -> Self {
        let mut labels: Vec<_> = labels.into_iter().collect();
        if labels.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Self(labels.into());
        }
        Self(labels.drain(..).collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Labelled)
    }
}

impl<'de> Visitor<'de> for Labelled {
    type Value = Labels;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
        std::iter::from_fn(|| map.next_entry().transpose()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_and_of_equal_keys_the_last_counts() {
        let read = |json: &str| serde_json::from_str::<Labels>(json);
        let mut labels = read(r#"{"b":"1","a":"2","b":"3"}"#).unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
        assert_eq!((labels.get("b"), labels.get("c")), (Some("3"), None));
        assert_eq!(serde_json::to_string(&labels).unwrap(), r#"{"a":"2","b":"3"}"#);
        assert_eq!(labels, read(r#"{"a":"2","b":"3"}"#).unwrap());
        labels.insert("b", "4");
        labels.insert("A", "5");
        assert_eq!(format!("{labels:?}"), r#"{"A": "5", "a": "2", "b": "4"}"#);
        assert!(read("{}").unwrap().is_empty());
        assert!(read("[]").is_err() && read(r#"{"a":null}"#).is_err() && read(r#"{"a":1}"#).is_err());
    }
}
