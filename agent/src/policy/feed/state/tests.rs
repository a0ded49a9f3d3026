//! What the enforcer gets, by what the watches say.

use std::sync::Arc;

use super::*;
use crate::watch::Change as Watched;

/// The state, and the orders that followed, as short texts.
struct Test {
    state: State,
    log: Vec<String>,
}

const NONE: [&str; 0] = [];

fn key(text: &str) -> ObjectKey {
    let (namespace, name) = text.split_once('/').unwrap_or(("", text));
    ObjectKey::new(namespace, name)
}

/// The object of a kind; its UID is `uid`.
fn change(kind: Kind, name: &str, uid: &str) -> Change {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let json = format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{uid}"}},
            "spec":{{"tier":"Admin","priority":1,"subject":{{"namespaces":{{}}}}}}}}"#
    );
    use ferrule_policy::object::{cluster_network_policy, network_policy};
    match kind {
        Kind::NetworkPolicy => {
            Change::Policy(Arc::new(network_policy(&serde_json::from_str(&json).unwrap())))
        }
        Kind::ClusterNetworkPolicy => {
            Change::Policy(Arc::new(cluster_network_policy(&serde_json::from_str(&json).unwrap()).unwrap()))
        }
        Kind::Namespace => Change::Namespace(serde_json::from_str(&json).unwrap()),
        Kind::Pod => Change::Pod(Arc::new(serde_json::from_str(&json).unwrap())),
        Kind::Service => Change::Service(serde_json::from_str(&json).unwrap()),
    }
}

fn node(name: &str) -> Arc<Node> {
    let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"uid-{name}"}}}}"#);
    Arc::new(serde_json::from_str(&json).unwrap())
}

fn short(change: &Change) -> String {
    match change {
        Change::Policy(it) => format!("+{}@{}", it.id, it.uid),
        Change::PolicyGone { id, uid } => format!("-{id}@{uid}"),
        Change::Namespace(it) => format!("+namespace {}", it.metadata.name),
        Change::NamespaceGone { name, uid } => format!("-namespace {name}@{uid}"),
        Change::Pod(it) => format!("+pod {}@{}", it.metadata.name, it.metadata.uid),
        Change::PodGone { uid } => format!("-pod @{uid}"),
        Change::Service(it) => format!("+service {}", it.metadata.name),
        Change::ServiceGone { uid } => format!("-service @{uid}"),
        Change::Node(it) => format!("+node {}", it.metadata.name),
        Change::NodeGone { uid } => format!("-node @{uid}"),
        Change::HostAddresses(all) => format!("own {}", all.len()),
        other => panic!("{other:?}"),
    }
}

impl Test {
    fn new() -> Self {
        Self { state: State::new(), log: Vec::new() }
    }

    /// A cluster without policies that is known.
    fn open() -> Self {
        let mut test = Self::new();
        test.discovered(false);
        test.listed(Kind::NetworkPolicy);
        test.listed_nodes();
        test.own(1);
        test.taken();
        test
    }

    /// A cluster with one policy that is enforced.
    fn enforcing() -> Self {
        let mut test = Self::open();
        test.set(Kind::NetworkPolicy, "n/p", "1");
        PEERS.iter().for_each(|kind| test.listed(*kind));
        assert_eq!(test.state.phase(), Phase::Enforcing);
        test.taken();
        test
    }

    fn generation(&self, kind: Kind) -> Option<u64> {
        (!kind.is_policy()).then_some(self.state.generation)
    }

    fn note(&mut self, orders: Vec<Order>) {
        for order in orders {
            self.log.push(match order {
                Order::Expect(why) => why.replace("waiting for the list of", "expect"),
                Order::Submit(change) => short(&change),
                Order::Replace(all) => {
                    let mut all: Vec<_> = all.iter().map(short).collect();
                    all.sort();
                    format!("replace [{}]", all.join(", "))
                }
            });
        }
    }

