//! Static pods, which have another UID at the API than the kubelet says.

use super::*;

/// The kubelet's UID of the static pod `a`.
const OF_MANIFEST: &str = "of-the-manifest";

fn of_manifest(id: u32) -> Interface {
    let Interface { ifindex, pod, addresses } = interface(id, "a");
    Interface { ifindex, pod: PodRef { uid: OF_MANIFEST.to_owned(), ..pod }, addresses }
}

fn mirror(it: &Setup) {
    let mirror = json!({"metadata": {"namespace": "web", "name": "a", "uid": "a",
        "annotations": {"kubernetes.io/config.mirror": OF_MANIFEST}}});
    let mirror = Arc::new(serde_json::from_str(&mirror.to_string()).unwrap());
    it.pods.apply_pod(watch::Change::Applied(mirror));
}

fn closed(it: &Setup) -> bool {
    it.fake.inner().log.iter().any(|(op, _)| matches!(op, Op::Endpoint(_, None)))
}

#[test]
fn a_static_pod_of_an_earlier_agent_is_judged_all_along_though_its_mirror_pod_is_known_late() {
    let fake = Fake::default();
    let old = Subject { ingress: 5, egress: Subject::OPEN, table: 0, epoch: 900, flags: 0 };
    fake.inner().subjects.insert(EndpointId(7), old);
    let events = (Events::disabled(EventMetrics::default()), Arc::default());
    let it = Setup::with_pods(fake, Capacities::default(), events, Pods::default());
    it.enforcer.add(of_manifest(7));
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    std::thread::sleep(4 * MOMENT);
    assert_eq!((it.fake.subject(7), it.fake.inner().log.len()), (Some(old), 0));
    mirror(&it);
    let new = it.fake.wait_for(7, "the switch", |it| it.is_some_and(|it| *it != old)).unwrap();
    assert_eq!((new.table, new.epoch), (1, 901));
    assert!(!closed(&it), "the pod was cut off for a while");
}

#[test]
fn a_state_waits_for_no_list_of_the_nodes_pods_where_all_uids_are_known_or_no_policy_asks() {
    let events = || (Events::disabled(EventMetrics::default()), Arc::default());
    let it = Setup::with_pods(Fake::default(), Capacities::default(), events(), Pods::default());
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.admit(7, "a", SOON / 2).unwrap();
    let it = Setup::with_pods(Fake::default(), Capacities::default(), events(), Pods::default());
    it.enforcer.replace(vec![namespace()]);
    it.enforcer.admit(of_manifest(7), Instant::now() + SOON / 2).unwrap();
    // Nothing else tells of the pod, once the node's own pods are listed.
    let it = Setup::with_pods(Fake::default(), Capacities::default(), events(), Pods::default());
    it.enforcer.add(of_manifest(7));
    it.pods.apply_pod(watch::Change::Synced);
    it.enforcer.replace(vec![namespace(), pod("b"), policy("p", "b")]);
    it.admit(8, "b", SOON / 2).unwrap();
}

#[test]
fn a_static_pod_that_was_open_is_judged_once_its_mirror_pod_comes() {
    let it = Setup::new();
    it.enforcer.replace(Vec::new());
    it.enforcer.admit(of_manifest(7), Instant::now() + SOON).unwrap();
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.fake.wait_for(7, "nothing is known of the pod", |it| it.is_none());
    // The thread wakes up once more after a second.
    std::thread::sleep(Duration::from_millis(1500));
    mirror(&it);
    it.fake.wait_for(7, "the mirror pod is known", is_judged);
}
