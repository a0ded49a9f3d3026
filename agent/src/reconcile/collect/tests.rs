//! Garbage collection with a fake clock, an engine that only locks, and a namespace that is a file.

use std::path::{Path, PathBuf};

use tokio::time::advance;

use super::*;
use crate::{
    health::Reporter,
    registry::{Allocation, HostLink, HostSide, NetnsId, NewAttachment, State, Wishes, testing},
    watch::Change,
};

/// Locks nothing, removes nothing, and lets the test act just before the condition is asked.
#[derive(Default)]
struct Recorder {
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// The outcomes of the conditions.
    asked: Mutex<Vec<bool>>,
}

impl Detach for Recorder {
    async fn detach_if(
        self: &Arc<Self>,
        _key: &Key,
        condition: impl FnOnce() -> bool + Send + 'static,
    ) -> Result<bool, AttachError> {
        if let Some(before) = self.before.lock().unwrap().take() {
            before();
        }
        let outcome = condition();
        self.asked.lock().unwrap().push(outcome);
        Ok(outcome)
    }
}

/// A node with one attachment, whose pod and namespace are gone.
struct Node {
    collector: Arc<Collector<Recorder>>,
    engine: Arc<Recorder>,
    registry: Arc<Registry>,
    pods: Pods,
    metrics: ReconcileMetrics,
    health: Health,
    _watch: Reporter,
    directory: tempfile::TempDir,
}

const POD: &str = r#"{"metadata":{"namespace":"n","name":"web","uid":"u1"}}"#;

fn key(ifname: &str) -> Key {
    Key::try_from(format!("net/0123/{ifname}")).unwrap()
}

fn web() -> ObjectKey {
    ObjectKey::new("n", "web")
}

/// A minute's period, and so the normal spacing of 30 s.
async fn node() -> Node {
    let directory = tempfile::tempdir().unwrap();
    let registry = Arc::new(Registry::open(&directory.path().join("state")).unwrap());
    let (pods, health, metrics) = (Pods::default(), Health::default(), ReconcileMetrics::default());
    let watch = health.component(Pods::WATCH, false, "");
    watch.healthy("following");
    pods.apply_pod(Change::Synced);
    pods.apply_pod(Change::Gone { key: web(), uid: "u1".to_owned() });
    let engine = Arc::new(Recorder::default());
    let settings = Settings::every(Duration::from_secs(60));
    let collector = Collector::new(
        Arc::clone(&engine),
        Arc::clone(&registry),
        pods.clone(),
        Some(health.clone()),
        settings,
        metrics.clone(),
    );
    let collector = Arc::new(collector);
    let node = Node { collector, engine, registry, pods, metrics, health, _watch: watch, directory };
    attach(&node.registry, &node.netns());
    node
}

/// Attaches the pod in a namespace that never existed.
fn attach(registry: &Registry, netns: &Path) {
    let new = NewAttachment {
        key: key("eth0"),
        with: None,
        pod: PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u1".to_owned() },
        netns: netns.to_owned(),
        netns_id: NetnsId { dev: 4, ino: 7 },
        allocation: Allocation::Fixed(testing::attachment("eth0", None, 2).vif),
        wishes: Wishes::default(),
    };
    let reserved = registry.reserve(new).unwrap();
    let host = HostSide::Link(HostLink { ifname: "frgone".to_owned(), ifindex: 0x7fff_0001 });
    registry.advance(Attachment { host, ..reserved }, State::Attached).unwrap();
}

impl Node {
    fn netns(&self) -> PathBuf {
        self.directory.path().join("netns")
    }

    async fn examine(&self) {
        self.collector.examine(&web()).await.unwrap();
    }

    /// The outcomes of the last looks under the lock, so far.
    fn asked(&self) -> Vec<bool> {
        self.engine.asked.lock().unwrap().clone()
    }

    /// Acts between the second observation and the last look.
    fn before_the_last_look(&self, act: impl FnOnce() + Send + 'static) {
        *self.engine.before.lock().unwrap() = Some(Box::new(act));
    }