    fn set(&mut self, kind: Kind, name: &str, uid: &str) {
        let news = News::Applied { key: key(name), uid: uid.to_owned(), change: change(kind, name, uid) };
        let orders = self.state.apply(kind, self.generation(kind), news);
        self.note(orders);
    }

    fn gone(&mut self, kind: Kind, name: &str, uid: &str) {
        let news = News::Gone { key: key(name), uid: uid.to_owned() };
        let orders = self.state.apply(kind, self.generation(kind), news);
        self.note(orders);
    }

    fn listed(&mut self, kind: Kind) {
        let orders = self.state.apply(kind, self.generation(kind), News::Listed);
        self.note(orders);
    }

    fn discovered(&mut self, is_there: bool) {
        let served = if is_there { Served::Known } else { Served::Nothing };
        let orders = self.state.discovered(served);
        self.note(orders);
    }

    fn assume_open(&mut self) {
        let orders = self.state.assume_open();
        self.note(orders);
    }

    fn listed_nodes(&mut self) {
        for change in [Watched::Applied(node("a")), Watched::Synced] {
            let orders = self.state.apply_node(&change);
            self.note(orders);
        }
    }

    fn own(&mut self, count: u8) {
        let addresses: Vec<_> = (0..count).map(|i| IpAddr::from([192, 0, 2, i])).collect();
        let orders = self.state.set_own_addresses(&addresses);
        self.note(orders);
    }

    fn taken(&mut self) -> Vec<String> {
        take(&mut self.log)
    }
}

#[test]
fn a_cluster_without_policies_is_open_once_both_kinds_are_known() {
    let mut test = Test::new();
    assert_eq!(test.state.missing(), ["NetworkPolicies", "ClusterNetworkPolicies"]);
    test.listed(Kind::NetworkPolicy);
    assert_eq!((test.taken(), test.state.phase()), (vec![], Phase::Unlisted));
    test.discovered(false);
    assert_eq!((test.taken(), test.state.phase()), (vec!["replace []".to_owned()], Phase::Open));
    assert_eq!(test.state.wanted(), Wanted::Nothing);
    test.discovered(false);
    test.listed(Kind::NetworkPolicy);
    assert_eq!(test.taken(), NONE);
}

#[test]
fn where_the_cluster_may_have_cluster_policies_their_list_counts() {
    let mut test = Test::new();
    test.listed(Kind::NetworkPolicy);
    test.discovered(true);
    assert_eq!((test.taken(), test.state.missing()), (vec![], vec!["ClusterNetworkPolicies"]));
    test.listed(Kind::ClusterNetworkPolicy);
    assert_eq!(test.taken(), ["replace []"]);
}

#[test]
fn enforcement_begins_with_everything_when_the_last_list_is_complete() {
    let mut test = Test::open();
    test.set(Kind::NetworkPolicy, "n/p", "1");
    assert_eq!(test.taken(), ["expect Namespaces, Pods, Services"]);
    assert_eq!(test.state.wanted(), Wanted::Gather(1));
    test.set(Kind::Pod, "n/a", "2");
    test.listed(Kind::Pod);
    test.set(Kind::Namespace, "n", "3");
    test.set(Kind::Service, "n/s", "4");
    test.listed(Kind::Service);
    assert_eq!(test.taken(), ["expect Namespaces, Services", "expect Namespaces"]);
    test.listed(Kind::Namespace);
    let all = "replace [+NetworkPolicy n/p@1, +namespace n, +node a, +pod a@2, +service s, own 1]";
    assert_eq!(test.taken(), [all]);
    assert_eq!((test.state.phase(), test.state.wanted()), (Phase::Enforcing, Wanted::Follow(1)));
}

