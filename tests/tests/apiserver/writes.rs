//! Writes to the test API server.

use ferrule_tests::apiserver::{
    ApiServer, Options,
    Resource::{Events, KuryrPorts, Nodes, Pods, Services},
    Switch, objects,
};
use serde_json::{Value, json};

use crate::client::{PODS, get, patch, pod, request, request_with, start, text, watch};

#[test]
fn create_sets_server_side_metadata() {
    let server = start();
    let mut new = pod("", "n1");
    new["metadata"]["generateName"] = json!("web-");
    let created = request(&server, "POST", PODS, &new);
    assert_eq!(created.status, 201);
    let object = created.json();
    let name = text(&object["metadata"]["name"]);
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    assert_eq!(text(&object["metadata"]["uid"]).len(), 36);
    assert_eq!(object["metadata"]["generation"], 1);
    assert_eq!(object["status"]["phase"], "Pending", "create accepted a status");
    assert!(text(&object["metadata"]["creationTimestamp"]).ends_with('Z'));
    assert_eq!(get(&server, &format!("{PODS}/{name}")).json(), object);

    let again = request(&server, "POST", PODS, &pod(&name, "n1"));
    assert_eq!((again.status, text(&again.json()["reason"]).as_str()), (409, "AlreadyExists"));
    let missing = get(&server, &format!("{PODS}/absent"));
    assert_eq!(missing.json()["message"], "pods \"absent\" not found");
    assert_eq!(missing.json()["details"], json!({ "name": "absent", "kind": "pods" }));
    assert_eq!(request(&server, "POST", PODS, &pod("No_Name", "n1")).status, 422);
    assert_eq!(request(&server, "POST", PODS, &json!({ "kind": "Node" })).status, 400);
    assert_eq!(request(&server, "DELETE", PODS, &json!({})).status, 405);
    assert_eq!(request_with(&server, "POST", PODS, "", "{").status, 400);
}