    /// Two observations, 30 s apart.
    async fn examine_twice(&self) {
        self.examine().await;
        advance(Duration::from_secs(30)).await;
        self.examine().await;
    }
}

#[tokio::test(start_paused = true)]
async fn orphan_is_removed_by_the_second_observation_thirty_seconds_after_the_first() {
    let node = node().await;
    node.examine().await;
    assert_eq!(node.metrics.dangling.get(), 1);
    advance(Duration::from_secs(29)).await;
    node.examine().await;
    assert!(node.asked().is_empty());
    advance(Duration::from_secs(1)).await;
    node.examine().await;
    assert_eq!(node.asked(), [true]);
    assert_eq!((node.metrics.removed.get(), node.metrics.dangling.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn pod_that_comes_back_before_the_last_look_keeps_its_attachment() {
    let node = node().await;
    let pods = node.pods.clone();
    node.before_the_last_look(move || {
        pods.apply_pod(Change::applied(serde_json::from_str(POD).unwrap()));
    });
    node.examine_twice().await;
    assert_eq!((node.asked(), node.metrics.removed.get()), (vec![false], 0));
    // The two observations do not count any more.
    node.pods.apply_pod(Change::Gone { key: web(), uid: "u1".to_owned() });
    node.examine().await;
    assert_eq!(node.asked(), [false]);
}

#[tokio::test(start_paused = true)]
async fn attachment_that_is_made_again_before_the_last_look_is_kept() {
    let node = node().await;
    let (registry, netns) = (Arc::clone(&node.registry), node.netns());
    node.before_the_last_look(move || {
        registry.release(&registry.get(&key("eth0")).unwrap()).unwrap();
        // As orphaned as its predecessor, but observed only now.
        attach(&registry, &netns);
    });
    node.examine_twice().await;
    assert_eq!((node.asked(), node.metrics.removed.get()), (vec![false], 0));
    let registry = Arc::clone(&node.registry);
    node.before_the_last_look(move || registry.release(&registry.get(&key("eth0")).unwrap()).unwrap());
    node.examine_twice().await;
    assert_eq!(node.asked(), [false, false], "nothing is left to remove");
}

#[tokio::test(start_paused = true)]
async fn watch_that_fails_before_the_last_look_keeps_the_attachment() {
    let node = node().await;
    let health = node.health.clone();
    node.before_the_last_look(move || drop(health.component(Pods::WATCH, false, "connecting")));
    node.examine_twice().await;
    assert_eq!(node.asked(), [false]);
}

#[tokio::test(start_paused = true)]
async fn key_with_a_call_is_not_observed_and_starts_over() {
    let node = node().await;
    node.examine().await;
    advance(Duration::from_secs(30)).await;
    let call = node.registry.lock(&key("eth0")).await;
    node.examine().await;
    assert_eq!(node.metrics.dangling.get(), 0);
    drop(call);
    node.examine().await;
    assert!(node.asked().is_empty());
    advance(Duration::from_secs(30)).await;
    // The lock of garbage collection itself is no call.
    let registry = Arc::clone(&node.registry);
    node.before_the_last_look(move || std::mem::forget(registry.try_lock(&key("eth0")).unwrap()));
    node.examine().await;
    assert_eq!(node.asked(), [true]);
}

#[tokio::test(start_paused = true)]
async fn round_examines_all_pods_and_forgets_what_is_gone() {
    let node = node().await;
    node.examine().await;
    let next = Instant::now() + Duration::from_secs(60);
    assert_eq!(node.collector.begin_round(next).into_iter().collect::<Vec<_>>(), [web()]);
    assert_eq!(node.metrics.dangling.get(), 1);
    node.registry.release(&node.registry.get(&key("eth0")).unwrap()).unwrap();
    assert!(node.collector.begin_round(next).is_empty());
    assert_eq!(node.metrics.dangling.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn explanation_announces_the_removal_and_changes_nothing() {
    let node = node().await;
    let explain = async || {
        let all = node.collector.explain().await.unwrap();
        let [it] = all.as_slice() else { panic!("{all:?}") };
        (it.verdict.clone(), it.removable)
    };
    assert_eq!(explain().await, ("kept: the first round has not begun".to_owned(), false));
    node.collector.begin_round(Instant::now() + Duration::from_secs(60));
    let text =
        "removed in the round after the next, which sees it first, in ~120 s, if all proofs still hold";
    assert_eq!(explain().await, (text.to_owned(), false));
    assert_eq!(explain().await, (text.to_owned(), false), "an explanation is no observation");
    node.examine().await;
    advance(Duration::from_secs(20)).await;
    let text = "removed in the next round, in ~40 s, if all proofs still hold";
    assert_eq!(explain().await, (text.to_owned(), true));
    node.pods.apply_pod(Change::applied(serde_json::from_str(POD).unwrap()));
    assert_eq!(explain().await, ("kept: the pod n/web exists".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn only_the_attachments_of_the_pod_are_examined() {
    let node = node().await;
    for other in [ObjectKey::new("other", "web"), ObjectKey::new("n", "other"), ObjectKey::new("", "")] {
        node.collector.examine(&other).await.unwrap();
        assert_eq!(node.metrics.dangling.get(), 0, "{other}");
    }
}

#[tokio::test(start_paused = true)]
async fn attachment_that_nothing_speaks_against_is_not_explained() {
    let node = node().await;
    // A path that cannot be read proves nothing, nor does a kind without a link.
    let circle = node.directory.path().join("circle");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    let it = node.registry.get(&key("eth0")).unwrap();
    let live = Attachment { netns: circle, host: HostSide::None, ..it };
    node.registry.advance(live, State::Attached).unwrap();
    assert_eq!(node.collector.explain().await.unwrap().len(), 1, "its pod is gone");
    node.pods.apply_pod(Change::applied(serde_json::from_str(POD).unwrap()));
    assert!(node.collector.explain().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_pod_that_the_watch_never_delivered_is_not_gone_right_after_its_attachment() {
    let node = node().await;
    let unknown = PodRef { name: "unknown".to_owned(), uid: "u2".to_owned(), ..PodRef::default() };
    let unknown = PodRef { namespace: "n".to_owned(), ..unknown };
    let attached = node.registry.get(&key("eth0")).unwrap();
    node.registry.update(Attachment { pod: unknown, ..attached }).unwrap();
    let (_, evidence) = node.collector.evidence(&key("eth0")).unwrap();
    let pod_gone = evidence.pod_gone.unwrap();
    assert!(!pod_gone.holds && pod_gone.observed.contains("the watch may lag"), "{}", pod_gone.observed);
}

/// Its IPAM address would be lost for as long as the pod lives.
#[tokio::test(start_paused = true)]
async fn sandbox_that_the_runtime_has_lost_is_removed_once_its_pod_has_another() {
    let node = node().await;
    node.pods.apply_pod(Change::applied(serde_json::from_str(POD).unwrap()));
    node.examine_twice().await;
    assert!(node.asked().is_empty(), "the pod lives");
    let old = node.registry.get(&key("eth0")).unwrap();
    let new = NewAttachment {
        key: Key::try_from("net/4567/eth0".to_owned()).unwrap(),
        with: None,
        pod: old.pod.clone(),
        netns: "/proc/self/ns/net".into(),
        netns_id: NetnsId { dev: 4, ino: 8 },
        allocation: Allocation::Fixed(testing::attachment("eth0", None, 3).vif),
        wishes: Wishes::default(),
    };
    let reserved = node.registry.reserve(new).unwrap();
    node.examine_twice().await;
    assert!(node.asked().is_empty(), "its ADD may fail");
    node.registry.advance(reserved, State::Attached).unwrap();
    node.examine_twice().await;
    assert_eq!((node.asked(), node.metrics.removed.get()), (vec![true], 1));
}
