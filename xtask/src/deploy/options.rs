//! The command line of a deployment, as values of the chart.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::chart::{self, Release};

/// The options of a deployment.
#[derive(Debug, Args)]
pub(crate) struct Deploy {
    /// Print the manifests without applying them
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Clean all nodes, pods' interfaces included, and delete the manifests; with the flags of the deployment
    #[arg(long)]
    pub(super) uninstall: bool,
    /// Kubeconfig of the cluster [default: kubectl's]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Image reference that nodes pull [default: ferrule:<version>]
    #[arg(long, value_name = "REF")]
    pub(super) image: Option<String>,
    /// Namespace of the agents
    #[arg(long, value_name = "NS", default_value = "ferrule-system")]
    pub(super) namespace: String,
    /// Values of the chart, as in deploy/chart/values.yaml; repeatable, the last one counts
    #[arg(long, value_name = "FILE")]
    values: Vec<PathBuf>,
    /// User who may write VIF annotations [default: system:serviceaccount:<namespace>:vif-controller]
    #[arg(long, value_name = "USER")]
    vif_controller: Option<String>,
    /// Let agents read KuryrPort objects
    #[arg(long)]
    with_kuryr: bool,
    /// Deadline of the roll-out, pulling the image included
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    pub(super) timeout: String,
}

// === impl Deploy ===

impl Deploy {
    /// The values: the chart's, then those of the files, then the flags.
    pub(super) fn release(&self) -> Result<Release> {
        let mut values = json!({ "namespace": { "create": true } });
        for path in &self.values {
            chart::merge(&mut values, &chart::values(path)?);
        }
        if let Some(reference) = &self.image {
            chart::merge(&mut values, &image(reference));
        }
        if let Some(user) = &self.vif_controller {
            chart::merge(&mut values, &json!({ "vifController": user }));
        }
        if self.with_kuryr {
            chart::merge(&mut values, &json!({ "kuryr": true }));
        }
        Ok(Release { namespace: self.namespace.clone(), values })
    }
}

/// An image reference as the chart has it: `[HOST[:PORT]/]NAME[:TAG][@DIGEST]`.
pub(super) fn image(reference: &str) -> Value {
    let (name, digest) = reference.split_once('@').unwrap_or((reference, ""));
    // A colon before the last slash is the port of the registry.
    let start = name.rfind('/').map_or(0, |at| at + 1);
    let tag = name.get(start..).and_then(|last| last.find(':')).map(|at| start + at);
    let (repository, tag) = match tag {
        Some(at) => (name.get(..at).unwrap_or(name), name.get(at + 1..).unwrap_or_default()),
        None => (name, ""),
    };
    json!({ "image": { "repository": repository, "tag": tag, "digest": digest } })
}
