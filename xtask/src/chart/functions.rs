//! The functions of helm that the chart uses, besides those of Go's templates.

use std::sync::Arc;

use gotmpl::{FuncMap, Template, TemplateError, Value, ValueFunc};
use serde_json::Value as Json;

use crate::oci;

/// All of them; `include` finds its definitions in `helpers`.
pub(super) fn all(helpers: &str) -> FuncMap {
    let helpers: Arc<str> = helpers.into();
    let include = move |args: &[Value]| {
        let [name, data] = exactly(args)?;
        let template = Template::new("include").funcs(all(&helpers)).parse(&helpers)?;
        Ok(text(template.execute_template_to_string(string(name)?, data)?))
    };
    [
        ("include", Arc::new(include) as ValueFunc),
        ("default", Arc::new(default)),
        ("nindent", Arc::new(nindent)),
        ("replace", Arc::new(replace)),
        ("sha256sum", Arc::new(sha256sum)),
        ("toJson", Arc::new(to_json)),
    ]
    .map(|(name, function)| (name.to_owned(), function))
    .into()
}

fn default(args: &[Value]) -> gotmpl::Result<Value> {
    let [default, given] = exactly(args)?;
    Ok(if given.is_truthy() { given.clone() } else { default.clone() })
}

/// A line break, and every line indented.
fn nindent(args: &[Value]) -> gotmpl::Result<Value> {
    let [by, lines] = exactly(args)?;
    let by = by.as_int().and_then(|by| usize::try_from(by).ok()).ok_or_else(|| wrong("nindent", by))?;
    let pad = format!("\n{}", " ".repeat(by));
    Ok(text(string(lines)?.split('\n').map(|line| format!("{pad}{line}")).collect::<String>()))
}

fn replace(args: &[Value]) -> gotmpl::Result<Value> {
    let [old, new, within] = exactly(args)?;
    Ok(text(string(within)?.replace(string(old)?, string(new)?)))
}

fn sha256sum(args: &[Value]) -> gotmpl::Result<Value> {
    let [content] = exactly(args)?;
    let digest = oci::digest(string(content)?.as_bytes());
    Ok(text(digest.trim_start_matches("sha256:").to_owned()))
}

/// As Go writes JSON: HTML's characters are escaped.
fn to_json(args: &[Value]) -> gotmpl::Result<Value> {
    let [value] = exactly(args)?;
    let json = json(value)?.to_string();
    Ok(text(json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")))
}

fn json(value: &Value) -> gotmpl::Result<Json> {
    Ok(match value {
        Value::Nil => Json::Null,
        Value::Bool(it) => (*it).into(),
        Value::Int(it) => (*it).into(),
        Value::Uint(it) => (*it).into(),
        Value::Float(it) => (*it).into(),
        Value::String(it) => (**it).into(),
        Value::List(list) => Json::Array(list.iter().map(json).collect::<gotmpl::Result<_>>()?),
        Value::Map(map) => Json::Object(
            map.iter().map(|(key, it)| Ok((key.to_string(), json(it)?))).collect::<gotmpl::Result<_>>()?,
        ),
        other => return Err(wrong("toJson", other)),
    })
}

fn exactly<const N: usize>(args: &[Value]) -> gotmpl::Result<&[Value; N]> {
    args.try_into().map_err(|_| TemplateError::Exec(format!("{N} arguments expected, not {}", args.len())))
}

fn string(value: &Value) -> gotmpl::Result<&str> {
    value.as_str().ok_or_else(|| wrong("a function of strings", value))
}

fn wrong(what: &str, value: &Value) -> TemplateError {
    TemplateError::Exec(format!("{what} cannot take {}", value.type_name()))
}

fn text(text: String) -> Value {
    Value::String(text.into())
}
