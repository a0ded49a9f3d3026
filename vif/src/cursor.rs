//! Cursors into a JSON tree, which know their path for error messages.

use std::{collections::BTreeMap, fmt::Display};

use ferrule_proto::quoted::Quoted;

use crate::{error::FieldError, json::Json};

/// A value and its path.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'v> {
    path: String,
    json: &'v Json,
}

/// The fields of an object and its path.
#[derive(Debug, Clone)]
pub(crate) struct Object<'v> {
    path: String,
    fields: &'v BTreeMap<String, Json>,
}

// === impl Cursor ===

impl<'v> Cursor<'v> {
    pub(crate) fn root(json: &'v Json, path: &str) -> Self {
        Self { path: path.to_owned(), json }
    }

    /// An error at this path.
    pub(crate) fn error(&self, reason: impl Display) -> FieldError {
        FieldError::new(&self.path, reason)
    }

    /// The error for a value other than the expected one.
    pub(crate) fn unexpected(&self, expected: &str) -> FieldError {
        match self.json {
            Json::Null => self.error(format_args!("found null, expected {expected}")),
            Json::Bool(value) => self.error(format_args!("found {value}, expected {expected}")),
            Json::Number(number) => self.error(format_args!("found {number}, expected {expected}")),
            Json::Text(text) => self.error(format_args!("found {}, expected {expected}", Quoted(text))),
            Json::Array(_) => self.error(format_args!("found an array, expected {expected}")),
            Json::Object(_) => self.error(format_args!("found an object, expected {expected}")),
        }
    }

    /// The same value under another path: hides wrappers that mean nothing to users.
    pub(crate) fn with_path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    pub(crate) fn json(&self) -> &'v Json {
        self.json
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn object(&self) -> Result<Object<'v>, FieldError> {
        match self.json {
            Json::Object(fields) => Ok(Object { path: self.path.clone(), fields }),
            _ => Err(self.unexpected("an object")),
        }
    }

    pub(crate) fn array(&self) -> Result<Vec<Self>, FieldError> {
        let Json::Array(items) = self.json else { return Err(self.unexpected("an array")) };
        let item = |(i, json)| Self { path: format!("{}[{i}]", self.path), json };
        Ok(items.iter().enumerate().map(item).collect())
    }

    pub(crate) fn text(&self) -> Result<&'v str, FieldError> {
        match self.json {
            Json::Text(text) => Ok(text),
            _ => Err(self.unexpected("a string")),
        }
    }

    pub(crate) fn bool(&self) -> Result<bool, FieldError> {
        match self.json {
            Json::Bool(value) => Ok(*value),
            _ => Err(self.unexpected("true or false")),
        }
    }

    /// A string, converted by a rule.
    pub(crate) fn text_by<T>(&self, rule: impl Fn(&'v str) -> Result<T, String>) -> Result<T, FieldError> {
        rule(self.text()?).map_err(|reason| self.error(reason))
    }

    /// A number, converted by a rule.
    pub(crate) fn number_by<T>(
        &self,
        expected: &str,
        rule: impl Fn(u64) -> Result<T, String>,
    ) -> Result<T, FieldError> {
        let number = match self.json {
            Json::Number(number) => number.as_u64(),
            _ => None,
        };
        let number = number.ok_or_else(|| self.unexpected(expected))?;
        rule(number).map_err(|reason| self.error(reason))
    }
}

// === impl Object ===

impl<'v> Object<'v> {
    /// A field. `null` counts as missing.
    pub(crate) fn get(&self, key: &str) -> Option<Cursor<'v>> {
        self.fields.get(key).filter(|json| **json != Json::Null).map(|json| self.at(key, json))
    }

    /// A required field.
    pub(crate) fn require(&self, key: &str) -> Result<Cursor<'v>, FieldError> {
        self.get(key).ok_or_else(|| self.at(key, &Json::Null).error("missing"))
    }

    /// The items of an array, which may be missing.
    pub(crate) fn items(&self, key: &str) -> Result<Vec<Cursor<'v>>, FieldError> {
        self.get(key).map_or_else(|| Ok(Vec::new()), |array| array.array())
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'v str, Cursor<'v>)> {
        self.fields.iter().map(|(key, json)| (key.as_str(), self.at(key, json)))
    }

    /// An error at this path.
    pub(crate) fn error(&self, reason: impl Display) -> FieldError {
        FieldError::new(&self.path, reason)
    }

    fn at<'j>(&self, key: &str, json: &'j Json) -> Cursor<'j> {
        let mut path = self.path.clone();
        push_key(&mut path, key);
        Cursor { path, json }
    }
}

