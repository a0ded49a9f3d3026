//! API discovery documents.

use serde_json::{Value, json};

use super::resource::{CLUSTER_POLICIES, ENDPOINTS, Endpoint, GROUPS, version_of};

/// The discovery document at a path, if there is one. `renamed` is another version of ClusterNetworkPolicies.
pub(super) fn answer(
    path: &str,
    renamed: Option<&str>,
    is_served: impl Fn(Endpoint) -> bool,
) -> Option<Value> {
    let version_of =
        |group: &str| renamed.filter(|_| group == CLUSTER_POLICIES).unwrap_or_else(|| version_of(group));
    let group = |name: &str| group(name, version_of(name));
    let groups: Vec<&str> = GROUPS
        .into_iter()
        .filter(|group| ENDPOINTS.into_iter().any(|endpoint| endpoint.group == *group && is_served(endpoint)))
        .collect();
    match path.trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["version"] => Some(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc", "platform": "linux/amd64",
        })),
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [],
        })),
        ["apis"] => Some(json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": groups.into_iter().map(group).collect::<Vec<_>>(),
        })),
        ["apis", name] => groups.contains(name).then(|| group(name)),
        ["api", "v1"] => Some(resources("", "v1")),
        ["apis", name, version] if groups.contains(name) && *version == version_of(name) => {
            Some(resources(name, &format!("{name}/{version}")))
        }
        _ => None,
    }
}

fn group(name: &str, version: &str) -> Value {
    let version = json!({ "groupVersion": format!("{name}/{version}"), "version": version });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": [version], "preferredVersion": version,
    })
}

fn resources(group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for Endpoint { resource, .. } in ENDPOINTS.into_iter().filter(|endpoint| endpoint.group == group) {
        let entry = |name: String, kind: &str, verbs: &[&str]| {
            json!({
                "name": name, "singularName": resource.kind().to_lowercase(), "namespaced": resource.is_namespaced(),
                "kind": kind, "verbs": verbs, "shortNames": short_names(resource.name()),
            })
        };
        let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
        resources.push(entry(resource.name().to_owned(), resource.kind(), &verbs));
        if resource.has_status() {
            let verbs = ["get", "patch", "update"];
            resources.push(entry(format!("{resource}/status"), resource.kind(), &verbs));
        }
        if resource == super::Resource::Pods {
            resources.push(entry("pods/binding".to_owned(), "Binding", &["create"]));
        }
    }
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources })
}

fn short_names(name: &str) -> &'static [&'static str] {
    match name {
        "pods" => &["po"],
        "nodes" => &["no"],
        "namespaces" => &["ns"],
        "events" => &["ev"],
        "services" => &["svc"],
        "networkpolicies" => &["netpol"],
        "clusternetworkpolicies" => &["cnp"],
        _ => &["kp"],
    }
}
