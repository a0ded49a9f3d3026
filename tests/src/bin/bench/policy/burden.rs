//! The objects of a large cluster.

use std::fmt;

use ferrule_tests::{
    apiserver::{ApiServer, Resource, objects},
    cluster::NODE,
};
use serde_json::{Value, json};

use crate::typical;

/// Numbers of objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Burden {
    pub(super) pods: usize,
    pub(super) namespaces: usize,
    pub(super) policies: usize,
    /// Pods of this node, among the others.
    pub(super) local: usize,
}

/// Pods of one Deployment.
const REPLICAS: usize = 5;
const TEAMS: usize = 20;
const PODS_OF_A_NODE: usize = 100;
/// A policy for each twelfth namespace, round and round, so that half of the policies share namespaces.
const STRIDE: usize = 12;

// === impl Burden ===

impl Burden {
    pub(super) fn create(&self, api: &ApiServer) -> anyhow::Result<()> {
        for number in 0..self.namespaces {
            let object = objects::namespace(&namespace(number));
            let object = objects::with_label(object, "team", &format!("team-{}", number % TEAMS));
            api.create(Resource::Namespaces, object)?;
        }
        for number in 0..self.pods {
            api.create(Resource::Pods, self.pod(number))?;
        }
        for number in 0..self.policies {
            let (namespace, name) =
                (namespace(number * STRIDE % self.namespaces), format!("policy-{number}"));
            api.create(Resource::NetworkPolicies, objects::network_policy(&namespace, &name, spec(number)))?;
        }
        Ok(())
    }

    /// Namespace and name of a pod of this node.
    pub(super) fn local(&self, number: usize) -> (String, String) {
        self.name(number * self.stride())
    }

    /// From one pod of this node to the next.
    fn stride(&self) -> usize {
        (self.pods / self.local.max(1)).max(1)
    }

    fn name(&self, number: usize) -> (String, String) {
        let deployment = number / REPLICAS;
        let app = deployment / self.namespaces;
        (namespace(deployment % self.namespaces), format!("app-{app}-5d4f8c7b9d-{number:05x}"))
    }

    fn pod(&self, number: usize) -> Value {
        let is_local = number.is_multiple_of(self.stride()) && number / self.stride() < self.local;
        let node = if is_local { NODE.to_owned() } else { format!("other-{}", number / PODS_OF_A_NODE) };
        let (namespace, name) = self.name(number);
        let deployment = number / REPLICAS;
        let app = deployment / self.namespaces;
        let [_, high, middle, low] = u32::try_from(number).unwrap_or_default().to_be_bytes();
        let ip = format!("10.{}.{middle}.{low}", 64 + u32::from(high));
        let more = json!({
            "metadata": { "labels": {
                "app": format!("app-{app}"), "tier": if app.is_multiple_of(2) { "front" } else { "back" },
                "pod-template-hash": format!("{deployment:010x}"),
            } },
            "status": { "podIP": ip, "podIPs": [{ "ip": ip }] },
        });
        objects::merged(typical::pod(&namespace, &name, &node), &more)
    }
}

impl fmt::Display for Burden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, namespaces, policies, .. } = self;
        write!(f, "{pods} pods, {namespaces} namespaces, {policies} policies")
    }
}

fn namespace(number: usize) -> String {
    format!("namespace-{number}")
}

/// Four kinds in turn: DNS only, pods of the own namespace, another team's namespaces, and pods or a block.
fn spec(number: usize) -> Value {
    match number % 4 {
        0 => json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "egress": [{ "ports": [{ "port": 53, "protocol": "UDP" }] }] }),
        1 => json!({ "podSelector": { "matchLabels": { "tier": "back" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "tier": "front" } } }],
                "ports": [{ "port": "http" }] }] }),
        2 => json!({ "podSelector": {}, "ingress": [{
            "from": [{ "namespaceSelector": { "matchLabels": { "team": format!("team-{}", number % TEAMS) } } }],
            "ports": [{ "port": 8080 }, { "port": 9000, "endPort": 9100 }],
        }] }),
        _ => json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [
            { "to": [{ "namespaceSelector": {},
                "podSelector": { "matchLabels": { "app": format!("app-{}", number % 3) } } }] },
            { "to": [{ "ipBlock": { "cidr": format!("10.{}.0.0/16", number % 256) } }] }] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_pods_are_some_of_all() {
        let burden = Burden { pods: 100, namespaces: 7, policies: 0, local: 9 };
        let of_node = |pod: &Value| pod.pointer("/spec/nodeName") == Some(&NODE.into());
        let pods: Vec<Value> = (0..burden.pods).map(|it| burden.pod(it)).filter(of_node).collect();
        let names: Vec<_> = pods
            .iter()
            .map(|it| {
                ["namespace", "name"].map(|key| it["metadata"][key].as_str().unwrap_or_default().to_owned())
            })
            .collect();
        let expected: Vec<_> =
            (0..9).map(|it| burden.local(it)).map(|(namespace, name)| [namespace, name]).collect();
        assert_eq!(names, expected);
    }
}
