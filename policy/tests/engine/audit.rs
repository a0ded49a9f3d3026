//! Namespaces whose pods are audited: what policies deny is recorded, and passes.

use ferrule_policy::{Change, EndpointId, Op, object};
use serde_json::json;

use super::world::{Engine, World};

fn world() -> World {
    let mut world = World::default();
    for namespace in ["web", "db"] {
        world.add_namespace(namespace, &[]);
        world.policies.insert((namespace.to_owned(), "deny".to_owned()), json!({"podSelector": {}}));
    }
    world.add_pod("web", "front", "10.0.0.1", &[]);
    world.add_pod("db", "store", "10.0.0.2", &[]);
    world
}

fn audited(world: &World, namespace: &str, is_audited: bool) -> Change {
    let Change::Namespace(it) = world.namespace(namespace) else { panic!() };
    Change::Namespace(object::Namespace { is_audited, ..*it }.into())
}

fn audits(engine: &Engine) -> [bool; 2] {
    [1, 2].map(|id| engine.rows.endpoint(EndpointId(id)).unwrap().audit)
}

#[test]
fn the_annotation_switches_the_rows_of_the_namespaces_pods_at_once() {
    let world = world();
    let mut engine = world.engine();
    assert_eq!(audits(&engine), [false, false]);
    let before = *engine.rows.endpoint(EndpointId(1)).unwrap();
    let delta = engine.apply([audited(&world, "web", true)]);
    assert_eq!(audits(&engine), [true, false]);
    let after = *engine.rows.endpoint(EndpointId(1)).unwrap();
    assert_eq!(delta.ops, [Op::Endpoint(EndpointId(1), Some(after))], "one row switches, and nothing else");
    assert_eq!((after.ingress, after.egress), (before.ingress, before.egress));
    assert!(engine.compiler.explain("web", "front").unwrap().is_audited);
    assert!(!engine.compiler.explain("db", "store").unwrap().is_audited);
    // A flow that passed only because of the audit is judged again.
    engine.apply([audited(&world, "web", false)]);
    let enforced = *engine.rows.endpoint(EndpointId(1)).unwrap();
    assert_eq!(audits(&engine), [false, false]);
    assert_ne!(enforced.epoch, after.epoch);
}

#[test]
fn the_same_annotation_again_changes_nothing() {
    let world = world();
    let mut engine = world.engine();
    engine.apply([audited(&world, "web", true)]);
    assert!(engine.apply([audited(&world, "web", true)]).ops.is_empty());
}

#[test]
fn a_new_pod_and_new_policies_of_an_audited_namespace_are_audited() {
    let mut world = world();
    let mut engine = world.engine();
    engine.apply([audited(&world, "web", true)]);
    world.add_pod("web", "late", "10.0.0.3", &[]);
    engine.apply([world.pod("web/late"), world.endpoint(3)]);
    assert!(engine.rows.endpoint(EndpointId(3)).unwrap().audit);
    let key = ("web".to_owned(), "more".to_owned());
    world.policies.insert(key.clone(), json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    engine.apply([world.policy(&key)]);
    assert_eq!(audits(&engine), [true, false]);
}

#[test]
fn labels_and_annotation_may_change_together() {
    let mut world = world();
    let mut engine = world.engine();
    world.namespaces.get_mut("web").unwrap().insert("team".to_owned(), "a".to_owned());
    engine.apply([audited(&world, "web", true)]);
    assert_eq!(audits(&engine), [true, false]);
}

#[cfg(feature = "maps")]
#[test]
fn the_row_in_the_map_has_the_flag() {
    use agent_common::policy::Subject;
    let world = world();
    let mut engine = world.engine();
    engine.apply([audited(&world, "web", true)]);
    let flags = |id| Subject::from(*engine.rows.endpoint(EndpointId(id)).unwrap()).flags;
    assert_eq!((flags(1), flags(2)), (Subject::AUDIT, 0));
}
