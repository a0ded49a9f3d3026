//! The Helm chart in `deploy/chart`, rendered without helm: the one source of all manifests.
//!
//! The template engine is Go's text/template; the functions are those of helm that the chart uses. `cargo
//! xtask chart` compares the result with helm's own.

mod functions;
mod schema;

use std::{collections::BTreeMap, fs};

use anyhow::Result;
use gotmpl::Template;
use serde_json::{Value, json};

use crate::{
    failure::{Failure, OrFail as _},
    files,
    image::VERSION,
    workspace::Workspace,
};

/// An installation of the chart.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    pub(crate) namespace: String,
    /// What differs from `values.yaml`.
    pub(crate) values: Value,
}

/// The folder of the chart.
pub(crate) const FOLDER: &str = "deploy/chart";
/// The templates, in the order of application: the agents last.
const TEMPLATES: [&str; 7] = [
    "namespace.yaml",
    "rbac.yaml",
    "kuryr.yaml",
    "admission.yaml",
    "config.yaml",
    "monitoring.yaml",
    "agent.yaml",
];
/// Only definitions that the templates include.
const HELPERS: [&str; 2] = ["_helpers.tpl", "_rules.tpl"];

/// Renders the chart: the manifests of each template, without those that are empty.
///
/// # Errors
/// If a file is missing, the values do not fit the schema, or a template is wrong.
pub(crate) fn render(ws: &Workspace, release: &Release) -> Result<Vec<(&'static str, String)>> {
    let mut values = defaults(ws)?;
    merge(&mut values, &release.values);
    check(ws, &values)?;
    let data = json!({
        "Values": values,
        "Release": { "Name": "ferrule", "Namespace": release.namespace },
        "Chart": { "Name": "ferrule", "AppVersion": VERSION },
    });
    let helpers = HELPERS.map(|name| read(ws, &format!("templates/{name}")));
    let helpers = helpers.into_iter().collect::<Result<String>>()?;
    let mut rendered = Vec::new();
    for name in TEMPLATES {
        let text = render_one(name, &read(ws, &format!("templates/{name}"))?, &helpers, &data)
            .or_fail(format!("rendering {FOLDER}/templates/{name}"), "correct the template")?;
        if !text.trim().is_empty() {
            rendered.push((name, text.trim_start_matches('\n').to_owned()));
        }
    }
    Ok(rendered)
}

/// One file for `kubectl apply`.
pub(crate) fn join(rendered: &[(&str, String)]) -> String {
    rendered.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("---\n")
}

/// Reads values from a file in YAML.
///
/// # Errors
/// If the file cannot be read or parsed.
pub(crate) fn values(path: &std::path::Path) -> Result<Value> {
    let doing = format!("reading the values in {}", path.display());
    let text = fs::read_to_string(path).or_fail(&*doing, "name a readable file with --values")?;
    let values: Value = serde_saphyr::from_str(&text).or_fail(&*doing, "write YAML, as in values.yaml")?;
    // A file of comments only.
    Ok(if values.is_null() { json!({}) } else { values })
}

/// Puts `over` over `base`, as helm does: maps are merged, everything else is replaced.
pub(crate) fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

/// The first object, by kind and name, that two renderings do not have in common.
///
/// # Errors
/// If one of them is not YAML.
pub(crate) fn difference(ours: &str, theirs: &str) -> Result<Option<String>> {
    let (ours, theirs) = (objects(ours)?, objects(theirs)?);
    Ok(ours.keys().chain(theirs.keys()).find(|key| ours.get(*key) != theirs.get(*key)).cloned())
}

fn objects(text: &str) -> Result<BTreeMap<String, Value>> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let name = |it: &Value| {
        format!(
            "{} {}",
            it.get("kind").unwrap_or(&Value::Null),
            it.pointer("/metadata/name").unwrap_or(&Value::Null)
        )
    };
    Ok(objects.into_iter().filter(|it| !it.is_null()).map(|it| (name(&it), it)).collect())
}

/// The chart's `values.yaml`.
fn defaults(ws: &Workspace) -> Result<Value> {
    values(&ws.root.join(FOLDER).join("values.yaml"))
}

/// Fails unless the values fit the chart's schema.
fn check(ws: &Workspace, values: &Value) -> Result<()> {
    let attempted = "checking the values against values.schema.json";
    let schema: Value =
        serde_json::from_str(&read(ws, "values.schema.json")?).or_fail(attempted, "correct the schema")?;
    let wrong: String = schema::errors(&schema, values)
        .or_fail(attempted, "correct the schema")?
        .iter()
        .map(|it| format!("\n    {it}"))
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let remedy = format!("see {FOLDER}/values.yaml, which describes every value").clone();
    Err(Failure { attempted: attempted.to_owned(), why: format!("they do not fit:{wrong}"), remedy }.into())
}

fn render_one(name: &str, source: &str, helpers: &str, data: &Value) -> gotmpl::Result<String> {
    let template = Template::new(name).funcs(functions::all(helpers)).parse(helpers)?.parse(source)?;
    template.execute_to_string(&gotmpl::to_value(data)?)
}

fn read(ws: &Workspace, name: &str) -> Result<String> {
    let path = ws.root.join(FOLDER).join(name);
    Ok(String::from_utf8_lossy(&files::read(&path, "restore it from the repository")?).into_owned())
}

#[cfg(test)]
mod tests;
