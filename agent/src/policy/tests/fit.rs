//! Policies that do not fit.

use ferrule_policy::Resource;

use super::*;

#[test]
fn a_policy_that_does_not_fit_holds_up_no_other_and_is_reported_until_it_goes() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), pod("b"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    it.admit(8, "b", SOON).unwrap();
    let before = it.fake.subject(7).unwrap();
    it.enforcer.submit(oversized("large", "a"));
    it.enforcer.submit(policy("q", "b"));
    it.fake.wait_for(8, "the other policy is in force", is_judged);
    let why = it.wait_until_healthy(false);
    assert!(why.contains("web/large") && why.contains("256 fit") && why.contains("stays"), "{why}");
    assert_eq!(it.fake.subject(7).map(|it| it.ingress), Some(before.ingress));
    assert_eq!(it.metrics.refused_of(Resource::Bits), (1, 1));
    let refused = it.admit(9, "a", SOON).unwrap_err();
    assert!(refused.to_string().contains("web/large"), "{refused}");
    it.enforcer.forget(9);
    it.enforcer.submit(gone("large"));
    it.wait_until_healthy(true);
    it.admit(9, "a", SOON).unwrap();
    assert_eq!(it.metrics.refused_of(Resource::Bits).0, 0);
}

#[test]
fn what_did_not_fit_is_applied_when_others_have_made_room() {
    let capacities = Capacities { rulesets: 2, ..Capacities::default() };
    let it = Setup::with(Fake::default(), capacities);
    let all = [namespace(), pod("a"), pod("b"), pod("c"), policy("p", "a"), policy("q", "b")];
    it.enforcer.replace(all.to_vec());
    for (id, name) in [(7, "a"), (8, "b"), (9, "c")] {
        it.admit(id, name, SOON).unwrap();
    }
    it.enforcer.submit(policy("r", "c"));
    let why = it.wait_until_healthy(false);
    assert!(why.contains("RULESETS") && why.contains("2 fit"), "{why}");
    assert!(why.contains("--max-policy-rules to at least 192"), "{why}");
    assert!(is_open(it.fake.subject(9).as_ref()));
    it.enforcer.submit(gone("q"));
    it.fake.wait_for(9, "the held policy", is_judged);
    it.wait_until_healthy(true);
}

#[test]
fn of_a_state_with_a_policy_that_does_not_fit_the_rest_is_enforced_and_its_pods_are_isolated() {
    let it = Setup::new();
    let state = [namespace(), pod("a"), pod("b"), pod("c"), oversized("large", "a"), policy("p", "b")];
    for (id, name) in [(7, "a"), (8, "b"), (9, "c")] {
        it.enforcer.add(interface(id, name));
    }
    it.enforcer.replace(state.to_vec());
    for (id, name) in [(7, "a"), (8, "b"), (9, "c"), (10, "a")] {
        it.admit(id, name, SOON).unwrap();
    }
    let why = it.wait_until_healthy(false);
    assert!(why.contains("web/large") && why.contains("256 fit") && why.contains("isolated"), "{why}");
    assert_eq!(it.enforcer.state().reason, why);
    assert_eq!(it.metrics.refused_of(Resource::Bits), (1, 1));
    assert!(!is_allowed(&it, 7) && !is_allowed(&it, 8) && is_allowed(&it, 9));
    it.enforcer.submit(policy("q", "c"));
    it.fake.wait_for(9, "a later policy is in force", is_judged);
    assert_eq!(it.fake.subject(7).map(|it| it.egress), Some(Subject::OPEN), "only its direction");
    let compiled = it.metrics.changes.get();
    it.enforcer.submit(oversized("large", "b"));
    it.enforcer.submit(gone("p"));
    it.wait_until_compiled(compiled + 2);
    assert!(!is_allowed(&it, 7), "another version that does not fit leaves the pod isolated");
    it.enforcer.submit(policy("large", "b"));
    it.fake.wait_for(7, "a version that fits", is_open);
    it.wait_until_healthy(true);
    assert!(!is_allowed(&it, 8));
    assert_eq!(it.metrics.refused_of(Resource::Bits).0, 0);
}

#[test]
fn addresses_that_do_not_fit_at_start_isolate_the_pods_of_their_policy_only() {
    let it = Setup::with(Fake::default(), Capacities { blocks: 30, ..Capacities::default() });
    let block = |number: u32| json!({"ipBlock": {"cidr": format!("192.0.2.{number}/32")}});
    let from: Vec<_> = (1..=100).map(block).collect();
    let spec = json!({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [{"from": from}]});
    let state = [namespace(), pod("a"), pod("b"), policy_of("web", "large", &spec), policy("p", "b")];
    for (id, name) in [(7, "a"), (8, "b")] {
        it.enforcer.add(interface(id, name));
    }
    it.enforcer.replace(state.to_vec());
    it.admit(7, "a", SOON).unwrap();
    it.admit(8, "b", SOON).unwrap();
    let why = it.wait_until_healthy(false);
    assert!(why.contains("web/large") && why.contains("BLOCKS") && why.contains("isolated"), "{why}");
    assert!(!is_allowed(&it, 7) && is_judged(it.fake.subject(8).as_ref()));
}

