//! The thread with maps in memory.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use agent_common::{DropReason, event::DropRecord, policy::Subject};
use aya::maps::MapError;
use ferrule_policy::{
    Capacities, Change, Direction, EndpointId, Op, Origin, Packet, PolicyId, Rows, RulesetId, Table, lookup,
    object::{self, PolicyObject},
};
use ferrule_proto::agent::policy_state::Kind;
use serde_json::json;

use super::{
    AdmitError, Denials as _, Enforcer, Interface, Maps, Report, Reporters, Unjudged, denial::tests::record,
};
use crate::{
    cluster::{PodRef, Pods},
    dataplane::{Audit, MapFailure},
    events::Events,
    health::{Health, State},
    metrics::{EventMetrics, PolicyMetrics},
    watch,
};

mod adds;
mod fit;
mod static_pods;

/// Maps in memory, whose writer a test can stop, and make fail.
#[derive(Default)]
pub(super) struct Fake {
    state: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    subjects: BTreeMap<EndpointId, Subject>,
    /// The rows but subjects, by table.
    rows: BTreeMap<u32, usize>,
    /// All changes, with their tables.
    log: Vec<(Op, Table)>,
    cleared: Vec<Table>,
    /// Writes that succeed before one fails.
    failing_after: Option<usize>,
    is_stopped: bool,
    is_waiting: bool,
    /// The rows of the last count.
    counted: usize,
    /// The steps of a comparison.
    audit_steps: usize,
    /// For each step of comparisons: the wanted subjects, and the table.
    audited: Vec<(usize, Table)>,
}

struct Setup {
    fake: Arc<Fake>,
    pods: Pods,
    enforcer: Enforcer,
    health: Health,
    metrics: PolicyMetrics,
}

const SOON: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(50);

// === impl Fake ===

impl Fake {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Inner) -> bool) -> MutexGuard<'_, Inner> {
        let end = Instant::now() + SOON;
        let mut inner = self.inner();
        while !is_so(&inner) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what}");
            inner = self.changed.wait_timeout(inner, left.min(MOMENT)).unwrap().0;
        }
        inner
    }

    fn stop(&self, is_stopped: bool) {
        self.inner().is_stopped = is_stopped;
        self.changed.notify_all();
    }

    fn subject(&self, id: u32) -> Option<Subject> {
        self.inner().subjects.get(&EndpointId(id)).copied()
    }

    fn wait_for(&self, id: u32, what: &str, is_so: impl Fn(Option<&Subject>) -> bool) -> Option<Subject> {
        self.wait(what, |it| is_so(it.subjects.get(&EndpointId(id)))).subjects.get(&EndpointId(id)).copied()
    }
}

impl Maps for Fake {
    fn subjects(&self) -> BTreeMap<EndpointId, Subject> {
        self.inner().subjects.clone()
    }

