//! A place in a JSON tree: it knows its path, so that whatever is wrong there is told with it.

use std::{collections::BTreeMap, fmt::Display, str::FromStr};

use crate::{
    error::{Shown, Wrong},
    json::Json,
};

/// A value, and where it is.
#[derive(Debug, Clone)]
pub(crate) struct At<'v> {
    path: String,
    json: &'v Json,
}

/// An object's fields, and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Object<'v> {
    path: String,
    fields: &'v BTreeMap<String, Json>,
}

// === impl At ===

impl<'v> At<'v> {
    /// The root of a tree.
    pub(crate) fn root(json: &'v Json, path: &str) -> Self {
        Self { path: path.to_owned(), json }
    }

    /// The error that says `why` of this place.
    pub(crate) fn wrong(&self, why: impl Display) -> Wrong {
        Wrong { path: self.path.clone(), why: why.to_string() }
    }

    /// The same value, called by another's path: for wrappers that no reader wants to hear of.
    pub(crate) fn called(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    pub(crate) fn json(&self) -> &'v Json {
        self.json
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn object(&self) -> Result<Object<'v>, Wrong> {
        match self.json {
            Json::Object(fields) => Ok(Object { path: self.path.clone(), fields }),
            _ => Err(self.is_not("an object")),
        }
    }

    pub(crate) fn array(&self) -> Result<Vec<Self>, Wrong> {
        let Json::Array(items) = self.json else { return Err(self.is_not("an array")) };
        let at = |(i, json)| Self { path: format!("{}[{i}]", self.path), json };
        Ok(items.iter().enumerate().map(at).collect())
    }

    pub(crate) fn text(&self) -> Result<&'v str, Wrong> {
        match self.json {
            Json::Text(text) => Ok(text),
            _ => Err(self.is_not("a string")),
        }
    }

    pub(crate) fn bool(&self) -> Result<bool, Wrong> {
        match self.json {
            Json::Bool(value) => Ok(*value),
            _ => Err(self.is_not("true or false")),
        }
    }

    pub(crate) fn u64(&self, expected: &str) -> Result<u64, Wrong> {
        match self.json {
            Json::Number(number) => number.as_u64().ok_or_else(|| self.is_not(expected)),
            _ => Err(self.is_not(expected)),
        }
    }

    /// A text, parsed.
    pub(crate) fn parse<T: FromStr>(&self, expected: &str) -> Result<T, Wrong> {
        self.text().ok().and_then(|text| text.parse().ok()).ok_or_else(|| self.is_not(expected))
    }

    /// The error for a value that is something else than expected.
    pub(crate) fn is_not(&self, expected: &str) -> Wrong {
        match self.json {
            Json::Null => self.wrong(format_args!("null is not {expected}")),
            Json::Bool(value) => self.wrong(format_args!("{value} is not {expected}")),
            Json::Number(number) => self.wrong(format_args!("{number} is not {expected}")),
            Json::Text(text) => self.wrong(format_args!("{} is not {expected}", Shown(text))),
            Json::Array(_) => self.wrong(format_args!("an array is not {expected}")),
            Json::Object(_) => self.wrong(format_args!("an object is not {expected}")),
        }
    }
}

// === impl Object ===

impl<'v> Object<'v> {
    /// A field; `null` is as good as none.
    pub(crate) fn get(&self, key: &str) -> Option<At<'v>> {
        self.fields.get(key).filter(|json| **json != Json::Null).map(|json| self.at(key, json))
    }

    /// A field that must be there.
    pub(crate) fn need(&self, key: &str) -> Result<At<'v>, Wrong> {
        self.get(key).ok_or_else(|| self.at(key, &Json::Null).wrong("is missing"))
    }

    /// The items of an array; none if it is not there.
    pub(crate) fn items(&self, key: &str) -> Result<Vec<At<'v>>, Wrong> {
        self.get(key).map_or_else(|| Ok(Vec::new()), |at| at.array())
    }

    /// Refuses fields other than the `known` ones.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), Wrong> {
        match self.fields.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, json)) => {
                Err(self.at(key, json).wrong(format_args!("is not a field; there are {}", known.join(", "))))
            }
        }
    }

    /// All fields.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'v str, At<'v>)> {
        self.fields.iter().map(|(key, json)| (key.as_str(), self.at(key, json)))
    }

    /// The error that says `why` of the object.
    pub(crate) fn wrong(&self, why: impl Display) -> Wrong {
        Wrong { path: self.path.clone(), why: why.to_string() }
    }

    fn at<'j>(&self, key: &str, json: &'j Json) -> At<'j> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        let path = if key.is_empty() || key.len() > 64 || !key.bytes().all(plain) {
            format!("{}[{}]", self.path, Shown(key))
        } else if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        };
        At { path, json }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_what_is_wrong_and_no_key_can_flood_or_forge_it() {
        let json = Json::parse(r#"{"a":[{"b c\n":1,"k":null}]}"#, 100, "").unwrap();
        let item = At::root(&json, "").object().unwrap().need("a").unwrap().array().unwrap().remove(0);
        let item = item.object().unwrap();
        assert_eq!(item.need("k").unwrap_err().to_string(), "a[0].k: is missing");
        assert_eq!(
            item.only(&["k"]).unwrap_err().to_string(),
            "a[0][\"b c\\n\"]: is not a field; there are k"
        );
        let long = item.need(&"x".repeat(10_000)).unwrap_err();
        assert!(long.path.len() < 100, "{long}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told() {
        let json = Json::parse(r#"["x", 1.5, -1, true, [], {}]"#, 100, "").unwrap();
        let items = At::root(&json, "r").array().unwrap();
        let whys: Vec<_> = items.iter().map(|at| at.u64("a whole number").unwrap_err().to_string()).collect();
        let expected = [
            "r[0]: \"x\" is not a whole number",
            "r[1]: 1.5 is not a whole number",
            "r[2]: -1 is not a whole number",
            "r[3]: true is not a whole number",
            "r[4]: an array is not a whole number",
            "r[5]: an object is not a whole number",
        ];
        assert_eq!(whys, expected);
    }
}