#[test]
fn stale_update_is_a_conflict() {
    let server = start();
    let stale = server.create(Pods, pod("a", "n1")).unwrap();
    server.patch(Pods, "shop", "a", objects::annotation("x", "1")).unwrap();
    let refused = request(&server, "PUT", &format!("{PODS}/a"), &stale);
    assert_eq!((refused.status, text(&refused.json()["reason"]).as_str()), (409, "Conflict"));
    let fresh = get(&server, &format!("{PODS}/a")).json();
    let version = server.resource_version();
    assert_eq!(request(&server, "PUT", &format!("{PODS}/a"), &fresh).status, 200);
    assert_eq!(server.resource_version(), version, "a no-op update created a version");
    let mut forced = stale;
    forced["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(request(&server, "PUT", &format!("{PODS}/a"), &forced).version(), version + 1);
}

#[test]
fn patch_supports_three_types_and_the_status_subresource() {
    let server = start();
    server.create(Pods, pod("a", "n1")).unwrap();
    let target = format!("{PODS}/a");
    let both = json!({ "metadata": { "annotations": { "k": "v" } }, "status": { "phase": "Failed" } });
    let main = patch(&server, "strategic-merge-patch+json", &target, &both).json();
    assert_eq!(
        (&main["metadata"]["annotations"]["k"], &main["status"]["phase"]),
        (&json!("v"), &json!("Running"))
    );
    let status = patch(&server, "merge-patch+json", &format!("{target}/status"), &both).json();
    assert_eq!(status["status"]["phase"], "Failed");
    let operations = json!([{ "op": "replace", "path": "/metadata/annotations/k", "value": "w" }]);
    let replaced = patch(&server, "json-patch+json", &target, &operations).json();
    assert_eq!(replaced["metadata"]["annotations"]["k"], "w");
    let impossible = json!([{ "op": "test", "path": "/metadata/name", "value": "b" }]);
    assert_eq!(patch(&server, "json-patch+json", &target, &impossible).status, 422);
    assert_eq!(patch(&server, "nonsense", &target, &both).status, 415);
}

#[test]
fn a_strategic_merge_patch_merges_conditions_by_their_type() {
    let server = start();
    server.create(Nodes, objects::node("n1", &[])).unwrap();
    let target = "/api/v1/nodes/n1/status";
    let set = |name: &str, status: &str| {
        let conditions = json!([{ "type": name, "status": status }]);
        let change = json!({ "status": { "conditions": conditions } });
        patch(&server, "strategic-merge-patch+json", target, &change).json()["status"]["conditions"].clone()
    };
    let [ready, network] = ["Ready", "NetworkUnavailable"];
    assert_eq!(set(network, "True").as_array().unwrap().len(), 2);
    let both = json!([{ "type": ready, "status": "True" }, { "type": network, "status": "False" }]);
    assert_eq!(set(network, "False"), both);
}

#[test]
fn finalizer_delays_deletion() {
    let server = start();
    let port = objects::kuryr_port("shop", "a", "n1", "uid", json!({}));
    server.create(KuryrPorts, port).unwrap();
    let mut watch = watch(&server, "/apis/openstack.org/v1/kuryrports", "");
    assert_eq!(watch.next().0, "ADDED");
    let target = "/apis/openstack.org/v1/namespaces/shop/kuryrports/a";
    let held = request(&server, "DELETE", target, &json!({})).json();
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(watch.next().0, "MODIFIED");
    let version = server.resource_version();
    request(&server, "DELETE", target, &json!({}));
    assert_eq!(server.resource_version(), version, "a repeated delete created a version");
    let released = patch(&server, "merge-patch+json", target, &json!({ "metadata": { "finalizers": null } }));
    assert_eq!(released.status, 200);
    assert_eq!(watch.next(), ("DELETED".into(), "a".into(), version + 1));
    assert_eq!(get(&server, target).status, 404);
}

#[test]
fn pod_with_grace_period_terminates_in_two_steps() {
    let server = start();
    server.create(Pods, pod("a", "n1")).unwrap();
    let terminating =
        request(&server, "DELETE", &format!("{PODS}/a?gracePeriodSeconds=30"), &json!({})).json();
    assert_eq!(terminating["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(server.get(Pods, "shop", "a").is_some());
    let other = json!({ "preconditions": { "uid": "other" } });
    assert_eq!(request(&server, "DELETE", &format!("{PODS}/a"), &other).status, 409);
    assert_eq!(request(&server, "DELETE", &format!("{PODS}/a"), &json!({})).status, 200);
    assert!(server.get(Pods, "shop", "a").is_none());
}

#[test]
fn event_is_converted_between_its_api_groups() {
    let server = start();
    let event = json!({
        "metadata": { "name": "a.1" }, "regarding": { "kind": "Pod", "name": "a" }, "note": "hello", "reason": "R",
        "type": "Warning", "reportingController": "test",
    });
    let target = "/apis/events.k8s.io/v1/namespaces/shop/events";
    let mut watch = watch(&server, target, "");
    assert_eq!(request(&server, "POST", target, &event).status, 201);
    assert_eq!(watch.event()["object"]["note"], "hello");
    let series = json!({ "series": { "count": 2 } });
    assert_eq!(patch(&server, "merge-patch+json", &format!("{target}/a.1"), &series).json()["note"], "hello");
    let core = get(&server, "/api/v1/namespaces/shop/events?fieldSelector=involvedObject.name=a").json();
    let item = &core["items"][0];
    assert_eq!((&item["message"], &item["series"]["count"]), (&json!("hello"), &json!(2)));
    assert_eq!(get(&server, target).json()["items"][0]["regarding"]["name"], "a");
    assert_eq!(server.list(Events).len(), 1);
}

#[test]
fn uninstalled_resource_is_not_found() {
    let server = ApiServer::start(Options { kuryr: false, ..Options::default() }).unwrap();
    let target = "/apis/openstack.org/v1/kuryrports";
    assert_eq!(get(&server, target).status, 404);
    assert_eq!(get(&server, "/apis/openstack.org/v1").status, 404);
    assert_eq!(get(&server, "/apis").json()["groups"].as_array().unwrap().len(), 2);
    server.switch(Switch::InstallKuryr { installed: true });
    assert_eq!(get(&server, target).json()["kind"], "KuryrPortList");
    assert_eq!(get(&server, "/apis/openstack.org/v1").json()["resources"][0]["name"], "kuryrports");
}

#[test]
fn policies_are_served_in_their_own_versions() {
    let server = ApiServer::start(Options::default()).unwrap();
    let (group, cluster) = ("/apis/networking.k8s.io/v1", "/apis/policy.networking.k8s.io/v1alpha2");
    let names = |path: &str| -> Vec<Value> {
        let found = get(&server, path).json()["resources"].as_array().unwrap().clone();
        found.into_iter().map(|it| it["name"].clone()).collect()
    };
    assert_eq!(names(group), ["networkpolicies", "servicecidrs"]);
    let policy = objects::network_policy("shop", "deny", json!({ "podSelector": {} }));
    let target = format!("{group}/namespaces/shop/networkpolicies");
    assert_eq!(request(&server, "POST", &target, &policy).json()["apiVersion"], "networking.k8s.io/v1");
    assert_eq!(get(&server, &format!("{group}/networkpolicies")).json()["kind"], "NetworkPolicyList");
    assert_eq!(get(&server, "/apis/networking.k8s.io/v1alpha2/networkpolicies").status, 404);
    assert_eq!(get(&server, cluster).status, 404);
    server.switch(Switch::InstallClusterPolicies { installed: true });
    assert_eq!(names(cluster), ["clusternetworkpolicies"]);
    assert_eq!(get(&server, "/apis/policy.networking.k8s.io/v1").status, 404);
    server.switch(Switch::RenameClusterPolicies { version: Some("v1".to_owned()) });
    assert_eq!(names("/apis/policy.networking.k8s.io/v1"), ["clusternetworkpolicies"]);
    let group = get(&server, "/apis/policy.networking.k8s.io").json();
    assert_eq!(group["versions"][0]["version"], "v1");
    assert_eq!(get(&server, cluster).status, 404);
    assert_eq!(get(&server, &format!("{cluster}/clusternetworkpolicies")).status, 404);
    server.switch(Switch::RenameClusterPolicies { version: None });
    let policy = objects::cluster_network_policy("deny", json!({ "tier": "Admin" }));
    let target = format!("{cluster}/clusternetworkpolicies");
    assert_eq!(request(&server, "POST", &target, &policy).json()["kind"], "ClusterNetworkPolicy");
    assert_eq!(get(&server, &target).json()["items"][0]["metadata"]["name"], "deny");
    server.create(Services, objects::service("shop", "web", &["10.96.0.1".parse().unwrap()])).unwrap();
    let found = get(&server, "/api/v1/services?fieldSelector=spec.clusterIP=10.96.0.1").json();
    assert_eq!(found["items"][0]["metadata"]["name"], "web");
}