#[test]
fn an_agent_that_starts_among_policies_gathers_at_once_and_waits_for_all_lists() {
    let mut test = Test::new();
    test.set(Kind::NetworkPolicy, "n/p", "1");
    assert_eq!(test.state.wanted(), Wanted::Gather(1));
    PEERS.iter().for_each(|kind| test.listed(*kind));
    assert_eq!(
        test.state.missing(),
        ["NetworkPolicies", "ClusterNetworkPolicies", "Nodes", "this node's addresses"]
    );
    test.taken();
    test.listed(Kind::NetworkPolicy);
    test.own(2);
    test.listed_nodes();
    assert!(test.taken().iter().all(|it| it.starts_with("expect")), "ClusterNetworkPolicies are unknown");
    test.discovered(false);
    assert_eq!(test.taken(), ["replace [+NetworkPolicy n/p@1, +node a, own 2]"]);
}

#[test]
fn an_agent_whose_predecessor_followed_peers_gathers_before_it_knows_a_policy() {
    let start = || {
        let mut test = Test::new();
        let orders = test.state.expect_policies();
        test.note(orders);
        assert_eq!((test.state.phase(), test.state.wanted()), (Phase::Gathering, Wanted::Gather(1)));
        assert_eq!(test.state.spread(), Duration::ZERO);
        PEERS.iter().for_each(|kind| test.listed(*kind));
        test.own(2);
        test.listed_nodes();
        test.discovered(false);
        test.taken();
        test
    };
    let mut test = start();
    test.set(Kind::NetworkPolicy, "n/p", "1");
    test.listed(Kind::NetworkPolicy);
    assert_eq!(test.taken(), ["replace [+NetworkPolicy n/p@1, +node a, own 2]"]);
    assert_eq!(test.state.wanted(), Wanted::Follow(1));
    // The policies have gone meanwhile.
    let mut test = start();
    test.listed(Kind::NetworkPolicy);
    assert_eq!((test.taken(), test.state.wanted()), (vec!["replace []".to_owned()], Wanted::Nothing));
    // A start that knows more already stays as it is.
    let mut test = Test::open();
    assert!(test.state.expect_policies().is_empty() && test.state.phase() == Phase::Open);
}

#[test]
fn of_what_changes_while_it_is_gathered_the_last_version_counts() {
    let mut test = Test::open();
    test.set(Kind::NetworkPolicy, "n/p", "1");
    test.set(Kind::Pod, "n/a", "2");
    test.gone(Kind::Pod, "n/a", "2");
    test.set(Kind::Pod, "n/a", "3");
    test.gone(Kind::Pod, "n/a", "2");
    test.set(Kind::Pod, "n/b", "4");
    test.gone(Kind::Pod, "n/b", "4");
    PEERS.iter().for_each(|kind| test.listed(*kind));
    assert_eq!(test.taken().last().unwrap(), "replace [+NetworkPolicy n/p@1, +node a, +pod a@3, own 1]");
}

#[test]
fn changes_pass_in_their_order_while_policies_are_enforced() {
    let mut test = Test::enforcing();
    test.set(Kind::Pod, "n/a", "2");
    test.set(Kind::Namespace, "n", "3");
    test.set(Kind::NetworkPolicy, "n/q", "4");
    test.gone(Kind::NetworkPolicy, "n/p", "1");
    test.set(Kind::Service, "n/s", "5");
    test.gone(Kind::Service, "n/s", "5");
    test.gone(Kind::Namespace, "n", "3");
    test.gone(Kind::Pod, "n/a", "2");
    test.own(2);
    test.own(2);
    for change in [Watched::Applied(node("b")), Watched::Gone { key: key("b"), uid: "uid-b".to_owned() }] {
        let orders = test.state.apply_node(&change);
        test.note(orders);
    }
    assert_eq!(
        test.taken(),
        [
            "+pod a@2",
            "+namespace n",
            "+NetworkPolicy n/q@4",
            "-NetworkPolicy n/p@1",
            "+service s",
            "-service @5",
            "-namespace n@3",
            "-pod @2",
            "own 2",
            "+node b",
            "-node @uid-b",
        ]
    );
}

