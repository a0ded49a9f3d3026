//! Whether the cluster has one node only, as `--single-node` says: with configured ranges, every further node
//! would give its pods the same addresses.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use tokio::{sync::watch::Sender, time::sleep};

use crate::{
    api::{Api, ApiError},
    chain::chain,
    ipam::{PodCidrs, Ranges},
};

/// A list of Nodes, without the fields that are not used.
#[derive(Debug, Deserialize)]
struct Nodes {
    items: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    metadata: Metadata,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
}

/// Between two looks; a second node may join or leave.
const PERIOD: Duration = Duration::from_secs(300);
/// After a failed request.
const RETRY: Duration = Duration::from_secs(30);
/// Two nodes are enough to know.
const REQUEST: &str = "/api/v1/nodes?limit=2";

/// Withdraws the ranges while the cluster has a second node. Never returns.
pub(super) async fn watch(api: Arc<Api>, configured: PodCidrs, ranges: Sender<Ranges>) {
    let mut is_failing = false;
    loop {
        let wait = match names(&api).await {
            Ok(names) => {
                let now = judge(&names, &configured);
                ranges.send_if_modified(|before| {
                    let changed = *before != now;
                    *before = now;
                    changed
                });
                is_failing = false;
                PERIOD
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot list the nodes, and so cannot tell whether the cluster has one node only; retrying"
                    );
                }
                RETRY
            }
        };
        sleep(wait).await;
    }
}

async fn names(api: &Api) -> Result<Vec<String>, ApiError> {
    let what = "list the nodes";
    let json = api.get(what, REQUEST).await?;
    let nodes: Nodes = serde_json::from_slice(&json)
        .map_err(|error| ApiError::Invalid { what: what.to_owned(), why: error.to_string() })?;
    Ok(nodes.items.into_iter().map(|it| it.metadata.name).collect())
}

fn judge(names: &[String], configured: &PodCidrs) -> Ranges {
    match names {
        [] | [_] => Ranges::Known(configured.clone()),
        [one, other, ..] => Ranges::Withdrawn(format!(
            "--single-node is set, and the cluster has the nodes {one} and {other}: with --pod-cidr {configured}, both \
             give their pods the same addresses; remove both settings, so that each node uses its spec.podCIDRs"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_node_withdraws_the_configured_ranges() {
        let configured = PodCidrs::new(vec!["10.0.0.0/24".parse().unwrap()]).unwrap();
        let judge = |names: &[&str]| {
            judge(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), &configured)
        };
        assert_eq!(judge(&[]), Ranges::Known(configured.clone()));
        assert_eq!(judge(&["a"]), Ranges::Known(configured.clone()));
        let Ranges::Withdrawn(why) = judge(&["a", "b"]) else { panic!("two nodes have one range") };
        assert!(why.contains("the nodes a and b") && why.contains("10.0.0.0/24"), "{why}");
    }
}
