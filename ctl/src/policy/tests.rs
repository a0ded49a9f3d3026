//! What `ferrulectl policy` prints, and its exit codes.

use std::{fs, path::PathBuf};

use clap::Parser as _;
use ferrule_policy::Counted;
use ferrule_proto::agent::{PolicyState, RowsVerdict, policy_state};
use serde_json::{Value, json};

use super::*;

const CLUSTER: &str = "\
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: web, labels: {team: a}}}
- apiVersion: v1
  kind: Pod
  metadata: {name: front, namespace: web, labels: {app: front}}
  status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: store, namespace: db, labels: {app: store}}
  spec: {containers: [{name: c, ports: [{name: sql, containerPort: 5432}]}]}
  status: {podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}]}
- {apiVersion: v1, kind: Service, metadata: {name: store, namespace: db}, spec: {clusterIP: 10.96.0.7}}
- {apiVersion: v1, kind: Endpoints, metadata: {name: store, namespace: db}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: store, namespace: db}
spec:
  podSelector: {matchLabels: {app: store}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: front}}}]
    ports: [{port: sql}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: odd, namespace: db}
spec:
  podSelector: {}
  ingress: [{form: []}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: no-world}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {}}
  egress: [{name: world, action: Deny, to: [{networks: [203.0.113.0/24]}]}]
";

/// A file that is gone with the value.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ferrulectl-policy-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn loaded(text: &str) -> anyhow::Result<Loaded> {
    let mut objects = files::Objects::default();
    objects.add_all(text)?;
    objects.compile()
}

fn traced(text: &str, from: &str, to: &str, port: &str) -> (String, TracePoliciesResponse) {
    let Loaded { compiler, .. } = loaded(text).unwrap();
    let (from, to): (End, End) = (from.parse().unwrap(), to.parse().unwrap());
    let port: Traffic = port.parse().unwrap();
    let trace = compiler.trace(&from.party(), &to.party(), port.protocol, port.port).unwrap();
    let traced = shown::trace(&compiler, &trace);
    (show::trace(&port, &traced), traced)
}

fn run_with(args: &[&str]) -> anyhow::Result<Report> {
    let args = crate::Args::try_parse_from([&["ferrulectl", "policy"], args].concat())?;
    crate::run(&args)
}

#[test]
fn a_trace_names_the_deciding_rule_of_each_end() {
    let (text, traced) = traced(CLUSTER, "web/front", "db/store", "5432");
    let expected = "\
allowed: TCP 5432 from web/front (10.0.0.1) to db/store (10.0.0.2)

POLICIES OF   VERDICT  ROWS  BECAUSE
the sender    allowed  -     no policy decides
the receiver  allowed  -     NetworkPolicy db/store ingress[0] accepts";
    assert_eq!((text.as_str(), exit_code(&traced)), (expected, 0));
}

#[test]
fn a_denied_packet_names_the_policies_that_isolate_or_the_rule_that_denies() {
    let (text, denied) = traced(CLUSTER, "web/front", "db/store", "udp/5432");
    let expected = "\
denied: UDP 5432 from web/front (10.0.0.1) to db/store (10.0.0.2)

POLICIES OF   VERDICT  ROWS  BECAUSE
the sender    allowed  -     no policy decides
the receiver  denied   -     no policy allows; NetworkPolicy db/odd, NetworkPolicy db/store isolate the pod";
    assert_eq!((text.as_str(), exit_code(&denied)), (expected, 1));
    let (text, denied) = traced(CLUSTER, "web/front", "203.0.113.9", "icmp");
    let expected = "\
denied: ICMP from web/front (10.0.0.1) to 203.0.113.9

POLICIES OF   VERDICT  ROWS  BECAUSE
the sender    denied   -     ClusterNetworkPolicy no-world (Admin, priority 7) egress[0] \"world\" denies
the receiver  allowed  -     no policy applies: not a pod, or a pod in its node's network";
    assert_eq!((text.as_str(), exit_code(&denied)), (expected, 1));
    let (text, _) = traced(CLUSTER, "node", "db/store", "22");
    assert!(text.starts_with("allowed: TCP 22 from the node to db/store (10.0.0.2)\n"), "{text}");
}

