//! Values against a schema: the one thing in xtask that needs a large dependency, which is optional.

use serde_json::Value;

/// Where the values do not fit the schema, and why.
///
/// # Errors
/// If the schema is wrong.
#[cfg(feature = "schema")]
pub(super) fn errors(schema: &Value, values: &Value) -> anyhow::Result<Vec<String>> {
    let validator = jsonschema::validator_for(schema).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(validator.iter_errors(values).map(|it| format!("{}: {it}", it.instance_path())).collect())
}

/// Never called: without the feature, the commands that come here start xtask again with it.
#[cfg(not(feature = "schema"))]
pub(super) fn errors(_: &Value, _: &Value) -> anyhow::Result<Vec<String>> {
    anyhow::bail!("this xtask was compiled without its feature `schema`")
}
