//! What the manifests grant and say, and how values reach them.

use std::{collections::BTreeSet, fs};

use super::*;

fn release(values: Value) -> Release {
    Release { namespace: "net".to_owned(), values }
}

fn rendered(values: Value) -> String {
    join(&render(&Workspace::find().unwrap(), &release(values)).unwrap())
}

fn refused(values: Value) -> String {
    render(&Workspace::find().unwrap(), &release(values)).unwrap_err().to_string()
}

fn everything() -> Value {
    json!({ "kuryr": true, "namespace": { "create": true } })
}

fn objects(values: Value) -> Vec<Value> {
    serde_saphyr::from_multiple(&rendered(values)).unwrap()
}

fn of_kind(kind: &str, values: Value) -> Vec<Value> {
    let found: Vec<Value> = objects(values).into_iter().filter(|it| it["kind"] == kind).collect();
    assert!(!found.is_empty(), "{kind}");
    found
}

fn agents(values: Value) -> Value {
    of_kind("DaemonSet", values).remove(0)
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name} in {value}"))
}

#[test]
fn every_template_is_rendered() {
    let folder = Workspace::find().unwrap().root.join(FOLDER).join("templates");
    let there = fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    let manifests: BTreeSet<String> = there.filter(|it| it.ends_with(".yaml")).collect();
    assert_eq!(manifests, TEMPLATES.map(ToOwned::to_owned).into());
    let metrics = json!({ "host": "0.0.0.0", "podMonitor": true, "rules": true });
    let mut values = everything();
    merge(&mut values, &json!({ "metrics": metrics }));
    for object in objects(values) {
        assert!(object["apiVersion"].is_string() && object["metadata"]["name"].is_string(), "{object}");
        if let Some(namespace) = object["metadata"]["namespace"].as_str() {
            assert_eq!(namespace, "net");
        }
    }
}

#[test]
fn namespace_and_kuryrs_role_are_there_only_if_they_are_asked_for() {
    assert!(
        rendered(everything()).contains("kuryrports") && rendered(everything()).contains("kind: Namespace")
    );
    let text = rendered(json!({}));
    assert!(!text.contains("kuryrports") && !text.contains("kind: Namespace"), "{text}");
}

#[test]
fn the_version_of_the_chart_is_that_of_the_workspace() {
    let text = read(&Workspace::find().unwrap(), "Chart.yaml").unwrap();
    let chart: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(VERSION), &json!(VERSION)));
}

#[test]
fn settings_become_the_agents_file_and_restart_the_agents() {
    let of = |values: Value| {
        let config = of_kind("ConfigMap", values.clone()).remove(0);
        let toml: toml::Table = config["data"]["agent.toml"].as_str().unwrap().parse().unwrap();
        let annotations = agents(values)["spec"]["template"]["metadata"]["annotations"].clone();
        (toml, annotations["ferrule.dev/config"].as_str().unwrap().to_owned())
    };
    let (empty, before) = of(json!({}));
    assert!(empty.is_empty() && before.starts_with("sha256:"), "{empty} {before}");
    let agent = json!({ "vif_timeout": 7, "vif_cidr": ["10.0.0.0/8", "fd00::/8"], "self_heal": "off", "single_node": true });
    let (toml, after) = of(json!({ "agent": agent }));
    assert_eq!(serde_json::to_value(toml).unwrap(), agent);
    assert_ne!(before, after);
}

