//! Images that nodes cannot pull. The kubelet retries, and the image may appear meanwhile: a mirror gets it,
//! or the user imports it on the node. So a roll-out reports such a pull and goes on until its deadline.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
};

use anyhow::Result;
use serde_json::Value;

use super::kubectl::{Kubectl, PATIENCE, SELECTOR};
use crate::{failure::Failure, run::say};

/// What kubelets say of their pulls.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    /// The failing pulls, by pod and container.
    failing: BTreeMap<(String, String), Pull>,
}

/// A failing pull.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pull {
    image: String,
    node: String,
    /// The kubelet's words.
    reason: String,
    message: String,
}

/// The kubelet waits for its next attempt.
const BACK_OFF: &str = "ImagePullBackOff";
/// No image can appear under such a name.
const HOPELESS: &str = "InvalidImageName";
/// A kubelet that has not tried yet, or has begun again.
const BEGINNING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// What a kubelet says of an attempt (`pkg/kubelet/images/types.go`).
const FAILURES: [&str; 6] = [
    "ErrImagePull",
    BACK_OFF,
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];
/// Pulls that an error describes; the others are counted.
const DESCRIBED: usize = 5;
const REMEDY: &str = "push the image, correct --image, or name the registry's credentials (image.pullSecrets, for --values); \
                      without a registry, import the image on every node, see docs/install.md. The kubelets go on trying: \
                      run the command again to wait for them, with a longer --timeout if need be. Agents on other nodes \
                      run on";

// === impl Pulls ===

impl Pulls {
    /// Looks at the agents' pods, and says which pulls have begun to fail, and which no longer do.
    ///
    /// # Errors
    /// If no retry can succeed. A list that fails is not judged: the next one may succeed.
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
        pods.map_or(Ok(Vec::new()), |pods| self.judge(&pods))?.into_iter().for_each(say);
        Ok(())
    }

    /// Takes note of a list of pods, and returns what is new.
    ///
    /// # Errors
    /// If no retry can succeed.
    pub(super) fn judge(&mut self, pods: &Value) -> Result<Vec<String>> {
        let mut news = Vec::new();
        let before = mem::take(&mut self.failing);
        let mut seen = BTreeSet::new();
        for pod in pods.pointer("/items").and_then(Value::as_array).into_iter().flatten() {
            let (name, node) = (text(pod, "/metadata/name"), text(pod, "/spec/nodeName"));
            let containers = ["/status/initContainerStatuses", "/status/containerStatuses"]
                .into_iter()
                .filter_map(|path| pod.pointer(path)?.as_array())
                .flatten();
            for container in containers {
                let key = (name.clone(), text(container, "/name"));
                let pull = Pull {
                    image: text(container, "/image"),
                    node: node.clone(),
                    reason: text(container, "/state/waiting/reason"),
                    message: text(container, "/state/waiting/message"),
                };
                if pull.reason == HOPELESS {
                    self.failing.clear();
                    let attempted = "waiting for the agents' image".to_owned();
                    let why = format!("{pull}; no retry can succeed");
                    return Err(Failure { attempted, why, remedy: REMEDY.to_owned() }.into());
                }
                seen.insert(key.clone());
                let earlier = before.get(&key).filter(|it| it.image == pull.image);
                let pull = match (earlier, pull.reason.as_str()) {
                    (Some(earlier), reason) if BEGINNING.contains(&reason) => earlier.clone(),
                    (_, reason) if !FAILURES.contains(&reason) => continue,
                    (Some(earlier), BACK_OFF) => pull.after(earlier),
                    (Some(_), _) => pull,
                    (None, _) => {
                        news.push(format!("{pull}; its kubelet retries"));
                        pull
                    }
                };
                self.failing.insert(key, pull);
            }
        }
        // A pod that is gone has pulled nothing.
        let ended = before.iter().filter(|(key, _)| seen.contains(*key) && !self.failing.contains_key(*key));
        news.extend(
            ended.map(|(_, Pull { image, node, .. })| format!("the node {node} has the image {image}")),
        );
        Ok(news)
    }

    /// The error of a roll-out that has ended without success, with the failing pulls as its reason, if there
    /// are any.
    pub(super) fn blamed(&self, other: anyhow::Error) -> anyhow::Error {
        if self.failing.is_empty() {
            return other;
        }
        let failing: Vec<&Pull> = self.failing.values().collect();
        match other.downcast::<Failure>() {
            Ok(Failure { attempted, why, .. }) => {
                let why = format!("{}\n         {why}", described(&failing));
                Failure { attempted, why, remedy: REMEDY.to_owned() }.into()
            }
            Err(other) => other,
        }
    }
}

fn described(pulls: &[&Pull]) -> String {
    let described: Vec<String> = pulls.iter().take(DESCRIBED).map(ToString::to_string).collect();
    let more = match pulls.len().saturating_sub(DESCRIBED) {
        0 => String::new(),
        more => format!("\n         and {more} more nodes"),
    };
    format!("{}{more}", described.join("\n         "))
}

fn text(of: &Value, path: &str) -> String {
    of.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

// === impl Pull ===

impl Pull {
    /// This one, which waits for the next attempt, or `earlier` if that tells more: kubelets before 1.32 do
    /// not repeat the reason of the last attempt.
    fn after(self, earlier: &Self) -> Self {
        let says_it = earlier.reason == BACK_OFF || self.message.contains(&earlier.message);
        if says_it { self } else { earlier.clone() }
    }
}

impl fmt::Display for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, node, reason, message } = self;
        write!(f, "the node {node} cannot pull the image {image}: {reason}: {message}")
    }
}
