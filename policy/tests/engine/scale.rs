//! A large cluster: memory and times, printed and not judged.
//!
//! ```text
//! cargo test --release -p ferrule-policy --test engine -- --ignored --nocapture scale
//! ```

use std::{fs, sync::Arc, thread, time::Duration};

use ferrule_policy::{Capacities, Change, Compiler, Endpoint, EndpointId, Table, object};
use serde_json::{Value, json};

use super::world::network_policy;

const NAMESPACES: usize = 2_000;
const PODS: usize = 30_000;
const LOCAL: usize = 500;
const POLICIES: usize = 1_000;
/// Pods of one Deployment.
const REPLICAS: usize = 5;
const ROUNDS: usize = 5;

#[test]
#[ignore = "prints times, which mean something only in a release build on an idle machine"]
fn scale_of_a_large_cluster() {
    let start = resident();
    let mut compiler = Compiler::new(Table::A, Capacities::default());
    let namespaces = (0..NAMESPACES).map(|i| Change::Namespace(namespace(i, "a").into()));
    timed("namespaces", || compiler.apply(namespaces).unwrap().ops.len());
    let before = resident();
    for i in 0..PODS {
        compiler.apply([Change::Pod(pod(i, "blue").into())]).unwrap();
    }
    println!("store: {} KiB, {} B each pod", (resident() - start) / 1024, (resident() - before) / PODS);
    let endpoints = (0..LOCAL).map(|i| {
        let endpoint =
            Endpoint { id: EndpointId(u32::try_from(i).unwrap()), uid: uid(i * 60), addresses: Vec::new() };
        Change::Endpoint(endpoint)
    });
    let policies: Vec<_> = (0..POLICIES).map(policy).chain(endpoints).collect();
    let ops =
        timed("full compile: 1,000 policies, 500 endpoints", || compiler.apply(policies).unwrap().ops.len());
    println!("{ops} rows; {:?}; {} KiB in all", compiler.usage(), (resident() - start) / 1024);
    let everything = || {
        let namespaces = (0..NAMESPACES).map(|i| Change::Namespace(namespace(i, "a").into()));
        let pods = (0..PODS).map(|i| Change::Pod(pod(i, "blue").into()));
        let endpoints = (0..LOCAL).map(|i| {
            let id = EndpointId(u32::try_from(i).unwrap());
            Change::Endpoint(Endpoint { id, uid: uid(i * 60), addresses: Vec::new() })
        });
        namespaces.chain(pods).chain((0..POLICIES).map(policy)).chain(endpoints).collect::<Vec<_>>()
    };
    let all = everything();
    timed("from nothing, in one batch", || Compiler::default().apply(all).unwrap().ops.len());

    let edit = |compiler: &mut Compiler, what: &str, changes: Vec<Change>| {
        let count = changes.len();
        let (mut rows, mut took) = (0, Vec::new());
        for change in changes {
            let start = cpu();
            rows += compiler.apply([change]).unwrap().ops.len();
            took.push(cpu() - start);
        }
        took.sort_unstable();
        let [median, slowest] = [took[count / 2], took[count - 1]];
        println!("{what}: {median:?} and {} rows, of {count}; the slowest {slowest:?}", rows / count);
    };
    let colours = |colour| (0..200).map(|i| Change::Pod(pod(i * 149, colour).into())).collect();
    edit(&mut compiler, "label edit of a pod", colours("red"));
    edit(&mut compiler, "its reversal", colours("blue"));
    let unseen = |i: usize| Change::Pod(pod(i * 7 % PODS, &format!("colour-{i}")).into());
    edit(&mut compiler, "one of many new labels", (0..4 * PODS).map(unseen).collect());
    edit(
        &mut compiler,
        "label edit of a namespace",
        (0..100).map(|i| Change::Namespace(namespace(i * 17, "b").into())).collect(),
    );
    let locals = (0..100).map(|i| policy(i * 7 + POLICIES)).collect();
    edit(&mut compiler, "new policy", locals);
    edit(
        &mut compiler,
        "new policy with the world except the cluster",
        vec![world_policy(0), world_policy(4)],
    );
    let gone = |i: usize| Change::PodGone { uid: uid(i * 60 + 1) };
    edit(&mut compiler, "deleted pod", (0..100).map(gone).collect());
    edit(&mut compiler, "new pod", (0..100).map(|i| Change::Pod(pod(i * 60 + 1, "blue").into())).collect());
    println!("{:?}", compiler.usage());
}