#[test]
fn the_last_policy_leaves_its_peers_known_for_a_while() {
    let mut test = Test::enforcing();
    test.gone(Kind::NetworkPolicy, "n/p", "1");
    assert_eq!(
        (test.taken(), test.state.wanted()),
        (vec!["-NetworkPolicy n/p@1".to_owned()], Wanted::Idle(1))
    );
    test.set(Kind::NetworkPolicy, "n/p", "2");
    assert_eq!(
        (test.taken(), test.state.wanted()),
        (vec!["+NetworkPolicy n/p@2".to_owned()], Wanted::Follow(1))
    );
    let orders = test.state.idle_no_longer(1);
    test.note(orders);
    assert_eq!((test.taken(), test.state.phase()), (vec![], Phase::Enforcing), "a policy has come");
    test.gone(Kind::NetworkPolicy, "n/p", "2");
    test.taken();
    let orders = test.state.idle_no_longer(1);
    test.note(orders);
    assert_eq!((test.taken(), test.state.wanted()), (vec!["replace []".to_owned()], Wanted::Nothing));
}

#[test]
fn a_late_deletion_of_an_earlier_policy_ends_nothing() {
    let mut test = Test::enforcing();
    test.set(Kind::NetworkPolicy, "n/p", "2");
    test.gone(Kind::NetworkPolicy, "n/p", "1");
    assert_eq!((test.state.policies(), test.state.wanted()), (1, Wanted::Follow(1)));
}

#[test]
fn a_policy_that_goes_before_its_peers_are_listed_leaves_the_cluster_open() {
    let mut test = Test::open();
    test.set(Kind::NetworkPolicy, "n/p", "1");
    test.set(Kind::Pod, "n/a", "2");
    test.taken();
    test.gone(Kind::NetworkPolicy, "n/p", "1");
    assert_eq!((test.taken(), test.state.wanted()), (vec!["replace []".to_owned()], Wanted::Nothing));
    test.set(Kind::NetworkPolicy, "n/p", "3");
    PEERS.iter().for_each(|kind| test.listed(*kind));
    let all = "replace [+NetworkPolicy n/p@3, +node a, own 1]";
    assert_eq!(test.taken().last().unwrap(), all, "the pod was of the earlier watch");
}

#[test]
fn news_of_a_watch_that_is_being_stopped_are_ignored() {
    let mut test = Test::open();
    test.set(Kind::NetworkPolicy, "n/p", "1");
    test.gone(Kind::NetworkPolicy, "n/p", "1");
    let news =
        || News::Applied { key: key("n/a"), uid: "2".to_owned(), change: change(Kind::Pod, "n/a", "2") };
    assert!(test.state.apply(Kind::Pod, Some(1), news()).is_empty());
    test.set(Kind::NetworkPolicy, "n/p", "3");
    assert_eq!(test.state.wanted(), Wanted::Gather(2));
    test.taken();
    assert!(test.state.apply(Kind::Pod, Some(1), news()).is_empty());
    assert!(test.state.apply(Kind::Pod, Some(1), News::Listed).is_empty());
    assert_eq!(test.state.missing(), ["Namespaces", "Pods", "Services"]);
}

#[test]
fn cluster_policies_that_appear_later_take_effect_together() {
    let mut test = Test::enforcing();
    test.discovered(true);
    test.set(Kind::ClusterNetworkPolicy, "c", "1");
    test.set(Kind::ClusterNetworkPolicy, "d", "2");
    test.gone(Kind::ClusterNetworkPolicy, "d", "2");
    assert_eq!(test.taken(), NONE);
    test.listed(Kind::ClusterNetworkPolicy);
    assert_eq!(test.taken(), ["+ClusterNetworkPolicy c@1"]);
    test.gone(Kind::NetworkPolicy, "n/p", "1");
    test.gone(Kind::ClusterNetworkPolicy, "c", "1");
    assert_eq!(test.taken(), ["-NetworkPolicy n/p@1", "-ClusterNetworkPolicy c@1"]);
    assert_eq!(test.state.wanted(), Wanted::Idle(1));
}

