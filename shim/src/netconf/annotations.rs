//! The pod's annotations, which the runtime passes if the network configuration declares the capability.
//!
//! The runtime passes all annotations of the pod; the shim forwards only those that the agent reads.

use std::collections::HashMap;

use ferrule_proto::{
    annotations::{CONFIG_SOURCE, KURYR_VIF, VIF},
    cni::Annotations,
    quoted::Quoted,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::field::refuse_with;
use crate::error::CniError;

/// Bytes: Kubernetes' limit for all annotations of an object.
const MAX_VALUE: usize = 256 * 1024;

const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

#[derive(Deserialize)]
struct RuntimeConfig<'a> {
    #[serde(borrow, rename = "io.kubernetes.cri.pod-annotations")]
    annotations: Option<&'a RawValue>,
}

/// Parses the annotations in `runtimeConfig`. `None` means that the runtime does not pass annotations, not
/// that the pod has none.
///
/// # Errors
/// If `runtimeConfig` or the annotations are not an object, if an annotation is not a string, or if a
/// forwarded one is too long.
pub(super) fn parse(runtime_config: Option<&RawValue>) -> Result<Option<Annotations>, CniError> {
    let Some(raw) = runtime_config else { return Ok(None) };
    // Serde accepts an array in place of a struct.
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

/// The value of an annotation, if the agent reads that annotation.
fn value(key: &str, raw: &RawValue) -> Result<Option<String>, CniError> {
    let refuse = |problem| refuse(CAPABILITY, format_args!("annotation {} {problem}", Quoted(key)));
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
    refuse(name, format_args!("found {}, expected an object", Quoted(raw.get())))
}

fn refuse(name: &str, reason: impl std::fmt::Display) -> CniError {
    refuse_with(name, reason, "the runtime must pass the pod's annotations as an object of strings")
}
