//! What is rendered from the chart for those who do not use it: the Kustomize bases, which are the chart with
//! its defaults, and a PodMonitor and alerts for Prometheus.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    chart::{self, Release},
    clients::KUBECTL,
    failure::{Failure, OrFail as _},
    files::{self, Written},
    run::{Step, say},
    workspace::Workspace,
};

const FOLDER: &str = "deploy/kustomize";
/// The files for Prometheus, beside those that the chart does not have.
pub(crate) const MONITORING: &str = "deploy/monitoring";
const MONITORS: &str = "monitoring.yaml";
const NAMESPACE: &str = "ferrule-system";
const HEAD: &str = "# Rendered from deploy/chart by `cargo xtask chart`: change the chart instead.\n";

/// Writes all files.
///
/// # Errors
/// If the chart cannot be rendered, or a file not be written.
pub(crate) fn write(ws: &Workspace) -> Result<()> {
    for (path, content) in files(ws)? {
        if files::replace_if_changed(&ws.root.join(&path), content.as_bytes())? == Written::Changed {
            say(format!("{}: written", path.display()));
        }
    }
    Ok(())
}

/// Compares what kubectl's own Kustomize makes of each base with the files that the base names.
///
/// # Errors
/// If kubectl cannot be installed, refuses a base, or renders other objects.
pub(crate) fn check(ws: &Workspace) -> Result<()> {
    let kubectl = KUBECTL.find(ws)?;
    for (path, content) in files(ws)?.iter().filter(|(path, _)| path.starts_with(FOLDER)) {
        let base = path.parent().unwrap_or(path);
        let doing = format!("comparing what kubectl renders of {}", base.display());
        let remedy = format!("correct {}", base.join("kustomization.yaml").display());
        say(&doing);
        let build = Step::new(&kubectl, &*doing, &*remedy).current_dir(&ws.root);
        let built = build.arg("kustomize").arg(base).ask()?;
        if let Some(object) = chart::difference(content, &built).or_fail(&*doing, &*remedy)? {
            let why = format!("{object} differs from {}", path.display());
            return Err(Failure { attempted: doing, why, remedy }.into());
        }
    }
    Ok(())
}

/// The generated files, and their contents.
fn files(ws: &Workspace) -> Result<Vec<(PathBuf, String)>> {
    let only = |name: &str, values: Value| -> Result<String> {
        let release = Release { namespace: NAMESPACE.to_owned(), values };
        let rendered = chart::render(ws, &release)?;
        let wanted: Vec<_> = rendered.into_iter().filter(|(it, _)| name.is_empty() || *it == name).collect();
        Ok(format!("{HEAD}{}", chart::join(&wanted)))
    };
    let namespace = json!({ "namespace": { "create": true } });
    let file = |name: &str| PathBuf::from(FOLDER).join(name);
    let monitoring = |name: &str| PathBuf::from(MONITORING).join(name);
    let scraped = json!({ "metrics": { "host": "0.0.0.0", "podMonitor": true } });
    let rules = only(MONITORS, json!({ "metrics": { "rules": true } }))?;
    Ok(vec![
        (file("base/ferrule.yaml"), only("", namespace)?),
        (file("kuryr/kuryr.yaml"), only("kuryr.yaml", json!({ "kuryr": true }))?),
        (file("uninstall/agent.yaml"), only("agent.yaml", json!({ "uninstall": true }))?),
        (monitoring("podmonitor.yaml"), only(MONITORS, scraped)?),
        (monitoring("rules.yaml"), format!("{HEAD}{}", spec(&rules))),
    ])
}

/// The lines below `spec` of an object, for programs that read no objects of Kubernetes.
fn spec(object: &str) -> String {
    let (_, spec) = object.split_once("\nspec:\n").unwrap_or_default();
    spec.lines().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line))).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_bases_are_the_rendered_chart() {
        let ws = Workspace::find().unwrap();
        for (path, content) in files(&ws).unwrap() {
            let committed = fs::read_to_string(ws.root.join(&path)).unwrap_or_default();
            assert!(committed == content, "{} is stale: run `cargo xtask chart`", path.display());
        }
    }

    #[test]
    fn every_kustomization_names_files_that_exist() {
        let folder = Workspace::find().unwrap().root.join(FOLDER);
        for name in ["base", "kuryr", "uninstall"] {
            let text = fs::read_to_string(folder.join(name).join("kustomization.yaml")).unwrap();
            let kustomization: Value = serde_saphyr::from_str(&text).unwrap();
            let resources = kustomization["resources"].as_array().unwrap();
            assert!(!resources.is_empty(), "{name}");
            for resource in resources {
                let path = folder.join(name).join(resource.as_str().unwrap());
                assert!(path.exists(), "{}", path.display());
            }
        }
    }
}
