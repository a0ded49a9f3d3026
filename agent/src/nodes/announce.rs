//! Tells the cluster that this node serves pods: on the own Node object, the condition `NetworkUnavailable`
//! becomes False, and the start-up taint goes. Not before this node's part of the network works.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Method, Request, header};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::watch::Receiver,
    time::{Instant, sleep},
};

use crate::{
    api::{Api, ApiError},
    backoff::{Backoff, Policy},
    chain::chain,
    cluster::{Marks, NETWORK_UNAVAILABLE, STARTUP_TAINT},
    health::Reporter,
};

/// Patches the own Node object.
pub struct Announcer {
    pub api: Arc<Api>,
    /// The name of the Node.
    pub node: String,
    pub duties: Duties,
    /// What the own Node object says.
    pub marks: Receiver<Marks>,
    /// Of a component that ADD does not need.
    pub health: Reporter,
}

/// What the agent is responsible for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duties {
    /// The start-up taint. Other software routes between the nodes, and sets the condition.
    Taint,
    /// Also the condition `NetworkUnavailable`.
    TaintAndCondition,
}

/// A Node, without the fields that are not used.
#[derive(Deserialize)]
struct Tainted {
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    taints: Option<Vec<Value>>,
}

/// The API server is asked for a patch at most this often, also while other software undoes each.
const BACKOFF: Policy = Policy::new(Duration::from_millis(800), Duration::from_secs(300))
    .with_jitter()
    .reset_after(Duration::from_secs(600));

// === impl Announcer ===

impl Announcer {
    /// Patches the Node when it is due, whenever the agent is ready and has no obstacle: the reason why this
    /// node's part of the network does not work. Never returns.
    pub async fn run(mut self, mut ready: Receiver<bool>, mut obstacle: Receiver<Option<String>>) {
        let (mut backoff, mut was_known) = (Backoff::new(BACKOFF), false);
        loop {
            // The senders are dropped when the agent stops, which is before this task has to end.
            if ready.wait_for(|ready| *ready).await.is_err() {
                std::future::pending::<()>().await;
            }
            let now = *self.marks.borrow_and_update();
            let is_due = self.is_condition_due(&now) || now.has_startup_taint;
            if now.is_known && !is_due {
                self.health.healthy("the Node object says that this node serves pods");
            } else if was_known && !now.is_known {
                self.health.unhealthy(
                    "the Node object was deleted; the kubelet of this node has to create it again",
                );
            }
            was_known |= now.is_known;
            if !is_due {
                follow(&mut self.marks).await;
                continue;
            }
            let found = obstacle.borrow_and_update().clone();
            if let Some(why) = found {
                self.health
                    .unhealthy(format!("this node is not announced: its network does not work: {why}"));
                tokio::select! {
                    () = follow(&mut self.marks) => {}
                    () = follow(&mut obstacle) => {}
                }
                continue;
            }
            let pause = match self.announce(&now).await {
                Ok(()) => {
                    tracing::info!(node = self.node, "the Node object says that this node serves pods");
                    // The watch delivers the change; until then, the Node is as it was.
                    backoff.next(Instant::now())
                }
                Err(error) => {
                    let why = format!("{}{}", chain(&error), error.remedy());
                    self.health.unhealthy(format!("{why}; retrying"));
                    backoff.next_requested(error.retry_after(), Instant::now())
                }
            };
            sleep(pause).await;
        }
    }

    fn is_condition_due(&self, marks: &Marks) -> bool {
        self.duties == Duties::TaintAndCondition
            && marks.is_known
            && marks.is_network_unavailable != Some(false)
    }

    /// The condition first: the taint is the last thing that keeps pods off.
    async fn announce(&self, marks: &Marks) -> Result<(), ApiError> {
        if self.is_condition_due(marks) {
            let path = format!("/api/v1/nodes/{}/status", self.node);
            let what = format!("set the condition {NETWORK_UNAVAILABLE} of the Node {} to False", self.node);
            let kind = "application/strategic-merge-patch+json";
            self.api.write(&what, patch(path, kind, &condition())).await?;
        }
        if marks.has_startup_taint {
            let path = format!("/api/v1/nodes/{}", self.node);
            let what = format!("read the taints of the Node {}", self.node);
            let json = self.api.get(&what, &path).await?;
            let invalid = |error: serde_json::Error| ApiError::Invalid { what, why: error.to_string() };
            let node: Tainted = serde_json::from_slice(&json).map_err(invalid)?;
            let Some(removal) = removal(&node.spec.taints.unwrap_or_default()) else { return Ok(()) };
            let what = format!("remove the taint {STARTUP_TAINT} from the Node {}", self.node);
            self.api.write(&what, patch(path, "application/json-patch+json", &removal)).await?;
        }
        Ok(())
    }
}

/// Waits for the next value.
async fn follow<T>(values: &mut Receiver<T>) {
    if values.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Who has set the condition, for [`super::retract`].
pub(super) const REASON: &str = "FerruleIsUp";

/// The status of a Node whose network works, as far as it differs.
fn condition() -> Value {
    // Whole seconds, as the API has them.
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string();
    json!({ "status": { "conditions": [{
        "type": NETWORK_UNAVAILABLE,
        "status": "False",
        "reason": REASON,
        "message": "Ferrule serves the pods of this node",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }] } })
}

/// Removes the start-up taint, whatever its effect, from a list of taints; `None` if the list has none. The
/// list has no key to merge by: each removal tests that the taint is still at its place.
fn removal(taints: &[Value]) -> Option<Value> {
    let ours = taints.iter().enumerate().filter(|(_, it)| it.get("key") == Some(&STARTUP_TAINT.into()));
    // From the end, so that the places of the others stay.
    let operations = ours.rev().flat_map(|(at, taint)| {
        let path = format!("/spec/taints/{at}");
        [json!({ "op": "test", "path": path, "value": taint }), json!({ "op": "remove", "path": path })]
    });
    let operations: Vec<_> = operations.collect();
    (!operations.is_empty()).then(|| operations.into())
}

pub(super) fn patch(path: String, kind: &'static str, body: &Value) -> Request<Vec<u8>> {
    let mut request = Request::new(body.to_string().into_bytes());
    *request.method_mut() = Method::PATCH;
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    request
}

#[cfg(test)]
mod tests;
