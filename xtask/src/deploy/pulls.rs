//! Images that nodes cannot pull: a roll-out would wait for them until its deadline.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use super::{
    SELECTOR,
    kubectl::{Kubectl, PATIENCE},
};
use crate::failure::Failure;

/// What kubelets have said of their pulls.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    /// Why the first attempt failed, by pod: kubelets before 1.32 do not repeat the reason.
    first: BTreeMap<String, String>,
}

const FIRST_FAILURE: &str = "ErrImagePull";
/// The second attempt has failed, too, or none can succeed.
const HOPELESS: [&str; 3] = ["ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];

// === impl Pulls ===

impl Pulls {
    /// Looks at the agents' pods.
    ///
    /// # Errors
    /// If a node cannot pull the image. A list that fails is not judged: the next one may succeed.
    pub(super) fn check(&mut self, kubectl: &Kubectl, namespace: &str) -> Result<()> {
        let list = kubectl
            .step("looking at the agents' pods", "")
            .args([
                "--namespace",
                namespace,
                "get",
                "pods",
                "--selector",
                SELECTOR,
                "--output",
                "json",
                PATIENCE,
            ])
            .ask();
        let pods = list.ok().and_then(|text| serde_json::from_str(&text).ok());
        pods.map_or(Ok(()), |pods| self.judge(&pods))
    }

    /// # Errors
    /// If a node cannot pull the image.
    pub(super) fn judge(&mut self, pods: &Value) -> Result<()> {
        for pod in pods.pointer("/items").and_then(Value::as_array).into_iter().flatten() {
            let text = |of: &Value, path: &str| {
                of.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let name = text(pod, "/metadata/name");
            let containers = ["/status/initContainerStatuses", "/status/containerStatuses"]
                .into_iter()
                .filter_map(|path| pod.pointer(path)?.as_array())
                .flatten();
            for container in containers {
                let reason = text(container, "/state/waiting/reason");
                let message = text(container, "/state/waiting/message");
                if reason == FIRST_FAILURE {
                    self.first.insert(name.clone(), message);
                } else if HOPELESS.contains(&reason.as_str()) {
                    let (image, node) = (text(container, "/image"), text(pod, "/spec/nodeName"));
                    return Err(refused(&image, &node, &reason, &message, self.first.get(&name)).into());
                }
            }
        }
        Ok(())
    }
}

fn refused(image: &str, node: &str, reason: &str, message: &str, first: Option<&String>) -> Failure {
    let first = first.filter(|first| !message.contains(first.as_str()));
    let first = first.map(|first| format!("; before: {first}")).unwrap_or_default();
    Failure {
        attempted: format!("pulling the image {image} on the node {node}"),
        why: format!("{reason}: {message}{first}"),
        remedy: "push the image, correct --image, or name the registry's credentials (image.pullSecrets, for --values); \
                 without a registry, import the image on every node, see docs/install.md. Agents on other nodes run on"
            .to_owned(),
    }
}