#[test]
fn rows_that_disagree_are_loud_and_have_their_own_exit_code() {
    let (_, mut traced) = traced(CLUSTER, "web/front", "db/store", "5432");
    traced.disagree = true;
    let rows = RowsVerdict { allowed: false, because: "no policy allows".to_owned(), audited: false };
    traced.ingress.as_mut().unwrap().rows = Some(rows);
    traced.egress.as_mut().unwrap().no_rows_because = "web/front is a pod of another node".to_owned();
    let text = show::trace(&"5432".parse().unwrap(), &traced);
    let expected = "\
allowed: TCP 5432 from web/front (10.0.0.1) to db/store (10.0.0.2)

POLICIES OF   VERDICT  ROWS      BECAUSE
the sender    allowed  -         no policy decides
the receiver  allowed  DISAGREE  NetworkPolicy db/store ingress[0] accepts
the sender: no answer from rows: web/front is a pod of another node";
    assert_eq!(text, expected);
    assert_eq!(exit_code(&traced), 3);
    let note = show::disagreement(&traced).unwrap();
    assert!(
        note.contains("the receiver: the policies allow (") && note.contains("the rows deny ("),
        "{note}"
    );
}

#[test]
fn a_list_has_a_line_for_each_policy_and_below_its_problems() {
    let Loaded { compiler, notes, problems } = loaded(CLUSTER).unwrap();
    let state = PolicyState { kind: policy_state::Kind::Refused.into(), reason: "PEERS is full".to_owned() };
    let policies = shown::list(&compiler, Counted::All);
    let expected = "\
refused: PEERS is full

KIND                  POLICY    TIER     INGRESS  EGRESS  PODS  PROBLEMS
ClusterNetworkPolicy  no-world  Admin 7  -        1       2     -
NetworkPolicy         db/odd    -        0        -       1     1
NetworkPolicy         db/store  -        1        -       1     -
NetworkPolicy db/odd: spec.ingress[0]: unknown field `form`, expected `from` or `ports`; the policy isolates its \
pods and allows nothing";
    let list = ListPoliciesResponse { state: Some(state), policies };
    let text = show::list(&list);
    let (table, problem) = text.rsplit_once('\n').unwrap();
    assert_eq!(table, expected.rsplit_once('\n').unwrap().0);
    assert!(problem.starts_with("NetworkPolicy db/odd: spec.ingress[0]"), "{problem}");
    assert_eq!(problems, [problem]);
    assert_eq!(
        notes,
        [
            "ignored 1 of kind Endpoints: policies do not depend on them",
            "the namespace db is not in the files: assumed with the label kubernetes.io/metadata.name only",
        ]
    );
    assert_eq!(show::list(&ListPoliciesResponse::default()), "no policies");
}

#[test]
fn an_explanation_has_the_rules_in_the_order_of_judgement() {
    let Loaded { compiler, .. } = loaded(CLUSTER).unwrap();
    let explained = shown::explain(&compiler, "db", "store").unwrap();
    let text = show::explanation(&"db/store".parse().unwrap(), &explained);
    let expected = "\
what db/store receives: what no NetworkPolicy allows is denied

POLICY                  TIER  RULE        ACTION  PEERS                                PORTS
NetworkPolicy db/odd    -     none        -       -                                    -
NetworkPolicy db/store  -     ingress[0]  Accept  pods app=front in namespaces team=a  TCP sql";
    assert!(text.starts_with(expected), "{text}");
    let expected = "\
what db/store sends: no NetworkPolicy isolates the pod: what no rule denies is allowed

POLICY                         TIER     RULE               ACTION  PEERS           PORTS
ClusterNetworkPolicy no-world  Admin 7  egress[0] \"world\"  Deny    203.0.113.0/24  any port";
    assert!(text.ends_with(expected), "{text}");
    let noted = ExplainPoliciesResponse { notes: vec!["a".to_owned(), "b".to_owned()], ..explained.clone() };
    assert!(show::explanation(&"db/store".parse().unwrap(), &noted).ends_with("any port\n\na\nb"));
    let audited = ExplainPoliciesResponse { audited: true, ..explained };
    assert!(show::explanation(&"db/store".parse().unwrap(), &audited).ends_with("is recorded, and passes"));
}