#[test]
fn unknown_keys_wrong_types_and_texts_that_end_a_text_are_refused() {
    for (values, at) in [
        (json!({ "agnet": {} }), "agnet"),
        (json!({ "agent": { "vif_tmeout": 3 } }), "/agent: "),
        (json!({ "agent": { "vif_timeout": 81 } }), "/agent/vif_timeout"),
        (json!({ "agent": { "self_heal": true } }), "/agent/self_heal"),
        (json!({ "vifController": "x' || true || '" }), "/vifController"),
        (json!({ "image": { "repository": "a b" } }), "/image/repository"),
        (json!({ "node": { "stateDir": "run" } }), "/node/stateDir"),
        (json!({ "maxUnavailable": "many" }), "/maxUnavailable"),
        (json!({ "metrics": { "podMonitor": true } }), "/metrics/host"),
        (json!({ "metrics": { "runbookUrl": "wiki: x" } }), "/metrics/runbookUrl"),
        (json!({ "metrics": { "serverName": "agents.example" } }), "/metrics/certificateSecret"),
        (
            json!({ "metrics": { "serverName": "*.example", "certificateSecret": "tls" } }),
            "/metrics/serverName",
        ),
        (json!({ "metrics": { "certificateSecret": "metrics..tls" } }), "/metrics/certificateSecret"),
        // The operator's type of a PodMonitor wants the largest unit first.
        (json!({ "metrics": { "interval": "30s1m" } }), "/metrics/interval"),
        (json!({ "metrics": { "interval": "0s" } }), "/metrics/interval"),
        (json!({ "metrics": { "interval": "" } }), "/metrics/interval"),
        (json!({ "agent": { "masquerade_ports": "1000-65535" } }), "/agent/masquerade_ports"),
    ] {
        let why = refused(values);
        assert!(why.contains(at) && why.contains("values.yaml"), "{at}: {why}");
    }
}

