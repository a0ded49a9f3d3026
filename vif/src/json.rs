//! JSON as a tree that knows its keys to be unique.
//!
//! With a key that is there twice, one of the two values would be lost silently: which one is up to the reader.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::Number;

use crate::error::{Shown, Wrong};

/// A JSON value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

struct Tree;

// === impl Json ===

impl Json {
    /// Parses a text of at most `max` bytes; `path` is what it is called in an error.
    pub(crate) fn parse(text: &str, max: usize, path: &str) -> Result<Self, Wrong> {
        let wrong = |why| Wrong { path: path.to_owned(), why };
        if text.len() > max {
            return Err(wrong(format!("is {} bytes long, and {max} are the most", text.len())));
        }
        serde_json::from_str(text).map_err(|e| wrong(format!("is not JSON: {e}")))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Tree)
    }
}

// === impl Tree ===

impl<'de> Visitor<'de> for Tree {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json, A::Error> {
        let mut object = BTreeMap::new();
        while let Some((key, value)) = fields.next_entry::<String, _>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("{} is there twice", Shown(&key))));
            }
            object.insert(key, value);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_reads_back_as_it_was_written() {
        let text = r#"{"a":[null,true,-1,18446744073709551615,1.5,"x\n"],"b":{}}"#;
        let tree = Json::parse(text, 100, "").unwrap();
        assert_eq!(serde_json::to_string(&tree).unwrap(), text);
    }

    #[test]
    fn what_is_there_twice_too_long_or_too_deep_is_refused() {
        let why = |text: &str| Json::parse(text, 1000, "x").unwrap_err().to_string();
        assert!(why(r#"{"a":{"b":1,"b":2}}"#).starts_with(r#"x: is not JSON: "b" is there twice at line 1"#));
        assert_eq!(why(&" ".repeat(1001)), "x: is 1001 bytes long, and 1000 are the most");
        assert!(why(&"[".repeat(1000)).contains("recursion limit"));
        assert!(why("").contains("is not JSON"));
    }
}
