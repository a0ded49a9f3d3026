//! Deploying to a cluster.

use anyhow::Result;
use clap::Args;

use crate::{
    failure::Failure,
    files,
    image::VERSION,
    manifests::{self, Values},
    run::Step,
    tools,
    workspace::Workspace,
};

/// Where to deploy, and what.
#[derive(Debug, Args)]
pub(crate) struct Deploy {
    /// Print the manifests, and apply nothing
    #[arg(long)]
    dry_run: bool,
    /// The image, as the nodes are to pull it [default: ferrule:<version>]
    #[arg(long, value_name = "REF")]
    image: Option<String>,
    /// The namespace that the agents are in
    #[arg(long, value_name = "NS", default_value = "ferrule-system")]
    namespace: String,
    /// Who may write VIFs on pods [default: system:serviceaccount:<namespace>:vif-controller]
    #[arg(long, value_name = "USER")]
    vif_controller: Option<String>,
    /// Let the agents read Kuryr's KuryrPort objects
    #[arg(long)]
    with_kuryr: bool,
}

/// How long the agents may take. The nodes pull the image meanwhile.
const ROLLOUT: &str = "10m";

/// Renders the manifests, applies them with kubectl, and waits until the agents are ready.
///
/// # Errors
/// If they cannot be rendered, there is no kubectl, or the cluster refuses.
pub(crate) fn deploy(ws: &Workspace, deploy: Deploy) -> Result<()> {
    let namespace = deploy.namespace;
    let controller = || format!("system:serviceaccount:{namespace}:vif-controller");
    let values = Values {
        image: deploy.image.unwrap_or_else(|| format!("ferrule:{VERSION}")),
        vif_controller: deploy.vif_controller.unwrap_or_else(controller),
        namespace: namespace.clone(),
        with_kuryr: deploy.with_kuryr,
    };
    let rendered = manifests::render(ws, &values)?;
    if deploy.dry_run {
        print!("{rendered}");
        return Ok(());
    }
    if !tools::is_there("kubectl") {
        return Err(Failure {
            attempted: "applying the manifests".to_owned(),
            why: "there is no program kubectl".to_owned(),
            remedy: "install kubectl and give it a kubeconfig; or print the manifests here with --dry-run, and apply \
                     them where there is one: `kubectl apply --server-side -f FILE`"
                .to_owned(),
        }
        .into());
    }
    // In a file, so that what was applied can be looked at.
    let path = ws.root.join("target/deploy.yaml");
    files::replace_if_changed(&path, rendered.as_bytes())?;
    let remedy = "see what it says, above: a cluster that cannot be reached is a matter of your kubeconfig, a conflict \
                  means that somebody has changed a field by hand (put it into deploy/, or give it up by `kubectl apply \
                  --server-side --force-conflicts -f target/deploy.yaml`)";
    kubectl(&format!("applying {}", ws.show(&path)), remedy)
        .args(["apply", "--server-side", "-f"])
        .arg(&path)
        .run()?;
    let remedy = format!(
        "see why: `kubectl --namespace {namespace} describe pods`, and `kubectl --namespace {namespace} logs \
         daemonset/ferrule-agent`"
    );
    kubectl("waiting for the agents", &remedy)
        .args([
            "--namespace",
            &namespace,
            "rollout",
            "status",
            "daemonset/ferrule-agent",
            "--timeout",
            ROLLOUT,
        ])
        .run()
}

fn kubectl(doing: &str, remedy: &str) -> Step {
    Step::new("kubectl", doing, remedy)
}