#[test]
fn the_image_has_a_tag_or_a_digest() {
    let image = |values: Value| {
        let image =
            agents(json!({ "image": values }))["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        image.as_str().unwrap().to_owned()
    };
    let digest = format!("sha256:{}", "a".repeat(64));
    assert_eq!(image(json!({})), format!("ferrule:{VERSION}"));
    assert_eq!(image(json!({ "repository": "a.example:5000/b", "tag": "1" })), "a.example:5000/b:1");
    assert_eq!(image(json!({ "digest": digest })), format!("ferrule@{digest}"));
}

#[test]
fn directories_of_other_distributions_reach_mounts_and_agent() {
    let node = json!({ "cniBinDir": "/var/lib/cni/bin", "cniConfDir": "/k/net.d", "stateDir": "/var/run/f" });
    let set = agents(json!({ "node": node, "seLinuxOptions": { "type": "spc_t" } }));
    let pod = &set["spec"]["template"]["spec"];
    let agent = &pod["containers"][0];
    let env = |name: &str| list(agent, "env").iter().find(|it| it["name"] == name).unwrap()["value"].clone();
    let mount = |name: &str| {
        list(agent, "volumeMounts").iter().find(|it| it["name"] == name).unwrap()["mountPath"].clone()
    };
    let host = |name: &str| {
        list(pod, "volumes").iter().find(|it| it["name"] == name).unwrap()["hostPath"]["path"].clone()
    };
    assert_eq!((env("FERRULE_CNI_BIN_DIR"), host("cni-bin")), (mount("cni-bin"), json!("/var/lib/cni/bin")));
    assert_eq!((env("FERRULE_CNI_CONF_DIR"), host("cni-conf")), (mount("cni-conf"), json!("/k/net.d")));
    // The path of the socket is the same inside and outside: the shim has it from the configuration.
    assert_eq!(
        (env("FERRULE_STATE_DIR"), mount("run"), host("run")),
        (json!("/var/run/f"), json!("/var/run/f"), json!("/var/run/f"))
    );
    assert_eq!(env("FERRULE_SOCKET"), "/var/run/f/agent.sock");
    assert_eq!(agent["securityContext"]["seLinuxOptions"], json!({ "type": "spc_t" }));
}

#[test]
fn agents_that_clean_the_nodes_have_the_same_permissions_and_no_probes() {
    let set = agents(json!({ "uninstall": true }));
    let pod = &set["spec"]["template"]["spec"];
    let (once, stays) = (&pod["initContainers"][0], &pod["containers"][0]);
    assert_eq!((&once["args"], &stays["args"]), (&json!(["uninstall"]), &json!(["uninstall", "--stay"])));
    for field in ["image", "env", "securityContext", "volumeMounts"] {
        assert_eq!(once[field], stays[field], "{field}");
    }
    assert_eq!(
        (&stays["startupProbe"], &stays["livenessProbe"], &stays["readinessProbe"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
}

#[test]
fn the_agent_may_do_what_is_named_and_nothing_else() {
    let mut allowed = BTreeSet::new();
    for role in of_kind("ClusterRole", everything()) {
        for rule in list(&role, "rules") {
            let names = ["apiGroups", "resources", "verbs"].map(|field| {
                let names: Vec<&str> = list(rule, field).iter().map(|it| it.as_str().unwrap()).collect();
                assert!(!names.iter().any(|name| name.contains('*')), "a wildcard in {rule}");
                names.join(",")
            });
            allowed.insert(names.join(" "));
        }
    }
    let expected = [
        " namespaces,services list,watch",
        " nodes get,list,watch,patch",
        " nodes/status patch",
        " pods get,list,watch",
        "events.k8s.io events create,patch",
        "networking.k8s.io networkpolicies list,watch",
        "networking.k8s.io servicecidrs list,watch",
        "openstack.org kuryrports get,list,watch",
        "policy.networking.k8s.io clusternetworkpolicies list,watch",
    ];
    assert_eq!(allowed, expected.map(ToOwned::to_owned).into());
}

#[test]
fn metrics_beyond_the_node_need_permission_to_ask_about_clients_and_have_a_named_port() {
    let values = json!({ "metrics": { "host": "0.0.0.0", "certificateSecret": "metrics-tls" } });
    let set = agents(values.clone());
    let [container] = list(&set["spec"]["template"]["spec"], "containers") else { panic!("{set}") };
    let http = json!({ "name": "http", "containerPort": 9469, "hostPort": 9469, "hostIP": "127.0.0.1" });
    assert_eq!(container["ports"], json!([http, { "name": "metrics", "containerPort": 9470 }]));
    let given = |name: &str| list(container, "env").iter().find(|it| it["name"] == name).cloned();
    assert_eq!(given("FERRULE_METRICS_LISTEN").unwrap()["value"], "0.0.0.0:9470");
    assert_eq!(given("FERRULE_METRICS_KEY").unwrap()["value"], "/etc/ferrule-metrics/tls.key");
    let volumes = list(&set["spec"]["template"]["spec"], "volumes");
    let certificate = &volumes.iter().find(|it| it["name"] == "metrics-certificate").unwrap()["secret"];
    let expected = json!({ "secretName": "metrics-tls", "optional": true });
    assert_eq!(certificate, &expected, "a pod that waits for the Secret keeps its issuer from the network");
    let mounts = list(container, "volumeMounts");
    let mount = mounts.iter().find(|it| it["name"] == "metrics-certificate").unwrap();
    assert_eq!(mount["subPath"], Value::Null, "kubelets do not update a mounted file");
    let roles = of_kind("ClusterRole", values);
    assert!(roles.iter().any(|it| it["metadata"]["name"] == "ferrule-metrics"), "{roles:?}");
    assert!(roles.iter().any(|it| it.to_string().contains("tokenreviews")), "{roles:?}");
    let default = of_kind("ClusterRole", json!({}));
    assert!(!default.iter().any(|it| it.to_string().contains("reviews")), "{default:?}");
}

#[test]
fn prometheus_gets_a_monitor_and_alerts_with_links_only_if_they_are_asked_for() {
    let url = "https://wiki.example/runbooks.html";
    let rules = |values: Value| of_kind("PrometheusRule", json!({ "metrics": values })).remove(0);
    let alerts = |rules: &Value| list(&list(&rules["spec"], "groups")[0], "rules").to_vec();
    let linked = alerts(&rules(json!({ "rules": true, "runbookUrl": url })));
    assert!(linked.len() > 10, "{linked:?}");
    for alert in &linked {
        let name = alert["alert"].as_str().unwrap().to_lowercase();
        assert_eq!(alert["annotations"]["runbook_url"], format!("{url}#{name}"));
        assert_eq!(alert["annotations"]["runbook"], Value::Null);
    }
    let without = alerts(&rules(json!({ "rules": true })));
    assert!(without.iter().all(|it| it["annotations"]["runbook_url"].is_null()), "{without:?}");
    assert!(without[0]["annotations"]["summary"].as_str().unwrap().contains("{{ $labels.instance }}"));
    let scraped = json!({ "metrics": { "host": "0.0.0.0", "podMonitor": true } });
    let monitor = of_kind("PodMonitor", scraped.clone()).remove(0);
    let pods = &agents(scraped)["spec"]["template"]["metadata"]["labels"];
    for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&pods[label], value, "{label} selects no agent");
    }
    let labelled = json!({ "labels": { "release": "monitoring" }, "certificateSecret": "tls", "serverName": "agents.example",
                           "host": "0.0.0.0", "podMonitor": true, "rules": true });
    assert_eq!(rules(labelled.clone())["metadata"]["labels"]["release"], "monitoring");
    let monitor = of_kind("PodMonitor", json!({ "metrics": labelled })).remove(0);
    assert_eq!(monitor["metadata"]["labels"]["release"], "monitoring");
    let tls =
        json!({ "serverName": "agents.example", "ca": { "secret": { "name": "tls", "key": "ca.crt" } } });
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["tlsConfig"], tls);
    let default = rendered(json!({}));
    assert!(!default.contains("monitoring.coreos.com") && !default.contains("service-account-token"));
}

#[test]
fn texts_that_yaml_takes_for_something_else_stay_texts() {
    let metrics = json!({ "host": "0.0.0.0", "podMonitor": true, "rules": true, "interval": "1m30s",
                          "certificateSecret": "123", "serverName": "null", "labels": { "on": "1e3" } });
    let release = Release { namespace: "1000".to_owned(), values: json!({ "metrics": metrics }) };
    let text = join(&render(&Workspace::find().unwrap(), &release).unwrap());
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    for object in &objects {
        let namespace = &object["metadata"]["namespace"];
        assert!(namespace.is_null() || *namespace == json!("1000"), "{object}");
    }
    let monitor = objects.iter().find(|it| it["kind"] == "PodMonitor").unwrap();
    assert_eq!(monitor["metadata"]["labels"]["on"], "1e3");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["interval"], "1m30s");
    let tls = json!({ "serverName": "null", "ca": { "secret": { "name": "123", "key": "ca.crt" } } });
    assert_eq!(endpoint["tlsConfig"], tls);
    let binding = objects.iter().find(|it| it["kind"] == "ClusterRoleBinding").unwrap();
    assert_eq!(binding["subjects"][0]["namespace"], "1000");
    let pod = &objects.iter().find(|it| it["kind"] == "DaemonSet").unwrap()["spec"]["template"]["spec"];
    let certificate = list(pod, "volumes").iter().find(|it| it["name"] == "metrics-certificate").unwrap();
    assert_eq!(certificate["secret"]["secretName"], "123");
}

#[test]
fn the_agent_is_not_privileged() {
    let set = agents(json!({}));
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!((&pod["hostNetwork"], &pod["hostPID"]), (&json!(true), &Value::Null));
    assert_eq!(pod["initContainers"], Value::Null);
    for container in list(pod, "containers") {
        let security = &container["securityContext"];
        assert_eq!(security["privileged"], json!(false));
        assert_eq!(security["readOnlyRootFilesystem"], json!(true));
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(security["capabilities"]["add"], json!(["DAC_OVERRIDE", "NET_ADMIN", "SYS_ADMIN"]));
        for mount in list(container, "volumeMounts") {
            assert_ne!(mount["mountPropagation"], "Bidirectional", "only privileged containers may");
        }
    }
}

#[test]
fn probes_ask_the_agent_of_this_node() {
    let set = agents(json!({}));
    let agent = &set["spec"]["template"]["spec"]["containers"][0];
    for (probe, path) in
        [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
    {
        assert_eq!(agent[probe]["httpGet"], json!({ "host": "127.0.0.1", "port": 9469, "path": path }));
    }
}
