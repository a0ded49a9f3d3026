//! The pod's annotations, which a runtime hands over where the configuration declares the capability.
//!
//! They are all of the pod's; those that tell nothing of its VIF are passed over.

use std::collections::HashMap;

use ferrule_proto::{
    annotations::{CONFIG_SOURCE, KURYR_VIF, VIF},
    cni::{Annotations, error::Code},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{CniError, Shown};

/// The longest value that is handed on, in bytes: Kubernetes takes no more for all annotations of an object.
const MAX_VALUE: usize = 256 * 1024;

const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

#[derive(Deserialize)]
struct RuntimeConfig<'a> {
    #[serde(borrow, rename = "io.kubernetes.cri.pod-annotations")]
    annotations: Option<&'a RawValue>,
}

/// Takes the annotations from `runtimeConfig`. None at all means that the runtime does not hand them over, rather
/// than that the pod has none.
///
/// # Errors
/// If it is not an object, the annotations are not texts, or one of those that are handed on is too long.
pub(super) fn parse(runtime_config: Option<&RawValue>) -> Result<Option<Annotations>, CniError> {
    let Some(raw) = runtime_config else { return Ok(None) };
    // An array would be taken for the fields in their order.
    let object = Some(raw.get()).filter(|text| text.starts_with('{'));
    let config = object.and_then(|text| serde_json::from_str::<RuntimeConfig<'_>>(text).ok());
    let config = config.ok_or_else(|| wrong_type("runtimeConfig", raw))?;
    let Some(raw) = config.annotations else { return Ok(None) };
    let all: HashMap<String, &RawValue> =
        serde_json::from_str(raw.get()).map_err(|_| wrong_type(CAPABILITY, raw))?;

    let mut values = HashMap::new();
    for (key, raw) in all {
        if let Some(value) = value(&key, raw)? {
            values.insert(key, value);
        }
    }
    Ok(Some(Annotations { values }))
}

/// The value of an annotation, if it is to be handed on.
fn value(key: &str, raw: &RawValue) -> Result<Option<String>, CniError> {
    let refuse = |why| refuse(CAPABILITY, format_args!("the annotation {} {why}", Shown(key)));
    if !raw.get().starts_with('"') {
        return Err(refuse("is not a string".to_owned()));
    }
    if ![VIF, KURYR_VIF, CONFIG_SOURCE].contains(&key) {
        return Ok(None);
    }
    let value: String = serde_json::from_str(raw.get()).map_err(|_| refuse("is not a string".to_owned()))?;
    if value.len() > MAX_VALUE {
        return Err(refuse(format!("is longer than {MAX_VALUE} bytes")));
    }
    Ok(Some(value))
}

fn wrong_type(name: &str, raw: &RawValue) -> CniError {
    refuse(name, format_args!("{} is not an object", Shown(raw.get())))
}

fn refuse(name: &str, why: impl std::fmt::Display) -> CniError {
    let msg = format!("reading \"{name}\" of the network configuration: {why}");
    CniError::new(
        Code::InvalidNetworkConfig,
        msg,
        "the runtime must hand over the pod's annotations, each a string",
    )
}
