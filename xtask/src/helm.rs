//! helm itself, which must render the chart to the same objects as [`crate::chart`].

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    chart::{self, Release},
    clients::HELM,
    failure::{Failure, OrFail as _},
    files,
    run::{Step, say},
    workspace::Workspace,
};

/// Lints the chart, and compares what helm renders with our own rendering.
///
/// # Errors
/// If helm cannot be installed, refuses the chart, or renders other objects.
pub(crate) fn check(ws: &Workspace) -> Result<()> {
    let helm = HELM.find(ws)?;
    let remedy = format!("correct {}", chart::FOLDER);
    Step::new(&helm, "checking the chart with helm", &remedy)
        .current_dir(&ws.root)
        .args(["lint", "--strict", "--quiet", chart::FOLDER])
        .run()?;
    for (number, values) in (1..).zip(cases()) {
        let doing = format!("comparing helm's rendering with ours, values {number}");
        say(&doing);
        let path = ws.root.join(format!("target/helm-values-{number}.json"));
        files::replace_if_changed(&path, values.to_string().as_bytes())?;
        let release = Release { namespace: "net".to_owned(), values };
        let ours = chart::join(&chart::render(ws, &release)?);
        let theirs = Step::new(&helm, &*doing, &*remedy)
            .current_dir(&ws.root)
            .args(["template", "ferrule", chart::FOLDER, "--namespace", "net", "--values"])
            .arg(&path)
            .ask()?;
        if let Some(object) = chart::difference(&ours, &theirs).or_fail(&*doing, &*remedy)? {
            let why = format!("{object} differs, with the values in {}", ws.show(&path));
            let remedy =
                "use functions of helm in the chart as xtask/src/chart/functions.rs has them".to_owned();
            return Err(Failure { attempted: doing, why, remedy }.into());
        }
    }
    Ok(())
}

/// Values that reach every branch of the templates.
fn cases() -> [Value; 3] {
    let mut everything = json!({
        "agent": { "vif_timeout": 7, "vif_cidr": ["10.0.0.0/8"], "self_heal": "off", "max_policy_peers": 2_000_000,
                   "single_node": true, "log": "warn,a<b&c=debug" },
        "image": { "repository": "a.example:5/b", "digest": format!("sha256:{}", "a".repeat(64)),
                   "pullSecrets": ["one", "two"] },
        "kuryr": true,
        "node": { "cniBinDir": "/var/lib/cni/bin" },
        "seLinuxOptions": { "type": "spc_t" },
        "apiServer": { "host": "api.example" },
        "http": { "port": 9999 },
        "metrics": { "host": "0.0.0.0", "certificateSecret": "metrics", "podMonitor": true, "rules": true,
                     "runbookUrl": "https://wiki.example/runbooks.html", "labels": { "release": "monitoring" },
                     "serverName": "agents.ferrule.example", "interval": "1m" },
        "podLabels": { "a": "b" },
        "podAnnotations": { "c": "d\"e" },
        "affinity": { "nodeAffinity": {} },
        "maxUnavailable": 3,
        "namespace": { "create": true },
    });
    let installed = everything.clone();
    chart::merge(&mut everything, &json!({ "uninstall": true }));
    [json!({}), installed, everything]
}

/// Lets helm read a packed chart.
///
/// # Errors
/// If helm refuses it.
pub(crate) fn accept(ws: &Workspace, packed: &Path) -> Result<()> {
    let remedy = format!("compare with what `helm package {}` makes", chart::FOLDER);
    let render = Step::new(HELM.find(ws)?, format!("rendering {} with helm", ws.show(packed)), remedy);
    render.args(["template", "ferrule"]).arg(packed).ask().map(drop)
}
