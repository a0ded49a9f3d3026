//! What users see of policies: `ferrulectl policy`, and drops that name a policy.

use std::process::Command;

use agent_common::policy::PackedSubject;
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Options, Resource, objects},
    dist,
    node::{Node, set_subject},
    pod::Pod,
    sys::wait_until,
};
use serde_json::{Value, json};

use crate::scene::{By, Scene, TIMEOUT, WEB, reaches, wait_until_reached, with_scene, with_scene_of};

const AUDIT: &str = "policy.ferrule.dev/audit";

/// Exit code, standard output and standard error of `ferrulectl`.
fn ctl(args: &[&str]) -> anyhow::Result<(Option<i32>, String, String)> {
    let ended = Command::new(dist::binary("ferrulectl")?).args(args).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((ended.status.code(), text(&ended.stdout), text(&ended.stderr)))
}

fn trace(from: &str, to: &str, port: &str) -> anyhow::Result<(Option<i32>, Value)> {
    let args = ["policy", "trace", "-o", "json", "--from", from, "--to", to, "--port", port];
    let (code, text, errors) = ctl(&args)?;
    let json = serde_json::from_str(&text).with_context(|| format!("{code:?}: {text}{errors}"))?;
    Ok((code, json))
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// The words of the option `--port`.
fn option(by: By, is_v4: bool) -> String {
    match by {
        By::Tcp(port) => format!("tcp/{port}"),
        By::Udp(port) => format!("udp/{port}"),
        By::Ping if is_v4 => "icmp".to_owned(),
        By::Ping => "icmpv6".to_owned(),
    }
}

/// Pods with the label `app=front` of the same namespace reach port 80 of `app=server` by TCP, and nothing
/// else reaches it.
fn allow_front() -> Value {
    json!({ "podSelector": { "matchLabels": { "app": "server" } },
        "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "front" } } }],
            "ports": [{ "port": 80 }] }] })
}

/// A record of the drops of a pod, and the cause repeated until there is one.
fn record(
    node: &Node,
    pod: &str,
    cause: impl Fn() -> anyhow::Result<()>,
    matches: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let mut found = None;
    wait_until(&format!("a record of {pod}"), TIMEOUT, || {
        cause()?;
        let records = node.ctl(&["drops", "--pod", pod, "-o", "json", "--last", "100"])?;
        let mut records = records.lines().filter_map(|it| serde_json::from_str::<Value>(it).ok());
        found = records.find(&matches);
        Ok(found.is_some())
    })?;
    found.context("no record")
}

fn text<'a>(record: &'a Value, pointer: &str) -> &'a str {
    record.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[test]