    fn apply(&self, changes: &[Op], table: Table) -> Result<(), MapFailure> {
        for op in changes {
            let mut inner = self.inner();
            inner.is_waiting = true;
            self.changed.notify_all();
            while inner.is_stopped {
                inner = self.changed.wait(inner).unwrap();
            }
            inner.is_waiting = false;
            match &mut inner.failing_after {
                Some(0) => {
                    let source = Box::new(MapError::KeyNotFound);
                    return Err(MapFailure::Access { action: "write to", map: "RULES", source });
                }
                Some(left) => *left -= 1,
                None => {}
            }
            inner.log.push((op.clone(), table));
            match op {
                Op::Endpoint(id, Some(row)) => drop(inner.subjects.insert(*id, (*row).into())),
                Op::Endpoint(id, None) => drop(inner.subjects.remove(id)),
                _ => *inner.rows.entry(table.number()).or_default() += 1,
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    fn count(&self, rows: &Rows) {
        self.inner().counted = rows.all().count();
    }

    fn clear(&self, table: Table) -> Result<(), MapFailure> {
        let mut inner = self.inner();
        let readers = inner.subjects.values().filter(|it| !it.is_open() && it.table == table.number());
        assert_eq!(readers.count(), 0, "subjects read the table");
        inner.rows.remove(&table.number());
        inner.cleared.push(table);
        Ok(())
    }

    fn audit(&self, _: &mut Audit, rows: &Rows, table: Table) -> Result<bool, MapFailure> {
        let mut inner = self.inner();
        let subjects = rows.all().filter(|op| matches!(op, Op::Endpoint(..))).count();
        inner.audited.push((subjects, table));
        self.changed.notify_all();
        Ok(inner.audited.len() < inner.audit_steps)
    }
}

// === impl Setup ===

impl Setup {
    fn new() -> Self {
        Self::with(Fake::default(), Capacities::default())
    }

    fn with(fake: Fake, capacities: Capacities) -> Self {
        let events = Events::disabled(EventMetrics::default());
        Self::with_events(fake, capacities, (events, Arc::default()))
    }

    /// With the node's own pods listed.
    fn with_events(fake: Fake, capacities: Capacities, events: (Events, Arc<Reporters>)) -> Self {
        let pods = Pods::default();
        pods.apply_pod(watch::Change::Synced);
        Self::with_pods(fake, capacities, events, pods)
    }

    fn with_pods(fake: Fake, capacities: Capacities, events: (Events, Arc<Reporters>), pods: Pods) -> Self {
        let (fake, health, metrics) = (Arc::new(fake), Health::default(), PolicyMetrics::default());
        let maps = Arc::clone(&fake) as Arc<dyn Maps>;
        let enforcer = Enforcer::new(maps, capacities, pods.clone());
        drop(enforcer.start(Report::new(&health, metrics.clone(), events)).unwrap());
        Self { fake, pods, enforcer, health, metrics }
    }

    fn admit(&self, id: u32, pod: &str, within: Duration) -> Result<(), AdmitError> {
        self.enforcer.admit(interface(id, pod), Instant::now() + within)
    }

    fn why(&self) -> (State, String) {
        let component = self.health.components().remove("policy").unwrap();
        (component.state, component.why)
    }

    /// Until so many changes have been compiled or refused.
    fn wait_until_compiled(&self, changes: u64) {
        let end = Instant::now() + SOON;
        while self.metrics.changes.get() < changes {
            assert!(Instant::now() < end, "{} changes of {changes}", self.metrics.changes.get());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_until_healthy(&self, is_healthy: bool) -> String {
        let end = Instant::now() + SOON;
        loop {
            let (state, why) = self.why();
            if (state == State::Healthy) == is_healthy && state != State::Starting {
                return why;
            }
            assert!(Instant::now() < end, "{state:?}: {why}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn interface(id: u32, pod: &str) -> Interface {
    let addresses = vec![[10, 0, 0, id as u8].into()];
    let pod = PodRef { namespace: "web".to_owned(), name: pod.to_owned(), uid: pod.to_owned() };
    Interface { ifindex: id, pod, addresses }
}

fn namespace() -> Change {
    let namespace = json!({"metadata": {"name": "web", "uid": "web"}});
    Change::Namespace(serde_json::from_value(namespace).unwrap())
}

fn pod(name: &str) -> Change {
    let pod = json!({"metadata": {"namespace": "web", "name": name, "uid": name, "labels": {"app": name}}});
    Change::Pod(Arc::new(serde_json::from_value(pod).unwrap()))
}

/// Isolates the pods with a label.
fn policy(name: &str, app: &str) -> Change {
    policy_of("web", name, &json!({"podSelector": {"matchLabels": {"app": app}}}))
}

fn policy_of(namespace: &str, name: &str, spec: &serde_json::Value) -> Change {
    let object = json!({"metadata": {"namespace": namespace, "name": name, "uid": name}, "spec": spec});
    let object: PolicyObject = serde_json::from_str(&object.to_string()).unwrap();
    Change::Policy(Arc::new(object::network_policy(&object)))
}

fn gone(name: &str) -> Change {
    Change::PolicyGone { id: PolicyId::namespaced("web", name), uid: name.to_owned() }
}

/// More rules, of different ports and peers, than a ruleset has bits.
fn oversized(name: &str, app: &str) -> Change {
    let rule = |n: u32| {
        let cidr = format!("10.0.{}.{}/32", n / 256, n % 256);
        json!({"ports": [{"port": n}], "from": [{"ipBlock": {"cidr": cidr}}]})
    };
    let rules: Vec<_> = (1..400).map(rule).collect();
    let spec = json!({"podSelector": {"matchLabels": {"app": app}}, "ingress": rules});
    policy_of("web", name, &spec)
}

/// Whether a pod may receive from a stranger.
fn is_allowed(it: &Setup, id: u32) -> bool {
    let packet = Packet {
        endpoint: EndpointId(id),
        direction: Direction::Ingress,
        own: [10, 0, 0, id as u8].into(),
        peer: [10, 1, 1, 1].into(),
        protocol: 6,
        port: 80,
        origin: Origin::Other,
        in_pod_range: false,
    };
    it.enforcer.read(|compiler| lookup(compiler.rows(), &packet).is_allowed)
}

fn is_open(subject: Option<&Subject>) -> bool {
    subject.is_some_and(Subject::is_open)
}

fn is_judged(subject: Option<&Subject>) -> bool {
    subject.is_some_and(|it| !it.is_open())
}

#[test]
fn no_pod_is_admitted_before_the_first_complete_state() {
    let it = Setup::new();
    assert!(!it.enforcer.is_known(&interface(7, "a").pod));
    assert!(matches!(it.admit(7, "a", MOMENT), Err(AdmitError::NotListed(_))));
    assert_eq!(it.fake.subject(7), None);
    it.enforcer.replace(Vec::new());
    it.admit(7, "a", SOON).unwrap();
    assert!(is_open(it.fake.subject(7).as_ref()), "no policy, and the pod is not known");
}

#[test]
fn an_admitted_pod_has_its_row_and_a_forgotten_one_has_none() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    assert_eq!(it.fake.inner().counted, it.enforcer.read(|compiler| compiler.rows().all().count()));
    assert!(is_judged(it.fake.subject(7).as_ref()));
    it.enforcer.forget(7);
    it.fake.wait_for(7, "the row is removed", |it| it.is_none());
}

#[test]
fn a_pod_waits_for_its_object_and_its_namespace_once_there_is_a_policy() {
    let it = Setup::new();
    it.enforcer.replace(vec![policy("p", "a")]);
    let refused = it.admit(7, "a", MOMENT).unwrap_err();
    assert!(matches!(&refused, AdmitError::UnknownPod { pod, .. } if pod.name == "a"), "{refused}");
    assert_eq!(it.fake.subject(7), None);
    it.enforcer.submit(pod("a"));
    assert!(it.admit(7, "a", MOMENT).is_err(), "the namespace is missing");
    it.enforcer.submit(namespace());
    it.admit(7, "a", SOON).unwrap();
    assert!(is_judged(it.fake.subject(7).as_ref()));
}

#[test]
fn a_pod_that_is_added_while_policies_are_announced_waits_for_them() {
    let it = Setup::new();
    it.enforcer.replace(Vec::new());
    it.admit(6, "early", SOON).unwrap();
    it.enforcer.expect("the pods of all nodes are not listed yet");
    assert!(!it.enforcer.is_known(&interface(7, "a").pod));
    let refused = it.admit(7, "a", MOMENT).unwrap_err();
    assert!(refused.to_string().contains("the pods of all nodes"), "{refused}");
    assert!(is_open(it.fake.subject(6).as_ref()), "attached pods are judged as before");
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    assert!(is_judged(it.fake.subject(7).as_ref()));
    assert_eq!(it.fake.subject(6), None, "nothing is known of the pod");
}

#[test]
fn a_complete_state_switches_tables_and_judges_all_flows_again() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    let first = it.fake.subject(7).unwrap();
    it.enforcer.replace(vec![namespace(), pod("a"), policy("q", "a")]);
    let second =
        it.fake.wait_for(7, "the switch", |it| it.is_some_and(|it| it.table != first.table)).unwrap();
    assert!(second.epoch > first.epoch && second.ingress != first.ingress, "{first:?} {second:?}");
    drop(it.fake.wait("the rows of the first table are removed", |it| !it.rows.contains_key(&first.table)));
    let inner = it.fake.inner();
    let removed = inner.log.iter().any(|(op, _)| matches!(op, Op::Endpoint(_, None)));
    assert!(!removed, "the pod was closed for a while");
}

#[test]
fn the_rows_of_an_earlier_agent_stay_until_the_first_state_and_its_epochs_are_exceeded() {
    let fake = Fake::default();
    let old = Subject { ingress: 5, egress: Subject::OPEN, table: 0, epoch: 900, flags: 0 };
    fake.inner().subjects.extend([(EndpointId(7), old), (EndpointId(8), old)]);
    let it = Setup::with(fake, Capacities::default());
    it.enforcer.add(interface(7, "a"));
    it.enforcer.submit(pod("a"));
    std::thread::sleep(MOMENT);
    assert_eq!((it.fake.subject(7), it.fake.subject(8)), (Some(old), Some(old)));
    assert!(it.fake.inner().log.is_empty());
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    let new = it.fake.wait_for(7, "the switch", |it| it.is_some_and(|it| *it != old)).unwrap();
    assert_eq!((new.table, new.epoch), (1, 901));
    it.fake.wait_for(8, "an interface that no attachment has", |it| it.is_none());
}

#[test]
fn after_an_interrupted_switch_the_fewer_subjects_are_closed_for_a_moment() {
    let fake = Fake::default();
    let of = |table| Subject { ingress: 5, egress: 6, table, epoch: 3, flags: 0 };
    fake.inner().subjects.extend([(EndpointId(7), of(0)), (EndpointId(8), of(0)), (EndpointId(9), of(1))]);
    let it = Setup::with(fake, Capacities::default());
    for (id, name) in [(7, "a"), (8, "a"), (9, "b")] {
        it.enforcer.add(interface(id, name));
    }
    it.enforcer.replace(vec![namespace(), pod("a"), pod("b"), policy("p", "a"), policy("q", "b")]);
    for id in [7, 8, 9] {
        it.fake.wait_for(id, "all are switched", |it| it.is_some_and(|it| it.table == 1 && it.epoch > 3));
    }
    let inner = it.fake.inner();
    let (first, _) = inner.log.first().unwrap();
    assert_eq!(*first, Op::Endpoint(EndpointId(9), None));
    assert_eq!(inner.log.iter().filter(|(op, _)| matches!(op, Op::Endpoint(_, None))).count(), 1);
}

#[test]
fn changes_that_wait_while_rows_are_written_are_compiled_together() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    it.fake.stop(true);
    it.enforcer.submit(policy("q", "a"));
    drop(it.fake.wait("the thread writes", |it| it.is_waiting));
    let before = it.metrics.changes.get();
    for n in 0..1000 {
        it.enforcer.submit(policy("p", if n % 2 == 0 { "a" } else { "b" }));
    }
    it.enforcer.submit(gone("q"));
    assert_eq!(it.enforcer.read(|compiler| compiler.usage().policies), 2, "reading waits for no write");
    it.fake.stop(false);
    it.fake.wait_for(7, "no policy is left for the pod", is_open);
    assert_eq!(it.metrics.changes.get() - before, 2);
}

#[test]
fn after_a_failed_write_all_rows_are_written_again_and_new_pods_wait() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), pod("b"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    let before = it.fake.subject(7).unwrap();
    it.fake.inner().failing_after = Some(1);
    it.enforcer.submit(policy_of(
        "web",
        "q",
        &json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}],
        "from": [{"podSelector": {"matchLabels": {"app": "b"}}}]}]}),
    ));
    let why = it.wait_until_healthy(false);
    assert!(why.contains("RULES") && why.contains("retrying"), "{why}");
    let refused = it.admit(8, "b", MOMENT).unwrap_err();
    assert!(matches!(refused, AdmitError::NotWritten(_)), "{refused}");
    assert_eq!(it.fake.subject(8), None);
    assert!(it.enforcer.differences().is_empty() && it.fake.inner().audited.is_empty(), "known already");
    assert_eq!(it.fake.subject(7), Some(before), "the rows of before go on to judge");
    it.fake.inner().failing_after = None;
    let after = it.fake.wait_for(7, "all rows are written", |it| it.copied() != Some(before)).unwrap();
    assert_eq!(after.table, before.table ^ 1);
    it.admit(8, "b", SOON).unwrap();
    it.wait_until_healthy(true);
    it.enforcer.differences();
    let wanted = [(2, if after.table == 0 { Table::A } else { Table::B })];
    assert_eq!(it.fake.inner().audited, wanted);
}