#[test]
fn the_command_reads_files_and_needs_no_agent() {
    let file = Temporary::new("cluster.yaml", CLUSTER);
    let file = file.0.to_str().unwrap();
    let trace = |to, port| {
        let ends = ["--from", "web/front", "--to", to, "--port", port];
        run_with(&[&["trace", "-f", file, "--socket", "/nonexistent"], &ends[..]].concat())
    };
    let allowed = trace("db/store", "5432").unwrap();
    assert_eq!((allowed.code, allowed.failures.len()), (0, 0));
    assert!(allowed.notes.iter().any(|it| it.starts_with("NetworkPolicy db/odd: ")), "{:?}", allowed.notes);
    assert_eq!(trace("db/store", "80").unwrap().code, 1);
    let error = format!("{:#}", trace("db/ghost", "80").unwrap_err());
    assert!(error.contains("found no pod db/ghost"), "{error}");
    let error = format!("{:#}", trace("10.96.0.7", "5432").unwrap_err());
    assert!(
        error.contains("10.96.0.7 is an address of a Service") && error.contains("target port"),
        "{error}"
    );
    let json = run_with(&[
        "trace",
        "-o",
        "json",
        "-f",
        file,
        "--from",
        "web/front",
        "--to",
        "db/store",
        "--port",
        "80",
    ]);
    let json: Value = serde_json::from_str(&json.unwrap().text).unwrap();
    assert_eq!(json["allowed"], false);
    assert_eq!(
        json["ingress"]["isolated_by"][1],
        json!({"kind": "NetworkPolicy", "namespace": "db", "name": "store"})
    );
    assert!(run_with(&["list", "-f", file]).unwrap().text.contains("db/store"));
    assert!(run_with(&["explain", "-f", file, "db/store"]).unwrap().text.contains("TCP sql"));
    assert!(run_with(&["explain", "-f", file, "db/ghost"]).is_err());
    assert!(run_with(&["trace", "-f", file, "--from", "node", "--to", "node", "--port", "80"]).is_err());
}

#[test]
fn lists_of_kubectl_and_of_the_api_server_are_read_as_json() {
    let policy = json!({"metadata": {"name": "p", "namespace": "a"}, "spec": {"podSelector": {}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "a"}});
    let raw = json!({"kind": "NetworkPolicyList", "apiVersion": "networking.k8s.io/v1", "items": [policy]});
    let all = json!({"kind": "List", "apiVersion": "v1", "items": [raw, pod]});
    let Loaded { compiler, .. } = loaded(&all.to_string()).unwrap();
    assert_eq!(shown::list(&compiler, Counted::All)[0].pods, 1);
}

#[test]
fn without_a_namespace_an_object_is_in_the_namespace_default() {
    let Loaded { compiler, .. } = loaded("kind: Pod\nmetadata: {name: x}\n").unwrap();
    assert!(shown::explain(&compiler, "default", "x").is_some());
}

#[test]
fn policies_of_other_apis_and_objects_that_are_none_are_errors() {
    for (text, expected) in [
        (
            "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: x}\n",
            "enforces no others",
        ),
        (
            "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: x}\n",
            "Admin",
        ),
        ("kind: Pod\nmetadata: {namespace: a}\n", "without metadata.name"),
        ("metadata: {name: x}\n", "without kind"),
        ("kind: Pod\nmetadata: {name: x, labels: [1]}\n", "cannot decode the Pod default/x"),
        ("{", "not JSON"),
        ("[", "not YAML"),
    ] {
        let error = format!("{:#}", loaded(text).err().unwrap());
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn ends_and_ports_are_read_as_documented() {
    let end = |text: &str| text.parse::<End>();
    assert_eq!(end("node"), Ok(End::Node));
    assert_eq!(end("10.0.0.1"), Ok(End::Address("10.0.0.1".parse().unwrap())));
    assert_eq!(end("fd00::1"), Ok(End::Address("fd00::1".parse().unwrap())));
    assert!(matches!(end("a/b"), Ok(End::Pod(_))));
    for wrong in ["", "a", "a/", "/b", "a/b/c", "10.0.0.0/8/9"] {
        assert!(end(wrong).unwrap_err().contains("expected NAMESPACE/POD, an address, or node"), "{wrong}");
    }
    let traffic = |text: &str| text.parse::<Traffic>().map(|it| (it.protocol, it.port, it.to_string()));
    for (text, expected) in [
        ("80", (6, 80, "TCP 80")),
        ("UDP/53", (17, 53, "UDP 53")),
        ("sctp/9", (132, 9, "SCTP 9")),
        ("icmp", (1, 0, "ICMP")),
        ("icmpv6", (58, 0, "ICMPV6")),
    ] {
        assert_eq!(traffic(text), Ok((expected.0, expected.1, expected.2.to_owned())));
    }
    for wrong in ["", "0", "65536", "tcp", "tcp/", "icmp/8", "x/1", "80/tcp"] {
        assert!(traffic(wrong).unwrap_err().contains("expected for instance 80"), "{wrong}");
    }
}
