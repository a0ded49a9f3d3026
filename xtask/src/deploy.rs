//! Deployment to a cluster, and removal from it.

mod kubectl;
mod options;
mod pulls;

use anyhow::Result;
use serde_json::json;

pub(crate) use self::options::Deploy;
use self::{
    kubectl::{Kubectl, SELECTOR},
    pulls::Pulls,
};
use crate::{
    chart::{self, Release},
    failure::Failure,
    files,
    progress::Stages,
    run::say,
    workspace::Workspace,
};

/// What the chart calls the agents.
const AGENTS: &str = "daemonset/ferrule-agent";
/// The first minor version of Kubernetes 1 that has everything in the chart.
const KUBERNETES: u32 = 30;

/// Renders the chart, applies it with kubectl, and waits until the agents are ready; or the other way round.
///
/// # Errors
/// If something is not there, or the cluster rejects the manifests.
pub(crate) fn deploy(ws: &Workspace, deploy: &Deploy) -> Result<()> {
    let release = deploy.release()?;
    if deploy.dry_run {
        print!("{}", chart::join(&chart::render(ws, &removing(&release, deploy.uninstall))?));
        return Ok(());
    }
    // Before anything is asked of the cluster.
    chart::render(ws, &release)?;
    let kubectl = Kubectl::find(ws, deploy)?;
    kubectl.check(KUBERNETES)?;
    if deploy.uninstall {
        uninstall(ws, &kubectl, release, deploy.image.is_some())
    } else {
        install(ws, &kubectl, &release)
    }
}

fn install(ws: &Workspace, kubectl: &Kubectl, release: &Release) -> Result<()> {
    let mut stages = Stages::of(3);
    stages.run("applying the chart", || apply(ws, kubectl, &chart::render(ws, release)?, &[]))?;
    let waiting = "waiting for the agents";
    stages.run(waiting, || roll_out(kubectl, release, waiting))?;
    let listing = "listing the agents";
    stages.run(listing, || {
        let list = kubectl.step(listing, "run the command again");
        list.args(["--namespace", &release.namespace, "get", AGENTS]).run()
    })
}

/// The templates of the namespace and of the agents.
const NAMESPACE: &str = "namespace.yaml";
const AGENTS_TEMPLATE: &str = "agent.yaml";

/// Replaces the agents by those that clean their nodes, waits until all nodes are clean, and deletes
/// everything.
fn uninstall(ws: &Workspace, kubectl: &Kubectl, mut release: Release, is_image_given: bool) -> Result<()> {
    let namespace = release.namespace.clone();
    let image = kubectl
        .step("asking for the deployed image", "check that you may read DaemonSets")
        .args(["--namespace", &namespace, "get", AGENTS, "--ignore-not-found"])
        .args(["--output", "jsonpath={.spec.template.spec.containers[0].image}"])
        .ask()?;
    if image.trim().is_empty() {
        return Err(Failure {
            attempted: "uninstalling".to_owned(),
            why: format!("the namespace {namespace} has no {AGENTS}"),
            remedy: "give the --namespace, --context and --kubeconfig of the deployment".to_owned(),
        }
        .into());
    }
    if !is_image_given {
        chart::merge(&mut release.values, &options::image(image.trim()));
    }
    let cleaning = removing(&release, true);
    let mut stages = Stages::of(3);
    stages.run("replacing the agents by those that clean", || {
        let mut agents = chart::render(ws, &cleaning)?;
        agents.retain(|(name, _)| *name == AGENTS_TEMPLATE);
        // What others have changed of the agents, with `kubectl set image` for example, ends with them.
        apply(ws, kubectl, &agents, &["--force-conflicts"])
    })?;
    let waiting = "waiting until all nodes are clean";
    stages.run(waiting, || roll_out(kubectl, &cleaning, waiting))?;
    let path = &kubectl.manifests;
    let mut rendered = chart::render(ws, &release)?;
    // Others may use the namespace, whose deletion would delete all that is in it.
    rendered.retain(|(name, _)| *name != NAMESPACE);
    files::replace_if_changed(path, chart::join(&rendered).as_bytes())?;
    let deleting = "deleting the manifests";
    stages.run(deleting, || {
        let delete = kubectl.step(deleting, "run the command again; the nodes are clean");
        delete.args(["delete", "--ignore-not-found", "--filename"]).arg(path).run()
    })?;
    say(format!("the nodes are clean, and the cluster has nothing of Ferrule but the namespace {namespace}"));
    Ok(())
}

fn apply(ws: &Workspace, kubectl: &Kubectl, rendered: &[(&str, String)], flags: &[&str]) -> Result<()> {
    let path = &kubectl.manifests;
    files::replace_if_changed(path, chart::join(rendered).as_bytes())?;
    let remedy = "read the messages above. On a conflict, another writer has changed a field: put the change into a file \
                  for --values, or discard it with `kubectl apply --server-side --force-conflicts -f target/deploy.yaml`";
    kubectl
        .step(format!("applying {}", ws.show(path)), remedy)
        .args(["apply", "--server-side"])
        .args(flags)
        .arg("--filename")
        .arg(path)
        .run()
}

/// Shows the progress of the roll-out; if it fails, shows the agents that are not ready. The error names the
/// nodes that cannot pull the image, if any: they are what the roll-out waits for.
fn roll_out(kubectl: &Kubectl, release: &Release, doing: &str) -> Result<()> {
    let namespace = &release.namespace;
    let show = kubectl.shown();
    let remedy = format!(
        "see why: `{show} --namespace {namespace} describe pods`, and `{show} --namespace {namespace} logs {AGENTS}`"
    );
    let mut pulls = Pulls::default();
    let outcome = kubectl
        .step(doing, remedy)
        .args(["--namespace", namespace, "rollout", "status", AGENTS, "--timeout", kubectl.timeout()])
        .run_while(kubectl.every, || pulls.check(kubectl, namespace));
    if outcome.is_err() {
        // The error of the roll-out is the one to report.
        let _ = kubectl
            .step("listing the agents' pods", "")
            .args(["--namespace", namespace, "get", "pods", "--selector", SELECTOR, "--output", "wide"])
            .run();
    }
    outcome.map_err(|error| pulls.blamed(error))
}

/// The same release, with agents that clean their nodes.
fn removing(release: &Release, uninstall: bool) -> Release {
    let mut release = release.clone();
    chart::merge(&mut release.values, &json!({ "uninstall": uninstall }));
    release
}

#[cfg(test)]
mod tests;
