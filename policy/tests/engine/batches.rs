//! Edits of a namespace's labels and of a pod's in one batch: after each single row, each packet is judged as
//! between the two edits, in one order or the other.

use ferrule_policy::{Change, Rows, lookup};
use serde_json::json;

use super::{
    convergence::questions,
    world::{Engine, World, labels},
};

/// `worlds` are those after either edit alone, and after both.
fn check(about: &str, before: &World, edits: [Change; 2], worlds: [&World; 3]) {
    let packets = questions(&[before, worlds[2]]);
    let judge = |rows: &Rows| packets.iter().map(|it| lookup(rows, it).is_allowed).collect::<Vec<_>>();
    let old = before.engine();
    let states: Vec<_> = [&old.rows].into_iter().cloned().chain(worlds.map(|it| it.engine().rows)).collect();
    let states: Vec<_> = states.iter().map(judge).collect();
    let Engine { mut compiler, mut rows } = old;
    let delta = compiler.apply(edits).unwrap();
    for (n, op) in delta.ops.iter().enumerate() {
        rows.apply(op);
        for (i, (packet, now)) in packets.iter().zip(judge(&rows)).enumerate() {
            let is_between = states.iter().any(|state| state[i] == now);
            assert!(is_between, "{about}: {packet:?} is {now} after {} of {:#?}", n + 1, delta.ops);
        }
    }
    assert_eq!(judge(&rows), states[3], "{about}");
}

/// The namespace `a` and a pod of it get other labels.
fn check_both(about: &str, before: &World) {
    let relabel = |world: &World| {
        let mut world = world.clone();
        world.add_namespace("a", &[("env", "two")]);
        world
    };
    let relabel_pod = |world: &World| {
        let mut world = world.clone();
        world.pods.get_mut("a/p1").unwrap().labels = labels(&[("app", "new")]);
        world
    };
    let (of_namespace, of_pod) = (relabel(before), relabel_pod(before));
    let both = relabel(&of_pod);
    let worlds = [&of_namespace, &of_pod, &both];
    check(&format!("{about}, namespace first"), before, [both.namespace("a"), both.pod("a/p1")], worlds);
    check(&format!("{about}, pod first"), before, [both.pod("a/p1"), both.namespace("a")], worlds);
}

/// Pods of one environment do not reach each other, in either of the namespace's two.
#[test]
fn a_pod_that_is_relabelled_with_its_namespace_is_not_reached_in_between() {
    let mut world = World::default();
    world.add_namespace("a", &[("env", "one")]);
    for (name, address) in [("p1", "10.0.0.1"), ("p2", "10.0.0.2"), ("p3", "10.0.0.3")] {
        world.add_pod("a", name, address, &[("app", "old")]);
    }
    for (name, env, priority) in [("one", "one", 1), ("two", "two", 2)] {
        let env = json!({"namespaces": {"matchLabels": {"env": env}}});
        let rules = json!([{"action": "Deny", "from": [env]}]);
        let spec = json!({"tier": "Admin", "priority": priority, "subject": env, "ingress": rules});
        world.cluster_policies.insert(name.to_owned(), spec);
    }
    check_both("a new group", &world);
    world.add_pod("a", "p4", "10.0.0.4", &[("app", "new")]);
    check_both("a group with members", &world);
}
