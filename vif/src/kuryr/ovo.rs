//! Objects as `oslo.versionedobjects` serialises them.
//!
//! Each is a JSON object of its class, a namespace, a version and its fields (`versioned_object.data`). Fields that were
//! never set are absent, and lists are objects with one field, `objects`. `versioned_object.changes`, which some writers
//! leave at every level, tells nothing of the object itself.
//!
//! The wrappers have no part in the paths of errors: `network.subnets[0].gateway` is what people know.

use crate::{
    at::{At, Object},
    error::Wrong,
};

const CLASS: &str = "versioned_object.name";
const NAMESPACE: &str = "versioned_object.namespace";
const VERSION: &str = "versioned_object.version";
const DATA: &str = "versioned_object.data";

/// The class of an object; none if it is not a versioned one.
pub(crate) fn class<'v>(object: &Object<'v>) -> Result<Option<&'v str>, Wrong> {
    object.get(CLASS).map(|at| at.text()).transpose()
}

/// The fields of an object of a class of which there are several, and where its class is written.
pub(crate) fn any<'v>(at: &At<'v>) -> Result<(At<'v>, Object<'v>), Wrong> {
    let object = at.object()?;
    let class = object.need(CLASS)?;
    let namespace = object.need(NAMESPACE)?;
    if namespace.text()? != "os_vif" {
        return Err(namespace.is_not("\"os_vif\""));
    }
    let version = object.need(VERSION)?;
    // Within a major version, fields are only added.
    if version.text()?.strip_prefix("1.").is_none_or(|minor| minor.parse::<u32>().is_err()) {
        return Err(version.is_not("a version 1.x"));
    }
    let data = object.need(DATA)?.called(at.path()).object()?;
    Ok((class, data))
}

/// The fields of an object of one class.
pub(crate) fn named<'v>(at: &At<'v>, name: &str) -> Result<Object<'v>, Wrong> {
    let (class, data) = any(at)?;
    if class.text()? != name {
        return Err(class.is_not(&format!("{name:?}")));
    }
    Ok(data)
}

/// The fields of the items of a list, which has a class of its own; none if it is not there.
pub(crate) fn list<'v>(
    object: &Object<'v>,
    key: &str,
    list: &str,
    item: &str,
) -> Result<Vec<Object<'v>>, Wrong> {
    let Some(at) = object.get(key) else { return Ok(Vec::new()) };
    let items = named(&at, list)?.need("objects")?.called(at.path()).array()?;
    items.iter().map(|at| named(at, item)).collect()
}
