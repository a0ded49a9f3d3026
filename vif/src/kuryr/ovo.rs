//! Envelopes of `oslo.versionedobjects`.
//!
//! An envelope is a JSON object with class, namespace, version and fields (`versioned_object.data`). Unset
//! fields are absent, and a list is an object with the single field `objects`. `versioned_object.changes`,
//! which some releases write, lists changed fields and is ignored.
//!
//! The paths of errors omit envelopes: `network.subnets[0].gateway`.

use crate::{
    cursor::{Cursor, Object},
    error::FieldError,
};

const CLASS: &str = "versioned_object.name";
const NAMESPACE: &str = "versioned_object.namespace";
const VERSION: &str = "versioned_object.version";
const DATA: &str = "versioned_object.data";

/// The class of an object, or `None` without an envelope.
pub(crate) fn class<'v>(object: &Object<'v>) -> Result<Option<&'v str>, FieldError> {
    object.get(CLASS).map(|at| at.text()).transpose()
}

/// The class and the fields of an object of any class.
pub(crate) fn any<'v>(at: &Cursor<'v>) -> Result<(Cursor<'v>, Object<'v>), FieldError> {
    let object = at.object()?;
    let class = object.require(CLASS)?;
    let namespace = object.require(NAMESPACE)?;
    if namespace.text()? != "os_vif" {
        return Err(namespace.unexpected("\"os_vif\""));
    }
    let version = object.require(VERSION)?;
    // Minor versions only add fields.
    if version.text()?.strip_prefix("1.").is_none_or(|minor| minor.parse::<u32>().is_err()) {
        return Err(version.unexpected("a version 1.x"));
    }
    let data = object.require(DATA)?.with_path(at.path()).object()?;
    Ok((class, data))
}

/// The fields of an object of a class.
pub(crate) fn named<'v>(at: &Cursor<'v>, name: &str) -> Result<Object<'v>, FieldError> {
    let (class, data) = any(at)?;
    if class.text()? != name {
        return Err(class.unexpected(&format!("{name:?}")));
    }
    Ok(data)
}

/// The fields of each item of a list, where `list` and `item` are classes. Empty if the list is missing.
pub(crate) fn list<'v>(
    object: &Object<'v>,
    key: &str,
    list: &str,
    item: &str,
) -> Result<Vec<Object<'v>>, FieldError> {
    let Some(at) = object.get(key) else { return Ok(Vec::new()) };
    let items = named(&at, list)?.require("objects")?.with_path(at.path()).array()?;
    items.iter().map(|at| named(at, item)).collect()
}
