//! A JSON tree without duplicate keys.
//!
//! `serde_json::Value` keeps the last of duplicate keys and silently drops the others.

use std::{collections::BTreeMap, fmt};

use ferrule_proto::quoted::Quoted;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::Number;

use crate::error::FieldError;

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

struct JsonVisitor;

// === impl Json ===

impl Json {
    /// Parses a text of at most `max` bytes; `path` is the text's path in errors.
    pub(crate) fn parse(text: &str, max: usize, path: &str) -> Result<Self, FieldError> {
        check_length(text, max, path)?;
        serde_json::from_str(text).map_err(|e| FieldError::new(path, format_args!("invalid JSON: {e}")))
    }
}

/// Checks a limit in bytes.
pub(crate) fn check_length(text: &str, max: usize, path: &str) -> Result<(), FieldError> {
    if text.len() > max {
        let reason = format!("found {} bytes, expected at most {max}", text.len());
        return Err(FieldError::new(path, reason));
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

// === impl JsonVisitor ===

impl<'de> Visitor<'de> for JsonVisitor {
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
                return Err(A::Error::custom(format_args!("duplicate key {}", Quoted(&key))));
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
    fn tree_round_trips() {
        let text = r#"{"a":[null,true,-1,18446744073709551615,1.5,"x\n"],"b":{}}"#;
        let tree = Json::parse(text, 100, "").unwrap();
        assert_eq!(serde_json::to_string(&tree).unwrap(), text);
    }

    #[test]
    fn duplicate_keys_and_too_long_or_too_deep_texts_are_refused() {
        let error = |text: &str| Json::parse(text, 1000, "x").unwrap_err().to_string();
        let duplicate = error(r#"{"a":{"b":1,"b":2}}"#);
        assert!(duplicate.starts_with(r#"x: invalid JSON: duplicate key "b" at line 1"#), "{duplicate}");
        assert_eq!(error(&" ".repeat(1001)), "x: found 1001 bytes, expected at most 1000");
        assert!(Json::parse(&format!("{:1000}", 7), 1000, "x").is_ok());
        assert!(error(&"[".repeat(1000)).contains("recursion limit"));
        assert!(error("").contains("invalid JSON"));
    }
}
