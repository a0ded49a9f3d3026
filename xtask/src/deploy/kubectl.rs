//! kubectl, the cluster that it talks to, and whether both are there.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use anyhow::Result;
use serde_json::Value;

use super::Deploy;
use crate::{
    failure::{Failure, OrFail as _},
    run::Step,
    tools,
    workspace::Workspace,
};

/// kubectl, with the flags that choose the cluster.
#[derive(Debug)]
pub(super) struct Kubectl {
    pub(super) program: PathBuf,
    pub(super) cluster: Vec<OsString>,
    pub(super) context: Option<String>,
    pub(super) timeout: String,
    /// How often the pods of a roll-out are inspected.
    pub(super) every: Duration,
    /// Where manifests are written before kubectl reads them, so that they can be inspected.
    pub(super) manifests: PathBuf,
}

/// The label of the agents' pods.
pub(super) const SELECTOR: &str = "app.kubernetes.io/name=ferrule-agent";
/// How long a question to the cluster may take.
pub(super) const PATIENCE: &str = "--request-timeout=15s";
const EVERY: Duration = Duration::from_secs(5);

// === impl Kubectl ===

impl Kubectl {
    /// # Errors
    /// If kubectl or the kubeconfig is missing.
    pub(super) fn find(ws: &Workspace, deploy: &Deploy) -> Result<Self> {
        if !tools::is_there("kubectl") {
            let remedy = "install kubectl; or print the manifests here with --dry-run, and apply them where there is one: \
                          `kubectl apply --server-side -f FILE`";
            return Err(missing("looking for kubectl", "kubectl is not in PATH", remedy));
        }
        let mut cluster = Vec::new();
        if let Some(path) = &deploy.kubeconfig {
            if !path.is_file() {
                let why = format!("{} is not a file", path.display());
                return Err(missing("reading the kubeconfig", &why, "correct --kubeconfig"));
            }
            cluster.extend(["--kubeconfig".into(), path.into()]);
        }
        if let Some(context) = &deploy.context {
            cluster.extend(["--context".into(), context.into()]);
        }
        let (context, timeout) = (deploy.context.clone(), deploy.timeout.clone());
        let manifests = ws.root.join("target/deploy.yaml");
        Ok(Self { program: "kubectl".into(), cluster, context, timeout, every: EVERY, manifests })
    }

    /// Checks that the context exists, the cluster answers, and is not older than 1.`minor`.
    ///
    /// # Errors
    /// If one of them does not hold.
    pub(super) fn check(&self, minor: u32) -> Result<()> {
        if let Some(context) = &self.context {
            let known = self
                .step("listing the contexts of the kubeconfig", "correct the kubeconfig")
                .args(["config", "get-contexts", "--output", "name"])
                .ask()?;
            if !known.lines().any(|name| name == context) {
                let names: Vec<&str> = known.lines().collect();
                let why = format!("the kubeconfig has no context {context:?}, only: {}", names.join(", "));
                return Err(missing("choosing the cluster", &why, "correct --context or --kubeconfig"));
            }
        }
        let remedy = "check that the kubeconfig names the right cluster (--kubeconfig, --context), that it runs, and that \
                      your credentials are valid";
        let doing = "asking the cluster for its version";
        let version = self.step(doing, remedy).args(["get", "--raw", "/version", PATIENCE]).ask()?;
        let version: Value = serde_json::from_str(&version).or_fail(doing, remedy)?;
        if minor_of(&version).is_some_and(|it| it >= minor) {
            return Ok(());
        }
        let runs = version.get("gitVersion").and_then(Value::as_str).unwrap_or("an unknown version");
        let why = format!("the cluster runs {runs}, and the manifests need 1.{minor}");
        Err(missing(doing, &why, "upgrade the cluster"))
    }

    /// Runs kubectl against the cluster.
    pub(super) fn step(&self, doing: impl Into<String>, remedy: impl Into<String>) -> Step {
        Step::new(&self.program, doing, remedy).args(&self.cluster)
    }

    pub(super) fn timeout(&self) -> &str {
        &self.timeout
    }

    /// The start of a command line for people.
    pub(super) fn shown(&self) -> String {
        let cluster = self.cluster.iter().map(|arg| format!(" {}", arg.to_string_lossy()));
        format!("kubectl{}", cluster.collect::<String>())
    }
}

/// The minor version; some providers append a plus sign.
fn minor_of(version: &Value) -> Option<u32> {
    let minor = version.get("minor")?.as_str()?;
    minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

fn missing(attempted: &str, why: &str, remedy: &str) -> anyhow::Error {
    Failure { attempted: attempted.to_owned(), why: why.to_owned(), remedy: remedy.to_owned() }.into()
}
