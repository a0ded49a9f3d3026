//! When an agent lists what policies ask about, in the paused time of the test.

use std::{
    future::pending,
    io,
    sync::{Arc, Mutex},
};

use ferrule_policy::{Capacities, EndpointId, EndpointRow, Op, RulesetId, Table};
use http::{Request, Response};
use kube::client::Body;

use super::*;
use crate::{
    cluster::Pods,
    events::Events,
    health::Health,
    metrics::{EventMetrics, Metrics},
    policy::{
        Enforcer, Maps, Reporters,
        feed::{News, state::Phase},
        tests::Fake,
    },
    watch::{
        Change as Watched, Checkpoint, CheckpointStore, ObjectKey, SaveError, Settings, Sink as _, Update,
    },
};

/// The names of watches that have a checkpoint, without objects.
struct Checkpoints(&'static [&'static str]);

impl CheckpointStore for Checkpoints {
    fn load(&self, name: &str, _: &str) -> Option<Checkpoint> {
        let checkpoint = || Checkpoint { position: "1".to_owned(), objects: Vec::new(), written: None };
        self.0.contains(&name).then(checkpoint)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    fn save(&self, _: &str, _: &str, _: &Update) -> Result<(), SaveError> {
        Ok(())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

const SETTINGS: Settings = Settings {
    retry_timeout: Duration::from_secs(60),
    read_timeout: Duration::from_secs(90),
    max_backoff: Duration::from_secs(30),
};

/// A feed whose enforcer has no thread.
fn feed(maps: Fake, health: &Health) -> Arc<Feed> {
    let enforcer = Enforcer::new(Arc::new(maps), Capacities::default(), Pods::default());
    let (events, reporters) = (Events::disabled(EventMetrics::default()), Arc::new(Reporters::new("node-0")));
    Feed::new(Arc::new(enforcer), events, reporters, health.component("policy-feed", false, ""))
}

fn object(uid: &str) -> PolicyObject {
    let json = r#"{"metadata":{"namespace":"n","name":"p","uid":"UID"},"spec":{"podSelector":{}}}"#;
    serde_json::from_str(&json.replace("UID", uid)).unwrap()
}

fn policy() -> News {
    let change = Change::Policy(Arc::new(network_policy(&object("1"))));
    News::Applied { key: ObjectKey::new("n", "p"), uid: "1".to_owned(), change }
}

/// How long an agent in a cluster of 500 nodes waits with the list of all pods. `is_first`: the cluster had
/// no policy when the agent had started.
async fn wait_of(is_first: bool) -> Duration {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let server = tower::service_fn(move |request: Request<Body>| {
        log.lock().unwrap().push((request.uri().path().to_owned(), Instant::now()));
        pending::<io::Result<Response<Body>>>()
    });
    let api = Arc::new(Api::with_client(kube::Client::new(server, "default")));
    let health = Health::default();
    let metrics = Metrics::default().watch.clone();
    let watches = Arc::new(Watches::new(api, Arc::new(Checkpoints(&[])), SETTINGS, metrics, health.clone()));
    let feed = feed(Fake::default(), &health);
    for number in 0..500 {
        let node = format!(r#"{{"metadata":{{"name":"node-{number}","uid":"{number}"}}}}"#);
        feed.apply_node(&Watched::Applied(Arc::new(serde_json::from_str(&node).unwrap())));
    }
    let task = tokio::spawn({
        let (feed, watches) = (Arc::clone(&feed), Arc::clone(&watches));
        async move { feed.follow_peers(&watches).await }
    });
    let apply = |news| feed.update(|state| state.apply(Kind::NetworkPolicy, None, news));
    feed.discovered(Served::Nothing);
    let news = if is_first { [News::Listed, policy()] } else { [policy(), News::Listed] };
    for news in news {
        apply(news);
        sleep(Duration::from_millis(1)).await;
    }
    let since = Instant::now();
    sleep(Duration::from_secs(5)).await;
    task.abort();
    watches.stop().await;
    let asked = asked.lock().unwrap();
    let (_, at) = asked.iter().find(|(path, _)| path == "/api/v1/pods").expect("no list of pods");
    at.saturating_duration_since(since)
}

#[tokio::test(start_paused = true)]
async fn nodes_list_at_random_times_after_the_first_policy_and_at_once_after_a_start() {
    let mut waits = Vec::new();
    for _ in 0..40 {
        waits.push(wait_of(true).await);
    }
    waits.sort_unstable();
    let [least, most] = [waits[0], waits[39]];
    assert!(most <= Duration::from_secs(1), "500 nodes list in a second: {most:?}");
    assert!(least < Duration::from_millis(300) && most > Duration::from_millis(700), "{least:?} to {most:?}");
    assert_eq!(wait_of(false).await, Duration::ZERO);
}

/// The phases of an agent 9 s and a minute after its start, if its API server never answers. New pods wait
/// for 10 s.
async fn phases_without_an_answer(has: &'static [&'static str], maps: Fake, opens: bool) -> [Phase; 2] {
    let server = tower::service_fn(|_: Request<Body>| pending::<io::Result<Response<Body>>>());
    let api = Arc::new(Api::with_client(kube::Client::new(server, "default")));
    let (health, metrics) = (Health::default(), Metrics::default().watch.clone());
    let checkpoints = Arc::new(Checkpoints(has));
    let watches = Watches::new(Arc::clone(&api), checkpoints, SETTINGS, metrics, health.clone());
    let watches = Arc::new(watches);
    let feed = feed(maps, &health);
    let open_after = opens.then_some(Duration::from_secs(10));
    let task = tokio::spawn(Arc::clone(&feed).run(Arc::clone(&watches), api, open_after));
    sleep(Duration::from_secs(9)).await;
    let early = feed.inner().state.phase();
    sleep(Duration::from_secs(51)).await;
    task.abort();
    watches.stop().await;
    [early, feed.inner().state.phase()]
}

#[tokio::test(start_paused = true)]
async fn new_pods_are_open_where_policies_were_never_listed_only_if_the_operator_wants_that() {
    assert_eq!(phases_without_an_answer(&[], Fake::default(), true).await, [Phase::Unlisted, Phase::Assumed]);
    assert_eq!(
        phases_without_an_answer(&[], Fake::default(), false).await,
        [Phase::Unlisted, Phase::Unlisted]
    );
}

#[tokio::test(start_paused = true)]
async fn new_pods_wait_where_an_earlier_agent_has_left_rows_that_judge_or_a_checkpoint_of_policies() {
    let with = |ingress| {
        let maps = Fake::default();
        let (egress, table) = (RulesetId::OPEN, Table::A);
        let row = EndpointRow { ingress, egress, table, epoch: 1, audit: false };
        maps.apply(&[Op::Endpoint(EndpointId(7), Some(row))], table).unwrap();
        maps
    };
    assert_eq!(
        phases_without_an_answer(&[], with(RulesetId(3)), true).await,
        [Phase::Unlisted, Phase::Unlisted]
    );
    assert_eq!(
        phases_without_an_answer(&[], with(RulesetId::OPEN), true).await,
        [Phase::Unlisted, Phase::Assumed]
    );
    let of_cluster = &["clusternetworkpolicies"];
    assert_eq!(
        phases_without_an_answer(of_cluster, Fake::default(), true).await,
        [Phase::Unlisted, Phase::Unlisted]
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_policies_stays_open_for_an_agent_whose_api_server_hangs() {
    for has in [&["networkpolicies"][..], &["networkpolicies", "clusternetworkpolicies"]] {
        let phases = phases_without_an_answer(has, Fake::default(), false).await;
        assert_eq!(phases, [Phase::Open, Phase::Open], "{has:?}");
    }
}

#[test]
fn a_policy_that_a_list_replaces_opens_no_pod_while_peers_are_gathered_or_followed() {
    let feed = feed(Fake::default(), &Health::default());
    let read = |it: &PolicyObject| Some(Change::Policy(Arc::new(network_policy(it))));
    let policies = feed.channel(Kind::NetworkPolicy, None, read);
    feed.discovered(Served::Nothing);
    policies.apply(Watched::applied(object("1")));
    policies.apply(Watched::Synced);
    let replace = |uid: &str, by: &str| {
        policies.replace(Arc::new(object(by)), ObjectKey::new("n", "p"), uid.to_owned());
        let inner = feed.inner();
        (inner.state.phase(), inner.state.policies(), inner.state.wanted())
    };
    // Of an open cluster, the next policy would begin another generation.
    assert_eq!(replace("1", "2"), (Phase::Gathering, 1, Wanted::Gather(1)));
    feed.apply_node(&Watched::Synced);
    feed.set_own_addresses(&[]);
    for kind in [Kind::Namespace, Kind::Pod, Kind::Service] {
        feed.update(|state| state.apply(kind, Some(1), News::Listed));
    }
    assert_eq!(replace("2", "3"), (Phase::Enforcing, 1, Wanted::Follow(1)));
    let inbox = feed.enforcer.0.inbox();
    let are_new: Vec<_> = inbox.changes.iter().map(|it| matches!(it, Change::Policy(_))).collect();
    assert_eq!(are_new, [true, false], "the thread may take one without the other");
}