fn a_trace_says_what_packets_do_and_the_rows_in_the_kernel_agree() {
    with_scene(|scene| {
        let ((server, _server), (front, _f)) = (scene.pod("web", "server")?, scene.pod("web", "front")?);
        let ((other, _o), (stranger, _s)) = (scene.pod("web", "other")?, scene.pod("db", "stranger")?);
        let (code, list, _) = ctl(&["policy", "list"])?;
        ensure!(code == Some(0) && list.starts_with("open: "), "{code:?} {list}");
        scene.set_policy("web", "front", allow_front())?;
        let quiet = json!({ "podSelector": { "matchLabels": { "app": "stranger" } }, "policyTypes": ["Egress"],
            "egress": [{ "to": [{ "namespaceSelector": {} }], "ports": [{ "protocol": "UDP", "port": 81 }] }] });
        scene.set_policy("db", "quiet", quiet)?;
        wait_until_reached(&other, &server, WEB, false)?;
        wait_until_reached(&stranger, &front, WEB, false)?;
        let pods = [&server, &front, &other, &stranger];
        let mut answers = [0; 2];
        let pairs = pods.iter().flat_map(|from| pods.map(|to| (*from, to)));
        for (from, to) in pairs.filter(|(from, to)| from.uid != to.uid) {
            for (address, by) in to.addresses.iter().flat_map(|address| {
                [WEB, By::Tcp(81), By::Udp(80), By::Udp(81), By::Ping].map(|by| (address, by))
            }) {
                let (code, json) = trace(&name(from), &address.to_string(), &option(by, address.is_ipv4()))?;
                let found = reaches(from.path(), *address, by)?;
                let expected = i32::from(!found);
                ensure!(code == Some(expected), "{} to {} by {by:?}: {json}", from.name, to.name);
                for side in ["/egress/rows/allowed", "/ingress/rows/allowed"] {
                    ensure!(json.pointer(side).is_some_and(Value::is_boolean), "no rows: {json}");
                }
                answers[usize::from(found)] += 1;
            }
        }
        ensure!(answers.iter().all(|it| *it > 10), "{answers:?}");
        let (code, json) = trace("node", &name(&server), "81")?;
        ensure!(code == Some(0) && text(&json, "/ingress/because").contains("own node"), "{json}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn without_a_policy_that_selects_it_a_pod_is_explained_as_open() {
    with_scene(|scene| {
        let (_server, _servers) = scene.pod("web", "server")?;
        let (code, explained, errors) = ctl(&["policy", "explain", "web/server"])?;
        ensure!(
            code == Some(0) && explained.starts_with("open: no policy is known: every packet passes"),
            "{code:?} {explained} {errors}"
        );
        let of_none = json!({ "podSelector": { "matchLabels": { "app": "none" } }, "ingress": [] });
        scene.set_policy("web", "of-none", of_none)?;
        let mut explained = (None, String::new(), String::new());
        let open = ["receives", "sends"].map(|does| {
            format!(
                "what web/server {does}: no NetworkPolicy isolates the pod: what no rule denies is allowed"
            )
        });
        wait_until("the policy is known", TIMEOUT, || {
            explained = ctl(&["policy", "explain", "web/server"])?;
            Ok(open.iter().all(|it| explained.1.contains(it)))
        })
        .with_context(|| format!("{explained:?}"))?;
        ensure!(explained.0 == Some(0), "{explained:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_list_and_an_explanation_show_what_the_agent_knows() {
    with_scene(|scene| {
        let (_server, _servers) = scene.pod("web", "server")?;
        scene.set_policy("web", "front", allow_front())?;
        scene.set_policy("web", "odd", json!({ "podSelector": {}, "ingress": [{ "form": [] }] }))?;
        let mut list = String::new();
        wait_until("both policies are enforced", TIMEOUT, || {
            list = scene.node.ctl(&["policy", "list"])?;
            Ok(list.starts_with("enforcing: 2 policies"))
        })?;
        let row = |policy: &str| {
            let line = list.lines().find(|it| it.contains(policy)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        ensure!(row("web/front") == ["NetworkPolicy", "web/front", "-", "1", "-", "1", "-"], "{list}");
        ensure!(row("web/odd") == ["NetworkPolicy", "web/odd", "-", "0", "-", "1", "1"], "{list}");
        ensure!(list.contains("NetworkPolicy web/odd: spec.ingress[0]"), "{list}");
        let explained = scene.node.ctl(&["policy", "explain", "web/server"])?;
        ensure!(explained.contains("pods app=front in the namespace web  TCP 80"), "{explained}");
        let (code, _, errors) = ctl(&["policy", "explain", "web/ghost"])?;
        ensure!(code == Some(1) && errors.contains("found no pod web/ghost"), "{code:?} {errors}");
        // A pod of another node has no rows here.
        let mut far = objects::pod("web", "far", "node-2");
        far["status"]["podIP"] = json!("10.244.9.9");
        far["metadata"]["labels"]["app"] = json!("front");
        scene.cluster.api.create(Resource::Pods, far)?;
        let args = ["policy", "trace", "--from", "web/far", "--to", "web/server", "--port", "80"];
        wait_until("the agent knows the pod", TIMEOUT, || Ok(ctl(&args)?.0 != Some(2)))?;
        let (code, traced, _) = ctl(&args)?;
        ensure!(code == Some(0) && traced.contains("NetworkPolicy web/front ingress[0] accepts"), "{traced}");
        ensure!(traced.contains("no answer from rows: web/far is not on this node"), "{traced}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn rows_that_were_changed_behind_the_agents_back_are_reported() {
    with_scene(|scene| {
        // Healing would restore the rows.
        scene.node.stop_agent()?;
        scene.cluster.start_agent(scene.node, &["--self-heal", "off"])?;
        wait_until("the agent is ready", TIMEOUT, || Ok(scene.node.http("/readyz")?.0 == 200))?;
        let ((server, _server), (other, _o)) = (scene.pod("web", "server")?, scene.pod("web", "other")?);
        scene.set_policy("web", "front", allow_front())?;
        wait_until_reached(&other, &server, WEB, false)?;
        let index = scene.node.host_ifindex(&server)?;
        let args = ["policy", "trace", "--from", "web/other", "--to", "web/server", "--port", "80"];
        ensure!(ctl(&args)?.0 == Some(1));
        let open = PackedSubject { ingress: PackedSubject::OPEN, egress: PackedSubject::OPEN, epoch: 0 };
        set_subject(index, open)?;
        let (code, traced, errors) = ctl(&args)?;
        ensure!(code == Some(3), "{code:?} {traced}{errors}");
        ensure!(
            traced.contains("DISAGREE") && errors.contains("DISAGREE WITH THE POLICIES"),
            "{traced}{errors}"
        );
        ensure!(errors.contains("the receiver: the policies deny"), "{errors}");
        ensure!(reaches(other.path(), server.addresses[0], WEB)?, "the rows decide");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_drop_names_the_policies_that_isolate_or_the_rule_that_denies() {
    let options = Options { cluster_policies: true, ..Options::default() };
    with_scene_of(options, |scene| {
        let ((server, _server), (other, _o)) = (scene.pod("web", "server")?, scene.pod("web", "other")?);
        let (stranger, _s) = scene.pod("db", "stranger")?;
        scene.set_policy("web", "front", allow_front())?;
        let spec = json!({ "tier": "Admin", "priority": 7,
            "subject": { "namespaces": { "matchLabels": { "team": "db" } } },
            "egress": [{ "name": "not-web", "action": "Deny",
                "to": [{ "namespaces": { "matchLabels": { "team": "web" } } }] }] });
        let policy = objects::cluster_network_policy("no-web", spec);
        scene.cluster.api.create(Resource::ClusterNetworkPolicies, policy)?;
        wait_until_reached(&other, &server, WEB, false)?;
        wait_until_reached(&stranger, &server, WEB, false)?;
        let to = server.addresses[0];
        let from_other = || reaches(other.path(), to, WEB).map(drop);
        let is = |reason| move |it: &Value| text(it, "/flow/ferrule/reason") == reason;
        let found = record(scene.node, "web/other", from_other, is("policy_ingress"))?;
        let words = text(&found, "/flow/ferrule/denied_by");
        ensure!(words == "no policy allows; NetworkPolicy web/front isolates the pod", "{found}");
        ensure!(text(&found, "/flow/ingress_denied_by/0/name") == "front", "{found}");
        ensure!(text(&found, "/flow/verdict") == "DROPPED", "{found}");
        let from_stranger = || reaches(stranger.path(), to, WEB).map(drop);
        let found = record(scene.node, "db/stranger", from_stranger, is("policy_egress"))?;
        let words = text(&found, "/flow/ferrule/denied_by");
        ensure!(
            words == "ClusterNetworkPolicy no-web (Admin, priority 7) egress[0] \"not-web\" denies",
            "{found}"
        );
        ensure!(text(&found, "/flow/egress_denied_by/0/kind") == "ClusterNetworkPolicy", "{found}");
        let table = scene.node.ctl(&["drops", "--pod", "web/other"])?;
        ensure!(table.contains("dropped policy_ingress") && table.contains("NetworkPolicy web/front"), "{table}");
        let counted = r#"ferrule_pod_drops_total{namespace="web",pod="server",interface="eth0",direction="ingress",reason="policy_ingress"}"#;
        ensure!(scene.node.count(counted)? > 0.0, "{counted}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_policies_deny_to_an_audited_namespace_passes_and_is_recorded() {
    with_scene(|scene| {
        let ((server, _server), (other, _o)) = (scene.pod("web", "server")?, scene.pod("web", "other")?);
        scene.set_policy("web", "front", allow_front())?;
        wait_until_reached(&other, &server, WEB, false)?;
        audit(scene, Some("true"))?;
        wait_until_reached(&other, &server, WEB, true)?;
        let again = || reaches(other.path(), server.addresses[0], WEB).map(drop);
        let is_audited = |it: &Value| text(it, "/flow/verdict") == "AUDIT";
        let found = record(scene.node, "web/other", again, is_audited)?;
        ensure!(text(&found, "/flow/ferrule/reason") == "policy_ingress", "{found}");
        ensure!(text(&found, "/flow/ferrule/denied_by").contains("web/front"), "{found}");
        let traced = scene.node.ctl(&["policy", "explain", "web/server"])?;
        ensure!(traced.contains("the namespace is audited"), "{traced}");
        let (code, traced) = trace("web/other", "web/server", "80")?;
        ensure!(code == Some(1) && traced["ingress"]["rows"]["audited"] == true, "{traced}");
        audit(scene, None)?;
        wait_until_reached(&other, &server, WEB, false)
    })
    .unwrap();
}

/// Annotates the namespace `web`.
fn audit(scene: &Scene<'_>, value: Option<&str>) -> anyhow::Result<()> {
    let patch = json!({ "metadata": { "annotations": { AUDIT: value } } });
    scene.cluster.api.patch(Resource::Namespaces, "", "web", patch)?;
    Ok(())
}