#[test]
fn changes_are_written_between_the_steps_of_a_comparison() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), pod("b")]);
    it.admit(7, "a", SOON).unwrap();
    it.fake.inner().audit_steps = usize::MAX;
    std::thread::scope(|scope| {
        let comparison = scope.spawn(|| it.enforcer.differences());
        drop(it.fake.wait("a step", |it| !it.audited.is_empty()));
        it.admit(8, "b", SOON).unwrap();
        let later = |it: &Inner| it.audited.last().is_some_and(|(subjects, _)| *subjects == 2);
        it.fake.wait("a step that knows the change", later).audit_steps = 0;
        assert!(comparison.join().unwrap().is_empty());
    });
}

#[test]
fn a_denied_packet_names_no_policy_while_the_compiler_works() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    let ruleset = it.fake.subject(7).unwrap().ingress;
    let record = DropRecord { ruleset, ..record(DropReason::PolicyIngress) };
    assert_eq!(it.enforcer.of(&record, None).unwrap().policies, [PolicyId::namespaced("web", "p")]);
    it.enforcer.read(|_| {
        std::thread::scope(|scope| {
            let denial = scope.spawn(|| it.enforcer.of(&record, None)).join().unwrap().unwrap();
            assert!(denial.policies.is_empty() && denial.words.contains("being compiled"), "{denial:?}");
        });
    });
}