/// Appends a key to a path, quoted if a hostile key could forge or flood the message.
pub(crate) fn push_key(path: &mut String, key: &str) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    if key.is_empty() || key.len() > 64 || !key.bytes().all(plain) {
        path.push_str(&format!("[{}]", Quoted(key)));
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_names_the_field_and_quotes_hostile_keys() {
        let json = Json::parse(r#"{"a":[{"b c\n":1,"k":null}]}"#, 100, "").unwrap();
        let item = Cursor::root(&json, "").object().unwrap().require("a").unwrap().array().unwrap().remove(0);
        let item = item.object().unwrap();
        assert_eq!(item.require("k").unwrap_err().to_string(), "a[0].k: missing");
        let error = item.require("b c\n").unwrap().text().unwrap_err();
        assert_eq!(error.to_string(), "a[0][\"b c\\n\"]: found 1, expected a string");
        let long = item.require(&"x".repeat(10_000)).unwrap_err();
        assert!(long.path.len() < 100, "{long}");
    }

    #[test]
    fn error_has_the_found_value() {
        let json = Json::parse(r#"["x", 1.5, -1, true, [], {}]"#, 100, "").unwrap();
        let items = Cursor::root(&json, "r").array().unwrap();
        let errors: Vec<_> =
            items.iter().map(|it| it.number_by("a number", Ok).unwrap_err().to_string()).collect();
        let expected = [
            "r[0]: found \"x\", expected a number",
            "r[1]: found 1.5, expected a number",
            "r[2]: found -1, expected a number",
            "r[3]: found true, expected a number",
            "r[4]: found an array, expected a number",
            "r[5]: found an object, expected a number",
        ];
        assert_eq!(errors, expected);
    }

    #[test]
    fn keys_of_at_most_64_plain_bytes_are_not_quoted() {
        let path = |key: &str| {
            let mut path = "a".to_owned();
            push_key(&mut path, key);
            path
        };
        let longest = "k".repeat(64);
        assert_eq!(path(&longest), format!("a.{longest}"));
        assert_eq!(path("b_c-d.9"), "a.b_c-d.9");
        assert!(path(&format!("{longest}k")).starts_with("a[\"kkk"));
        assert_eq!(path(""), "a[\"\"]");
        let mut root = String::new();
        push_key(&mut root, "b");
        assert_eq!(root, "b");
    }

    #[test]
    fn values_are_read_and_errors_have_their_path() {
        let json = Json::parse(r#"{"n":7,"b":false,"t":"x","l":[1,2],"o":{}}"#, 100, "").unwrap();
        let root = Cursor::root(&json, "r").object().unwrap();
        let at = |key: &str| root.require(key).unwrap();
        assert_eq!(at("n").number_by("a number", Ok), Ok(7));
        assert_eq!((at("b").bool(), at("t").text()), (Ok(false), Ok("x")));
        assert_eq!((root.items("l").unwrap().len(), root.items("missing").unwrap().len()), (2, 0));
        assert_eq!(root.entries().map(|(key, _)| key).collect::<Vec<_>>(), ["b", "l", "n", "o", "t"]);
        assert_eq!(root.error("odd").to_string(), "r: odd");
        assert_eq!(at("t").with_path("elsewhere").error("odd").to_string(), "elsewhere: odd");
        let refused = at("n").number_by("a number", |number| Err::<(), _>(format!("{number} is odd")));
        assert_eq!(refused.unwrap_err().to_string(), "r.n: 7 is odd");
        assert_eq!(at("o").bool().unwrap_err().to_string(), "r.o: found an object, expected true or false");
        let null = Json::Null;
        assert_eq!(Cursor::root(&null, "").text().unwrap_err().to_string(), "found null, expected a string");
    }
}
