//! Takes back what [`super::announce`] has said on the own Node object, when the agent is uninstalled.
//!
//! The condition `NetworkUnavailable` is removed, not set to True: not every network clears it, and the taint
//! that Kubernetes derives from True would keep pods off for good. Without a condition, a cloud that wants
//! one sets it again. The condition of another program stays.

use serde::Deserialize;
use serde_json::{Value, json};

use super::announce::{REASON, patch};
use crate::{
    api::{Api, ApiError},
    cluster::NETWORK_UNAVAILABLE,
};

/// A Node, without the fields that are not used.
#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Option<Vec<Value>>,
}

/// Removes the condition `NetworkUnavailable` of a Node if an agent has set it. Returns whether one had.
///
/// # Errors
/// If the API server does not answer or refuses, also because the Node has changed meanwhile.
pub async fn retract(api: &Api, node: &str) -> Result<bool, ApiError> {
    let what = format!("read the conditions of the Node {node}");
    let json = match api.get(&what, &format!("/api/v1/nodes/{node}")).await {
        Err(error) if error.is_not_found() => return Ok(false),
        json => json?,
    };
    let invalid = |error: serde_json::Error| ApiError::Invalid { what, why: error.to_string() };
    let found: Node = serde_json::from_slice(&json).map_err(invalid)?;
    let Some(removal) = removal(&found.status.conditions.unwrap_or_default()) else { return Ok(false) };
    let what = format!("remove the condition {NETWORK_UNAVAILABLE} from the Node {node}");
    let path = format!("/api/v1/nodes/{node}/status");
    api.write(&what, patch(path, "application/json-patch+json", &removal)).await?;
    Ok(true)
}

/// Removes the agents' condition from a list, if it is still at its place then.
fn removal(conditions: &[Value]) -> Option<Value> {
    let is = |it: &Value, key: &str, value: &str| it.get(key).and_then(Value::as_str) == Some(value);
    let is_ours = |it: &Value| is(it, "type", NETWORK_UNAVAILABLE) && is(it, "reason", REASON);
    let (at, ours) = conditions.iter().enumerate().find(|(_, it)| is_ours(it))?;
    let path = format!("/status/conditions/{at}");
    Some(json!([
        { "op": "test", "path": path, "value": ours },
        { "op": "remove", "path": path },
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_condition_that_names_the_agents_is_removed() {
        let of = |kind: &str, reason: &str| json!({ "type": kind, "status": "False", "reason": reason });
        let ours = of("NetworkUnavailable", "FerruleIsUp");
        assert_eq!(
            removal(&[of("Ready", "KubeletNotReady"), ours.clone()]),
            Some(json!([
                { "op": "test", "path": "/status/conditions/1", "value": ours },
                { "op": "remove", "path": "/status/conditions/1" },
            ]))
        );
        for others in [of("NetworkUnavailable", "RouteCreated"), of("Ready", "FerruleIsUp"), json!({})] {
            assert_eq!(removal(&[others]), None);
        }
        assert_eq!(removal(&[]), None);
    }
}