#[test]
fn a_cluster_policy_in_an_open_cluster_gathers_after_its_own_list() {
    let mut test = Test::open();
    test.discovered(true);
    assert_eq!((test.taken(), test.state.phase()), (vec![], Phase::Open));
    test.set(Kind::ClusterNetworkPolicy, "c", "1");
    assert_eq!(test.taken(), ["expect ClusterNetworkPolicies, Namespaces, Pods, Services"]);
    PEERS.iter().for_each(|kind| test.listed(*kind));
    test.taken();
    test.listed(Kind::ClusterNetworkPolicy);
    assert_eq!(test.taken(), ["replace [+ClusterNetworkPolicy c@1, +node a, own 1]"]);
}

#[test]
fn the_first_policy_of_a_cluster_spreads_the_lists_of_its_nodes_and_a_start_waits_for_nothing() {
    let join = |test: &mut Test, nodes: std::ops::Range<usize>| {
        for n in nodes {
            let orders = test.state.apply_node(&Watched::Applied(node(&format!("n{n}"))));
            test.note(orders);
        }
    };
    let mut start = Test::new();
    join(&mut start, 0..100);
    start.set(Kind::NetworkPolicy, "n/p", "1");
    assert_eq!((start.state.phase(), start.state.spread()), (Phase::Gathering, Duration::ZERO));
    let mut first = Test::open();
    join(&mut first, 0..99);
    first.set(Kind::NetworkPolicy, "n/p", "1");
    assert_eq!(first.state.spread(), Duration::from_millis(200));
    join(&mut first, 100..5000);
    assert_eq!(first.state.spread(), Duration::from_secs(2));
}

#[test]
fn what_is_assumed_to_be_open_is_judged_as_soon_as_a_policy_is_known() {
    let mut test = Test::new();
    test.assume_open();
    assert_eq!(test.taken(), ["replace []"]);
    assert_eq!((test.state.phase(), test.state.wanted()), (Phase::Assumed, Wanted::Nothing));
    assert_eq!(test.state.missing(), ["NetworkPolicies", "ClusterNetworkPolicies"]);
    test.set(Kind::NetworkPolicy, "n/p", "1");
    assert_eq!(test.state.phase(), Phase::Gathering, "before the list is complete");
    assert!(test.taken()[0].starts_with("expect NetworkPolicies"));
    test.discovered(false);
    test.listed(Kind::NetworkPolicy);
    PEERS.iter().for_each(|kind| test.listed(*kind));
    test.listed_nodes();
    test.own(1);
    assert!(test.taken().last().unwrap().starts_with("replace [+NetworkPolicy n/p@1"));
    assert_eq!(test.state.phase(), Phase::Enforcing);
}

#[test]
fn a_cluster_that_turns_out_to_have_no_policy_stays_open() {
    let mut test = Test::new();
    test.assume_open();
    test.listed(Kind::NetworkPolicy);
    assert_eq!(test.state.phase(), Phase::Assumed);
    test.discovered(false);
    assert_eq!(test.state.phase(), Phase::Open);
}

#[test]
fn only_what_was_never_listed_is_assumed_to_be_open() {
    for mut test in [Test::open(), Test::enforcing()] {
        test.taken();
        let before = test.state.phase();
        test.assume_open();
        assert_eq!((test.state.phase(), test.taken().len()), (before, 0));
    }
    let mut test = Test::new();
    test.set(Kind::NetworkPolicy, "n/p", "1");
    test.taken();
    test.assume_open();
    assert_eq!((test.state.phase(), test.taken().len()), (Phase::Gathering, 0));
}

#[test]
fn versions_of_cluster_policies_that_are_not_read_are_remembered_until_another_answer() {
    let mut test = Test::new();
    test.listed(Kind::NetworkPolicy);
    let orders = test.state.discovered(Served::Others(vec!["v1".to_owned()]));
    test.note(orders);
    assert_eq!((test.state.phase(), test.state.unread()), (Phase::Open, &["v1".to_owned()][..]));
    test.discovered(true);
    assert!(test.state.unread().is_empty());
}