#[test]
#[ignore = "prints times, which mean something only in a release build on an idle machine"]
fn scale_of_a_large_policy() {
    let mut compiler = Compiler::new(Table::A, Capacities::default());
    let endpoint = Endpoint { id: EndpointId(1), uid: uid(0), addresses: Vec::new() };
    let pods = (0..10).map(|i| Change::Pod(pod(i * NAMESPACES * REPLICAS, "blue").into()));
    let others = [Change::Namespace(namespace(0, "a").into()), Change::Endpoint(endpoint), policy(0)];
    compiler.apply(others.into_iter().chain(pods)).unwrap();
    for _ in 0..ROUNDS {
        let text = timed("  encode", || large_policy().to_string());
        let object = timed("  decode the object", || serde_json::from_str(&text).unwrap());
        let large = timed("  decode the policy", || object::network_policy(&object));
        let gone = Change::PolicyGone { id: large.id.clone(), uid: large.uid.clone() };
        let large = Change::Policy(Arc::new(large));
        let delta = timed("a policy with 10,000 rules", || compiler.apply([large]).unwrap());
        println!("{} rows", delta.ops.len());
        timed("its end", || compiler.apply([gone]).unwrap().ops.len());
    }
}

fn large_policy() -> Value {
    let rules = (0..10_000_u32).map(|i| {
        let peer = if i % 8 == 7 {
            json!({"podSelector": {"matchLabels": {"app": format!("app-{i}")}}})
        } else {
            json!({"ipBlock": {"cidr": format!("100.64.{}.{}/32", i / 256, i % 256)}})
        };
        json!({"from": [peer], "ports": [{"port": 1_000 + i % 100}]})
    });
    json!({"metadata": {"namespace": "namespace-0", "name": "large", "uid": "large"},
        "spec": {"podSelector": {}, "ingress": rules.collect::<Vec<_>>()}})
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let start = cpu();
    let result = run();
    println!("{what}: {:?}", cpu() - start);
    result
}

/// What this thread has used of a processor: other load on the machine does not count.
fn cpu() -> Duration {
    // Charges the thread for its time so far.
    thread::yield_now();
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// Resident memory, in bytes.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn namespace(i: usize, team: &str) -> object::Namespace {
    let name = format!("namespace-{i}");
    serde_json::from_value(json!({"metadata": {"name": name, "uid": format!("ns-{i}"), "labels": {
        "kubernetes.io/metadata.name": name, "team": format!("{team}{}", i % 20)}}}))
    .unwrap()
}

fn uid(i: usize) -> String {
    format!("3f2a6c1e-0000-4000-8000-{i:012x}")
}

fn pod(i: usize, colour: &str) -> object::Pod {
    let deployment = i / REPLICAS;
    let (namespace, app) = (deployment % NAMESPACES, deployment / NAMESPACES);
    let tier = if app % 2 == 0 { "front" } else { "back" };
    serde_json::from_value(json!({
        "metadata": {"namespace": format!("namespace-{namespace}"), "name": format!("app-{app}-5d4f8c7b9d-{i:05x}"),
            "uid": uid(i), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": format!("app-{app}"), "colour": colour, "tier": tier,
                "pod-template-hash": format!("{deployment:010x}")}},
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": format!("10.{}.{}.{}", 64 + i / 65536, i / 256 % 256, i % 256)}]},
    }))
    .unwrap()
}

fn policy(i: usize) -> Change {
    let namespace = format!("namespace-{}", i * 12 % NAMESPACES);
    let spec: Value = match i % 4 {
        0 => {
            json!({"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]})
        }
        1 => json!({"podSelector": {"matchLabels": {"tier": "back"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"tier": "front"}}}], "ports": [{"port": "http"}]}]}),
        2 => {
            json!({"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": format!("a{}", i % 20)}}}],
            "ports": [{"port": 8080}, {"port": 9000, "endPort": 9100}]}]})
        }
        _ => {
            json!({"egress": [{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": format!("app-{}", i % 3), "colour": "blue"}}}]},
            {"to": [{"ipBlock": {"cidr": format!("10.{}.0.0/16", i % 256)}}]}]})
        }
    };
    network_policy(&namespace, &format!("policy-{i}"), &spec)
}

fn world_policy(i: usize) -> Change {
    let spec = json!({"egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.64.0.0/16"]}}]}]});
    network_policy(&format!("namespace-{}", i * 12), "world", &spec)
}