#[test]
fn policies_that_are_switched_off_leave_every_pod_open() {
    let it = Setup::new();
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    it.admit(7, "a", SOON).unwrap();
    it.enforcer.replace(Vec::new());
    it.fake.wait_for(7, "open", is_open);
    drop(it.fake.wait("no other row is left", |it| it.rows.is_empty() && it.cleared.len() >= 4));
}

#[test]
fn all_interfaces_of_before_can_be_waited_for() {
    let it = Setup::new();
    it.enforcer.add(interface(7, "a"));
    assert_eq!(it.enforcer.settle(Instant::now() + MOMENT), Err(1), "policies are to be listed first");
    assert_eq!(it.fake.subject(7), None);
    it.enforcer.replace(Vec::new());
    it.enforcer.add(interface(8, "b"));
    it.enforcer.settle(Instant::now() + SOON).unwrap();
    assert!(is_open(it.fake.subject(7).as_ref()) && is_open(it.fake.subject(8).as_ref()));
    it.fake.stop(true);
    it.enforcer.add(interface(9, "c"));
    assert_eq!(it.enforcer.settle(Instant::now() + MOMENT), Err(1));
    it.fake.stop(false);
}

/// Waits until the enforcer is in a state, and returns its reason.
fn reason(it: &Setup, kind: Kind) -> String {
    let end = Instant::now() + SOON;
    loop {
        let state = it.enforcer.state();
        if state.kind() == kind {
            return state.reason;
        }
        assert!(Instant::now() < end, "found {state:?}, expected {kind:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn administrators_see_what_is_enforced_and_what_holds_it_up() {
    let it = Setup::new();
    assert!(reason(&it, Kind::Gathering).contains("not listed yet"));
    it.enforcer.replace(Vec::new());
    assert!(reason(&it, Kind::Open).contains("every packet passes"));
    it.enforcer.expect("waiting for the list of Services");
    assert!(reason(&it, Kind::Gathering).starts_with("waiting for the list of Services"));
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a")]);
    assert_eq!(reason(&it, Kind::Enforcing), "1 policy");
    it.admit(7, "a", SOON).unwrap();
    it.enforcer.submit(oversized("large", "a"));
    let why = reason(&it, Kind::Refused);
    assert!(why.contains("web/large") && why.contains("stays"), "{why}");
    it.enforcer.submit(gone("large"));
    assert_eq!(reason(&it, Kind::Enforcing), "1 policy");
    it.enforcer.replace(vec![namespace(), pod("a"), policy("p", "a"), oversized("large", "a")]);
    let why = reason(&it, Kind::Refused);
    assert!(why.contains("web/large") && why.contains("isolated"), "{why}");
}

#[test]
fn a_policy_that_cannot_be_decoded_is_known_until_a_newer_version_can_or_that_version_is_gone() {
    let it = Setup::new();
    let object: PolicyObject =
        serde_json::from_str(r#"{"metadata": {"name": "odd", "uid": "u"}, "spec": []}"#).unwrap();
    let error = object::cluster_network_policy(&object).unwrap_err();
    let odd = PolicyId::cluster("odd");
    it.enforcer.set_undecodable(&error, "u");
    it.enforcer.clear_undecodable(&odd, Some("predecessor"));
    let all = it.enforcer.undecodable();
    assert!(matches!(&all[..], [(id, why)] if *id == odd && why.starts_with("spec: ")), "{all:?}");
    it.enforcer.clear_undecodable(&odd, Some("u"));
    assert!(it.enforcer.undecodable().is_empty());
    it.enforcer.set_undecodable(&error, "u");
    it.enforcer.clear_undecodable(&odd, None);
    assert!(it.enforcer.undecodable().is_empty());
}

#[test]
fn an_uplink_without_filters_makes_enforcement_unhealthy_while_there_is_a_policy() {
    let it = Setup::new();
    let by = |link: &str| Some(format!("Service packets by {link} are not judged"));
    it.enforcer.set_unjudged(Unjudged { surely: by("wg0"), perhaps: None });
    it.enforcer.replace(Vec::new());
    assert!(it.wait_until_healthy(true).contains("no policy"));
    it.enforcer.submit(namespace());
    it.enforcer.submit(policy("p", "a"));
    assert!(it.wait_until_healthy(false).contains("wg0"));
    it.enforcer.set_unjudged(Unjudged::default());
    it.wait_until_healthy(true);
    it.enforcer.set_unjudged(Unjudged { surely: by("wg1"), perhaps: None });
    assert!(it.wait_until_healthy(false).contains("policies in force: 1; Service packets by wg1"));
}

#[test]
fn health_names_programs_of_others_before_the_agents_and_stays_healthy() {
    let it = Setup::new();
    it.enforcer.set_unjudged(Unjudged { surely: None, perhaps: Some("eth0 has a tcx program".to_owned()) });
    it.enforcer.replace(Vec::new());
    assert!(it.wait_until_healthy(true).contains("no policy"));
    it.enforcer.submit(namespace());
    it.enforcer.submit(policy("p", "a"));
    let end = Instant::now() + SOON;
    while it.wait_until_healthy(true) != "policies in force: 1; eth0 has a tcx program" {
        assert!(Instant::now() < end, "{:?}", it.why());
    }
}

#[test]
fn policies_and_their_rules_are_counted() {
    let it = Setup::new();
    let rules = json!({"podSelector": {}, "ingress": [{}, {"ports": [{"port": 80}]}], "egress": [{}]});
    it.enforcer.replace(vec![namespace(), policy_of("web", "p", &rules), policy("q", "a")]);
    let wait_for = |expected| {
        let found = || (it.metrics.policies.get(), it.metrics.rules.get());
        let end = Instant::now() + SOON;
        while found() != expected {
            assert!(Instant::now() < end, "{:?} instead of {expected:?}", found());
        }
    };
    wait_for((2, 3));
    it.enforcer.submit(gone("p"));
    wait_for((1, 0));
}
