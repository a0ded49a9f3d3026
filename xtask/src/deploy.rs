//! Deployment to a cluster.

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

/// The options of a deployment.
#[derive(Debug, Args)]
pub(crate) struct Deploy {
    /// Print the manifests without applying them
    #[arg(long)]
    dry_run: bool,
    /// Image reference that nodes pull [default: ferrule:<version>]
    #[arg(long, value_name = "REF")]
    image: Option<String>,
    /// Namespace of the agents
    #[arg(long, value_name = "NS", default_value = "ferrule-system")]
    namespace: String,
    /// User who may write VIF annotations [default: system:serviceaccount:<namespace>:vif-controller]
    #[arg(long, value_name = "USER")]
    vif_controller: Option<String>,
    /// Let agents read KuryrPort objects
    #[arg(long)]
    with_kuryr: bool,
}

/// The deadline of the rollout, pulling the image included.
const ROLLOUT: &str = "10m";

/// Renders the manifests, applies them with kubectl, and waits until the agents are ready.
///
/// # Errors
/// If rendering fails, kubectl is missing, or the cluster rejects the manifests.
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
            why: "kubectl is not in PATH".to_owned(),
            remedy: "install kubectl and give it a kubeconfig; or print the manifests here with --dry-run, and apply \
                     them where there is one: `kubectl apply --server-side -f FILE`"
                .to_owned(),
        }
        .into());
    }
    // A file, so that the applied manifests can be inspected.
    let path = ws.root.join("target/deploy.yaml");
    files::replace_if_changed(&path, rendered.as_bytes())?;
    let remedy = "read the messages above. If the cluster is unreachable, correct the kubeconfig. On a conflict, another \
                  writer has changed a field: put the change into deploy/, or discard it with `kubectl apply \
                  --server-side --force-conflicts -f target/deploy.yaml`";
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

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    /// The values of a setting of the systemd unit.
    fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
        let settings =
            unit.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        settings.filter(|(name, _)| *name == key).map(|(_, value)| value).collect()
    }

    #[test]
    fn the_systemd_unit_keeps_the_registry_and_what_the_agent_needs() {
        let folder = Workspace::find().unwrap().root.join("deploy/systemd");
        let unit = fs::read_to_string(folder.join("ferrule-agent.service")).unwrap();
        for (key, expected) in [
            ("Type", "exec"),
            ("ExecStart", "/usr/local/bin/ferrule-agent --standalone"),
            ("RestartPreventExitStatus", "64"),
            ("SuccessExitStatus", "75"),
            ("RuntimeDirectory", "ferrule"),
            ("RuntimeDirectoryMode", "0700"),
            ("RuntimeDirectoryPreserve", "yes"),
            ("LimitMEMLOCK", "infinity"),
            ("TimeoutStopSec", "30"),
            ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
        ] {
            assert_eq!(values(&unit, key), [expected], "{key}");
        }
        let capabilities: Vec<_> =
            values(&unit, "CapabilityBoundingSet").join(" ").split(' ').map(str::to_owned).collect();
        for needed in ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"] {
            assert!(capabilities.iter().any(|it| it == needed), "{needed}");
        }
        for forbidden in
            ["ProtectKernelTunables", "PrivateNetwork", "RestrictNamespaces", "PrivateUsers", "User"]
        {
            assert!(values(&unit, forbidden).is_empty(), "{forbidden}");
        }
        if !tools::is_there("systemd-analyze") {
            return;
        }
        // The agent is not installed here.
        let installed = "/usr/local/bin/ferrule-agent --standalone";
        let dir = std::env::temp_dir().join(format!("ferrule-unit-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let copy = dir.join("ferrule-agent.service");
        fs::write(&copy, unit.replace(installed, "/bin/true")).unwrap();
        let verified = Command::new("systemd-analyze").arg("verify").arg(&copy).output();
        fs::remove_dir_all(&dir).unwrap();
        let verified = verified.unwrap();
        let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && !complaints.contains("ferrule-agent.service"), "{complaints}");
    }
}