#[test]
fn what_does_not_fit_is_offered_again_although_other_changes_keep_coming() {
    let it = Setup::with(Fake::default(), Capacities { rulesets: 2, ..Capacities::default() });
    let all = [namespace(), pod("a"), pod("b"), pod("c"), policy("p", "a"), policy("q", "b")];
    it.enforcer.replace(all.to_vec());
    it.admit(9, "c", SOON).unwrap();
    it.admit(7, "a", SOON).unwrap();
    it.admit(8, "b", SOON).unwrap();
    it.enforcer.submit(policy("r", "c"));
    it.wait_until_healthy(false);
    it.enforcer.submit(gone("q"));
    let end = Instant::now() + SOON;
    for number in 0.. {
        if is_judged(it.fake.subject(9).as_ref()) {
            break;
        }
        assert!(Instant::now() < end, "the policy is in force");
        it.enforcer.submit(pod(&format!("other-{number}")));
        std::thread::sleep(Duration::from_millis(100));
    }
    it.wait_until_healthy(true);
}

#[test]
fn of_many_policies_that_do_not_fit_each_is_held_and_as_many_others_fit_as_there_is_room() {
    let it = Setup::with(Fake::default(), Capacities { ports: 300, ..Capacities::default() });
    let names: Vec<_> = (0..40).map(|n| format!("p{n}")).collect();
    let wide = |name: &String| {
        let rule = |port: u32| json!({"ports": [{"port": 2 * port}]});
        let rules: Vec<_> = (1..=50).map(rule).collect();
        policy_of("web", name, &json!({"podSelector": {"matchLabels": {"app": name}}, "ingress": rules}))
    };
    (1..).zip(&names).for_each(|(id, name)| it.enforcer.add(interface(id, name)));
    let pods = names.iter().map(|name| pod(name));
    it.enforcer.replace(pods.chain(names.iter().map(wide)).chain([namespace()]).collect());
    it.enforcer.settle(Instant::now() + SOON).unwrap();
    it.wait_until_healthy(false);
    assert_eq!(it.metrics.refused_of(Resource::Ports).0, 34, "six times 50 rows fit");
    let has_rules = |id| it.enforcer.read(|compiler| compiler.rows().endpoint(EndpointId(id)).copied());
    assert!((1..=40).all(|id| has_rules(id).is_some_and(|row| row.ingress != RulesetId::OPEN)));
}

#[test]
fn a_state_that_does_not_fit_without_rules_leaves_the_rows_of_before_and_new_pods_without_a_network() {
    let it = Setup::with(Fake::default(), Capacities { rulesets: 1, ..Capacities::default() });
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    let before = it.fake.subject(7);
    it.enforcer.add(interface(8, "b"));
    let more = [namespace(), pod("a"), pod("b"), policy("p", "a"), policy("q", "b"), policy("q2", "a")];
    it.enforcer.replace(more.to_vec());
    let why = it.wait_until_healthy(false);
    assert!(why.contains("RULESETS") && why.contains("stays"), "{why}");
    assert_eq!(it.fake.subject(7), before);
    let refused = it.admit(9, "a", SOON).unwrap_err();
    assert!(matches!(&refused, AdmitError::Refused(why) if why.contains("RULESETS")), "{refused}");
    it.enforcer.submit(gone("q"));
    it.fake.wait_for(7, "the new state", |it| it.copied() != before);
    it.wait_until_healthy(true);
    it.admit(9, "a", SOON).unwrap();
}

#[test]
fn a_policy_that_is_replaced_by_one_of_its_name_stays_in_force_if_the_other_does_not_fit() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), pod("b"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    it.admit(8, "b", SOON).unwrap();
    let before = it.fake.subject(7);
    it.fake.stop(true);
    it.enforcer.submit(policy("other", "b"));
    drop(it.fake.wait("the thread writes", |it| it.is_waiting));
    let Change::Policy(large) = oversized("p", "a") else { unreachable!() };
    let successor = ferrule_policy::Policy { uid: "successor".to_owned(), ..(*large).clone() };
    it.enforcer.submit(gone("p"));
    it.enforcer.submit(pod("c"));
    it.enforcer.submit(Change::Policy(Arc::new(successor.clone())));
    it.fake.stop(false);
    it.wait_until_healthy(false);
    assert_eq!(it.metrics.refused_of(Resource::Bits), (2, 1));
    assert_eq!(it.fake.subject(7), before);
    std::thread::sleep(MOMENT);
    it.enforcer.submit(Change::PolicyGone { id: successor.id, uid: successor.uid });
    it.fake.wait_for(7, "both are gone", is_open);
    it.wait_until_healthy(true);
}

#[test]
fn of_many_nodes_whose_maps_are_full_three_write_an_event_about_the_policy() {
    let names: Vec<_> = (0..12).map(|number| format!("node-{number}")).collect();
    let writes = |own: &String| {
        let reporters = Arc::new(Reporters::new(own));
        names.iter().for_each(|name| reporters.add(name));
        let (events, mut queue) = Events::channel(EventMetrics::default(), Pods::default());
        let it = Setup::with_events(Fake::default(), Capacities::default(), (events, reporters));
        it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
        it.admit(7, "a", SOON).unwrap();
        it.enforcer.submit(oversized("large", "a"));
        it.wait_until_healthy(false);
        let event = queue.try_recv().ok();
        assert!(event.as_ref().is_none_or(|it| it.reason == "PolicyRefused" && it.name == "large"));
        event.is_some()
    };
    assert_eq!(names.iter().filter(|own| writes(own)).count(), 3);
}
