//! The cases of Kubernetes' own tests of network policies (`testdata/upstream.json`), by their names; a
//! protocol in brackets tells cases of one name apart. They are put to the compiler here, and to the programs
//! in `tests/tests/packets/policy`.

use std::collections::BTreeMap;

use ferrule_policy::Change;
use serde::Deserialize;
use serde_json::Value;

use super::world::{End, Pod, Traffic, World};

#[derive(Deserialize)]
struct Case {
    name: String,
    pods: Vec<String>,
    steps: Vec<Step>,
}

/// What happens, and what is expected then.
#[derive(Deserialize)]
struct Step {
    r#do: Vec<Do>,
    /// Protocol in the IP header, and port.
    traffic: (u8, u16),
    /// From, to, whether it is allowed; later ones win. A namespace stands for its pods, `*` for all.
    expect: Vec<(String, String, bool)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Do {
    /// Namespace, name and spec of a policy. `$x/b` is the address of the pod.
    Set(String, String, Value),
    Delete(String, String),
    LabelNamespace(String, String, String),
    LabelPod(String, String, String),
}

/// Judges packets between the pods of a cluster.
pub trait Judge {
    /// Forgets everything, and takes a cluster.
    fn begin(&mut self, world: &World);
    fn apply(&mut self, change: Change);
    fn allows(&mut self, world: &World, from: End<'_>, to: End<'_>, traffic: Traffic) -> bool;
}

/// Runs all cases.
pub fn run_all(judge: &mut impl Judge) {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../testdata/upstream.json")).unwrap();
    assert_eq!(cases.len(), 48);
    cases.iter().for_each(|case| run(judge, case));
}

fn run(judge: &mut impl Judge, case: &Case) {
    let mut world = World::default();
    for namespace in ["x", "y", "z"] {
        world.add_namespace(namespace, &[("ns", namespace)]);
    }
    for (i, pod) in (1..).zip(&case.pods) {
        add_pod(&mut world, i, pod);
    }
    judge.begin(&world);
    for (n, step) in case.steps.iter().enumerate() {
        for action in &step.r#do {
            judge.apply(act(&mut world, action));
        }
        for ((from, to), wanted) in expected(&world, step) {
            let traffic = step.traffic;
            let found = judge.allows(&world, world.end(&from), world.end(&to), traffic);
            assert_eq!(found, wanted, "{}, step {n}: {from} to {to}, {traffic:?}", case.name);
        }
    }
}

/// Each pod serves each port with each protocol, under a name.
fn add_pod(world: &mut World, i: u32, uid: &str) {
    let (namespace, name) = uid.split_once('/').unwrap();
    let ports = [80, 81].into_iter().flat_map(|port| {
        ["TCP", "UDP", "SCTP"].map(|it| (format!("serve-{port}-{}", it.to_lowercase()), it, port))
    });
    let pod = Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: [("pod".to_owned(), name.to_owned())].into(),
        addresses: vec![address(uid).parse().unwrap()],
        ports: ports.collect(),
        ..Pod::default()
    };
    world.pods.insert(uid.to_owned(), pod);
    world.endpoints.insert(i, uid.to_owned());
}

fn address(uid: &str) -> String {
    let part = |at: usize, base: u8| uid.as_bytes()[at] - base + 1;
    format!("10.0.{}.{}", part(0, b'x'), part(2, b'a'))
}

fn act(world: &mut World, action: &Do) -> Change {
    match action {
        Do::Set(namespace, name, spec) => {
            let spec = spec.to_string().replace("$x/b", &address("x/b")).replace("$y/b", &address("y/b"));
            let key = (namespace.clone(), name.clone());
            world.policies.insert(key.clone(), serde_json::from_str(&spec).unwrap());
            world.policy(&key)
        }
        Do::Delete(namespace, name) => {
            let key = (namespace.clone(), name.clone());
            world.policies.remove(&key);
            world.policy(&key)
        }
        Do::LabelNamespace(name, key, value) => {
            let labels = world.namespaces.get_mut(name).unwrap();
            labels.insert(key.clone(), value.clone());
            world.namespace(name)
        }
        Do::LabelPod(uid, key, value) => {
            let labels = &mut world.pods.get_mut(uid).unwrap().labels;
            labels.insert(key.clone(), value.clone());
            world.pod(uid)
        }
    }
}

/// Everything is allowed except as the step says; the diagonal is left out, as upstream.
fn expected(world: &World, step: &Step) -> BTreeMap<(String, String), bool> {
    let pods = || world.pods.keys().cloned();
    let pairs = pods().flat_map(|from| pods().map(move |to| (from.clone(), to)));
    let mut expected: BTreeMap<_, _> = pairs.filter(|(from, to)| from != to).map(|it| (it, true)).collect();
    let fits = |pattern: &str, pod: &str| {
        pattern == "*" || pattern == pod || pod.split_once('/').unwrap().0 == pattern
    };
    for (from, to, is_allowed) in &step.expect {
        let matching = expected.iter_mut().filter(|((f, t), _)| fits(from, f) && fits(to, t));
        matching.for_each(|(_, it)| *it = *is_allowed);
    }
    expected
}
