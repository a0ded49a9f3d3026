//! The behaviour of a watch against a scripted API server.

mod age;
mod checkpoints;
mod doubt;
mod repeated;
mod script;
mod silence;
mod stand_in;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};

use self::script::{Asked, Reply, Script, Step};
use super::{reflector::Reflector, *};
use crate::{
    api::Api,
    health::{Health, State},
    metrics::{Metrics, SourceLabels},
};

/// A minimal API object.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct TestObject {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default, skip_serializing)]
    resource_version: String,
}

#[derive(Debug, Default, Clone, Deserialize, Serialize)]
struct Spec {}

impl Object for TestObject {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.metadata.namespace, &self.metadata.name)
    }

    fn uid(&self) -> &str {
        &self.metadata.uid
    }

    fn take_version(&mut self) -> String {
        std::mem::take(&mut self.metadata.resource_version)
    }

    fn is_repeated_from(&self, earlier: &Self) -> bool {
        self.metadata.uid.starts_with("quiet") && self.metadata.uid == earlier.metadata.uid
    }
}

/// A running watch with its outputs.
struct Test {
    script: Script,
    changes: Changes,
    checkpoints: Checkpoints,
    health: Health,
    metrics: Metrics,
    stop: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// The changes that the sink received, as short texts: `+a/u1`, `-a/u1`, `a/u1>u2`, `synced`.
#[derive(Clone, Default)]
struct Changes(Arc<Mutex<Vec<String>>>);

#[derive(Clone, Default)]
struct Checkpoints {
    saved: Arc<Mutex<Option<Saved>>>,
    is_full: Arc<AtomicBool>,
    /// Whether the next write fails.
    fails_once: Arc<AtomicBool>,
    /// Whether the next write finds that objects are lost.
    loses_once: Arc<AtomicBool>,
    /// Objects written, or removed, by all updates.
    written: Arc<AtomicUsize>,
    /// The time of the checkpoint.
    time: Option<SystemTime>,
}

/// Position, identity and objects.
type Saved = (String, String, BTreeMap<String, Box<RawValue>>);

impl Sink<TestObject> for Changes {
    fn apply(&self, change: Change<TestObject>) {
        self.0.lock().unwrap().push(match change {
            Change::Applied(object) => format!("+{}/{}", object.key().name(), object.uid()),
            Change::Gone { key, uid } => format!("-{}/{uid}", key.name()),
            Change::Synced => "synced".to_owned(),
        });
    }

    fn replace(&self, object: Arc<TestObject>, key: ObjectKey, uid: String) {
        self.0.lock().unwrap().push(format!("{}/{uid}>{}", key.name(), object.uid()));
    }
}

impl CheckpointStore for Checkpoints {
    fn load(&self, _: &str, identity: &str) -> Option<Checkpoint> {
        let (position, of, objects) =
            self.saved.lock().unwrap().clone().filter(|(_, of, _)| of == identity)?;
        assert!(of.ends_with(" /api/v1/pods fieldSelector=spec.nodeName=node"), "{of}");
        Some(Checkpoint { position, objects: objects.into_values().collect(), written: self.time })
    }

    fn has(&self, _: &str) -> bool {
        self.saved.lock().unwrap().is_some()
    }

    fn remove(&self, _: &str) -> std::io::Result<()> {
        *self.saved.lock().unwrap() = None;
        Ok(())
    }

    fn save(&self, _: &str, identity: &str, update: &Update) -> Result<(), SaveError> {
        if self.fails_once.swap(false, Ordering::SeqCst) || self.is_full.load(Ordering::SeqCst) {
            return Err(SaveError::Failed("no space left on device".into()));
        }
        if self.loses_once.swap(false, Ordering::SeqCst) {
            return Err(SaveError::Lost);
        }
        self.written.fetch_add(update.objects.len(), Ordering::SeqCst);
        let mut saved = self.saved.lock().unwrap();
        let before = saved.take().filter(|_| !update.replaces_all);
        let mut objects = before.map(|(_, _, objects)| objects).unwrap_or_default();
        for (key, object) in &update.objects {
            let object = match object {
                Entry::Written(object) => object,
                Entry::Kept => unreachable!("the type is writable"),
                Entry::Removed => {
                    objects.remove(key.as_str());
                    continue;
                }
            };
            let mut json = Vec::new();
            object.write(&mut json).unwrap();
            let json = RawValue::from_string(String::from_utf8(json).unwrap()).unwrap();
            objects.insert(key.to_string(), json);
        }
        *saved = Some((update.position.clone(), identity.to_owned(), objects));
        Ok(())
    }
}

const SETTINGS: Settings = Settings {
    retry_timeout: Duration::from_secs(60),
    read_timeout: Duration::from_secs(90),
    max_backoff: Duration::from_secs(30),
};

impl Test {
    fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::restart(replies, Checkpoints::default())
    }

    /// Starts the watch of a restarted agent.
    fn restart(replies: impl IntoIterator<Item = Reply>, checkpoints: Checkpoints) -> Self {
        Self::with(replies, checkpoints, SETTINGS)
    }

    fn with(replies: impl IntoIterator<Item = Reply>, checkpoints: Checkpoints, settings: Settings) -> Self {
        let script = Script::new(replies);
        let api = Arc::new(Api::with_client(script.client()));
        Self::of(script, api, checkpoints, settings)
    }

    fn of(script: Script, api: Arc<Api>, checkpoints: Checkpoints, settings: Settings) -> Self {
        let (changes, health, metrics) = (Changes::default(), Health::default(), Metrics::default());
        let reflector = Reflector::new(
            Scope {
                name: "pods",
                path: "/api/v1/pods",
                selector: Some(("fieldSelector", "spec.nodeName=node".to_owned())),
            },
            api,
            changes.clone(),
            Arc::new(checkpoints.clone()),
            settings,
            metrics.watch.clone(),
            health.component("pods", false, ""),
        );
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(reflector.run(stopped));
        Self { script, changes, checkpoints, health, metrics, stop: Some((stop, task)) }
    }

    fn changes(&self) -> Vec<String> {
        self.changes.0.lock().unwrap().clone()
    }

    fn asked(&self) -> Vec<Asked> {
        self.script.asked()
    }

    fn state(&self) -> State {
        self.health.components()["pods"].state
    }

    fn position(&self) -> Option<String> {
        self.checkpoints.saved.lock().unwrap().as_ref().map(|(position, ..)| position.clone())
    }

    async fn stop(&mut self) {
        let (stop, task) = self.stop.take().unwrap();
        stop.send(()).unwrap();
        task.await.unwrap();
    }
}

fn pod(name: &str, uid: &str, version: u64) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"{uid}","resourceVersion":"{version}"}}}}"#
    )
}

fn event(kind: &str, name: &str, uid: &str, version: u64) -> Step {
    Step::Send(format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", pod(name, uid, version)))
}

fn bookmark(version: u64, initial_end: bool) -> Step {
    let annotations = if initial_end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    Step::Send(format!(
        "{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{{\"resourceVersion\":\"{version}\"{annotations}}}}}}}\n"
    ))
}

fn error(code: u16, more: &str) -> Step {
    Step::Send(format!("{{\"type\":\"ERROR\",\"object\":{{\"code\":{code}{more}}}}}\n"))
}

fn status(code: u16) -> Reply {
    Reply::Whole(code, Vec::new(), format!(r#"{{"kind":"Status","code":{code}}}"#))
}

fn page(pods: &[String], version: u64, token: &str) -> Reply {
    let pods = pods.join(",");
    Reply::Whole(
        200,
        Vec::new(),
        format!(r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{token}"}},"items":[{pods}]}}"#),
    )
}

/// A stream that begins with a list of one object, `a`, at position 10.
fn listing(then: impl IntoIterator<Item = Step>) -> Reply {
    let list = [event("ADDED", "a", "u1", 5), bookmark(10, true)];
    Reply::Stream(list.into_iter().chain(then).collect())
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_continues_as_a_watch() {
    let test =
        Test::start([listing([event("MODIFIED", "a", "u1", 11), event("ADDED", "b", "u2", 12), Step::Hang])]);
    sleep(secs(5)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced", "+a/u1", "+b/u2"]);
    let [asked] = test.asked().try_into().unwrap();
    for part in [
        "fieldSelector=spec.nodeName%3Dnode",
        "watch=true",
        "allowWatchBookmarks=true",
        "sendInitialEvents=true",
    ] {
        assert!(asked.query.contains(part), "{part} in {}", asked.query);
    }
    assert_eq!((test.state(), test.position().as_deref()), (State::Healthy, Some("12")));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_stream_lists_gets_requests_for_pages() {
    let test = Test::start([
        status(422),
        page(&[pod("a", "u1", 3)], 10, "more"),
        page(&[pod("b", "u2", 4)], 10, ""),
        Reply::Stream(vec![event("ADDED", "c", "u3", 11), Step::Hang]),
    ]);
    sleep(secs(5)).await;
    assert_eq!(test.changes(), ["+a/u1", "+b/u2", "synced", "+c/u3"]);
    let asked = test.asked();
    assert!(asked[1].query.contains("limit=500") && !asked[1].query.contains("continue"), "{asked:?}");
    assert!(asked[2].query.contains("continue=more"), "{asked:?}");
    assert!(asked[3].query.contains("resourceVersion=10"), "{asked:?}");
    assert!(asked[3].at < secs(1), "without backoff");
}

#[tokio::test(start_paused = true)]
async fn an_ended_stream_resumes_at_its_position_without_delay_or_relist() {
    let end = || Step::Wait(secs(2));
    let test = Test::start([
        listing([event("ADDED", "b", "u2", 12), end()]),
        Reply::Stream(vec![bookmark(20, false), end()]),
        Reply::Stream(vec![end(), Step::Break]),
        Reply::Stream(vec![event("DELETED", "b", "u2", 25), Step::Hang]),
    ]);
    sleep(secs(10)).await;
    let asked = test.asked();
    let versions: Vec<_> = asked.iter().map(|it| version(&it.query)).collect();
    assert_eq!(versions, ["", "12", "20", "20"], "a bookmark moves the position");
    assert!(asked[3].at < Duration::from_millis(6100), "no delay: {asked:?}");
    assert_eq!(test.changes(), ["+a/u1", "synced", "+b/u2", "-b/u2"]);
    assert_eq!(test.position().as_deref(), Some("25"));
}

#[tokio::test(start_paused = true)]
async fn streams_that_end_at_once_are_retried_with_backoff() {
    for says in [Vec::new(), vec![bookmark(20, false)]] {
        let ends = (0..200).map(|_| Reply::Stream(says.clone()));
        let test = Test::start(std::iter::once(listing([])).chain(ends));
        sleep(secs(60)).await;
        let times = test.asked().len();
        assert!((4..12).contains(&times), "{times} requests in a minute");
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_position_leads_to_a_relist_that_finds_missed_deletions() {
    for (expired, how) in [
        (Reply::Stream(vec![error(410, r#","reason":"Expired""#)]), "in the stream"),
        (status(410), "as the response"),
    ] {
        let test = Test::start([
            listing([event("ADDED", "b", "u2", 12), Step::Wait(secs(2))]),
            expired,
            Reply::Stream(vec![event("ADDED", "a", "u9", 30), bookmark(31, true), Step::Hang]),
        ]);
        sleep(secs(20)).await;
        let expected = ["+a/u1", "synced", "+b/u2", "a/u1>u9", "-b/u2"];
        assert_eq!(test.changes(), expected, "{how}: `a` was replaced and `b` deleted");
        assert_eq!(test.position().as_deref(), Some("31"));
        let asked = &test.asked()[2].query;
        assert_eq!(version(asked), "12", "{how}: a relist does not go back in time");
        assert!(asked.contains("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"), "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_expires_each_new_position_gets_requests_with_backoff() {
    let circle = |_| [listing([]), Reply::Stream(vec![error(410, "")])];
    let test = Test::start((0..50).flat_map(circle));
    sleep(secs(120)).await;
    let times = test.asked().len();
    assert!(times < 20, "{times} requests in two minutes");
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_respected_in_the_header_and_in_the_status() {
    let header = Reply::Whole(429, vec![("retry-after", "7".to_owned())], String::new());
    let stream = Reply::Stream(vec![error(504, r#","details":{"retryAfterSeconds":9}"#)]);
    let test = Test::start([listing([Step::Wait(secs(2))]), header, stream, Reply::Stream(vec![Step::Hang])]);
    sleep(secs(60)).await;
    let at: Vec<_> = test.asked().iter().map(|it| it.at).collect();
    assert!(at[2] - at[1] >= secs(7) && at[2] - at[1] < secs(8), "{at:?}");
    assert!(at[3] - at[2] >= secs(9) && at[3] - at[2] < secs(10), "{at:?}");
    assert_eq!(test.asked().iter().map(|it| version(&it.query)).collect::<Vec<_>>(), ["", "10", "10", "10"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_unhealthy_after_the_retry_timeout_and_keeps_retrying() {
    let mut replies = vec![listing([Step::Wait(secs(2))])];
    replies.extend((0..40).map(|_| status(500)));
    let mut test = Test::start(replies);
    sleep(secs(50)).await;
    assert_eq!(test.state(), State::Healthy, "within the retry timeout");
    sleep(secs(20)).await;
    assert_eq!(test.state(), State::Unhealthy);
    sleep(secs(600)).await;
    let asked = test.asked();
    let last = asked.last().unwrap().at;
    assert!(last > secs(600), "retries: {last:?}");
    assert!(asked.len() < 45, "with backoff: {}", asked.len());
    test.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_recovers_when_its_stream_is_accepted() {
    let test = Test::start([listing([Step::Wait(secs(2))])]);
    test.script.otherwise(status(503), status(503));
    sleep(secs(100)).await;
    assert_eq!(test.state(), State::Unhealthy);
    test.script.otherwise(Reply::Stream(vec![Step::Hang]), status(503));
    sleep(secs(89)).await;
    assert_eq!(test.state(), State::Healthy, "even without events");
}

#[tokio::test(start_paused = true)]
async fn a_half_open_connection_is_detected_and_the_watch_resumes() {
    let test =
        Test::start([listing([event("ADDED", "b", "u2", 12), Step::Hang]), Reply::Stream(vec![Step::Hang])]);
    sleep(secs(100)).await;
    let asked = test.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked[1].at >= secs(90) && version(&asked[1].query) == "12", "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_restored_from_a_backup_is_detected_though_its_stream_is_silent() {
    let silent = || Reply::Stream(vec![Step::Hang]);
    let test = Test::start([
        listing([event("ADDED", "b", "u2", 1200), Step::Hang]),
        silent(),
        page(&[], 40, ""),
        Reply::Stream(vec![bookmark(42, false), Step::Hang]),
    ]);
    sleep(secs(300)).await;
    assert_eq!(test.changes()[3..], ["-a/u1", "-b/u2"]);
    assert_eq!((test.state(), test.position().as_deref()), (State::Healthy, Some("42")));
    assert_eq!(version(&test.asked()[3].query), "40", "a position of the new history");
}

#[tokio::test(start_paused = true)]
async fn an_aborted_list_deletes_nothing() {
    let test = Test::start([
        listing([event("ADDED", "b", "u2", 12), Step::Wait(secs(2))]),
        status(410),
        Reply::Stream(vec![event("ADDED", "c", "u3", 20), Step::Break]),
        page(&[pod("a", "u1", 5), pod("b", "u2", 12)], 31, ""),
        Reply::Stream(vec![Step::Hang]),
    ]);
    sleep(secs(30)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced", "+b/u2", "+c/u3", "+a/u1", "+b/u2", "-c/u3"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_deletion_does_not_remove_a_successor_of_the_same_name() {
    let test =
        Test::start([listing([event("ADDED", "a", "u2", 12), event("DELETED", "a", "u1", 13), Step::Hang])]);
    sleep(secs(1)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced", "a/u1>u2"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_watches_all_fail_is_listed_in_pages() {
    let mut replies = vec![Reply::Stream(vec![error(500, "")]), page(&[pod("a", "u1", 3)], 10, "")];
    replies.extend((0..50).map(|_| Reply::Stream(vec![error(500, "")])));
    let test = Test::start(replies);
    sleep(secs(120)).await;
    assert_eq!(test.changes(), ["+a/u1", "synced"], "listed in pages");
    assert!(test.asked().len() < 15, "{}", test.asked().len());
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn an_absent_resource_is_retried_each_minute() {
    let test = Test::start([status(404), status(404), status(404), listing([Step::Hang])]);
    sleep(secs(200)).await;
    let asked = test.asked();
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert!(asked[1].at >= secs(60));
    let changes = test.changes();
    assert_eq!(changes[..2], ["synced", "synced"], "an absent resource has no objects");
    assert!(changes.ends_with(&["+a/u1".to_owned(), "synced".to_owned()]), "{changes:?}");
}

fn version(query: &str) -> &str {
    query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")).unwrap_or_default()
}

/// The time after which the server should end a stream.
fn requested(query: &str) -> Duration {
    let seconds = query.split('&').find_map(|part| part.strip_prefix("timeoutSeconds="));
    secs(seconds.map_or(0, |seconds| seconds.parse().unwrap()))
}

#[tokio::test(start_paused = true)]
async fn streams_of_many_nodes_end_between_five_and_ten_minutes() {
    let mut times = Vec::new();
    for _ in 0..200 {
        let test = Test::start([]);
        sleep(secs(0)).await;
        sleep(Duration::from_millis(1)).await;
        times.push(requested(&test.asked()[0].query));
    }
    times.sort();
    assert!(times[0] >= secs(300) && times[0] < secs(330), "{times:?}");
    assert!(times[199] < secs(600) && times[199] > secs(570), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_without_end_is_given_up_after_two_minutes() {
    let endless = (0..100).flat_map(|_| [event("ADDED", "a", "u1", 5), Step::Wait(secs(10))]);
    let test = Test::start([Reply::Stream(endless.collect())]);
    test.script.otherwise(Reply::Stream(vec![Step::Hang]), page(&[pod("a", "u1", 5)], 10, ""));
    sleep(secs(119)).await;
    assert_eq!(test.asked().len(), 1);
    sleep(secs(15)).await;
    assert_eq!(test.changes().last().unwrap(), "synced", "listed in pages");
}

#[tokio::test(start_paused = true)]
async fn watches_can_be_added_and_removed() {
    let event = event("ADDED", "b", "u2", 12);
    let script = Script::new([listing([event, Step::Hang]), Reply::Stream(vec![Step::Hang])]);
    let (checkpoints, changes, health) = (Checkpoints::default(), Changes::default(), Health::default());
    let api = Arc::new(Api::with_client(script.client()));
    let watches =
        Watches::new(api, Arc::new(checkpoints.clone()), SETTINGS, Metrics::default().watch, health.clone());
    let scope = || Scope {
        name: "pods",
        path: "/api/v1/pods",
        selector: Some(("fieldSelector", "spec.nodeName=node".to_owned())),
    };
    watches.add::<TestObject>(scope(), changes.clone());
    watches.add::<TestObject>(scope(), changes.clone());
    sleep(Duration::from_millis(100)).await;
    assert_eq!((script.asked().len(), watches.dead()), (1, None), "adding is idempotent");
    watches.remove("pods").await;
    watches.remove("pods").await;
    assert!(health.components().is_empty());
    assert_eq!(
        checkpoints.saved.lock().unwrap().as_ref().map(|(position, ..)| position.as_str()),
        Some("12"),
        "durable"
    );
    watches.add::<TestObject>(scope(), changes.clone());
    sleep(secs(1)).await;
    assert_eq!(version(&script.asked()[1].query), "12", "resumed from the checkpoint");
    assert_eq!(changes.0.lock().unwrap().len(), 6, "the new sink gets all objects");
    watches.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_disappears_becomes_unhealthy() {
    let replies = std::iter::once(listing([Step::Wait(secs(2))])).chain((0..9).map(|_| status(404)));
    let test = Test::start(replies);
    sleep(secs(200)).await;
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarts_without_history_is_relisted_at_once() {
    // Up again before a list stands in for the watch, ten seconds after its first failure.
    let away = (0..2).map(|_| status(503));
    let list = page(&[pod("a", "u1", 5), pod("b", "u2", 30)], 30, "");
    let back = [Reply::Stream(vec![error(410, "")]), list, Reply::Stream(vec![Step::Hang])];
    let test = Test::start(std::iter::once(listing([Step::Wait(secs(2))])).chain(away).chain(back));
    sleep(secs(120)).await;
    let asked = test.asked();
    let expired = asked.get(3).unwrap();
    let list = asked.get(4).unwrap();
    assert_eq!(
        list.query,
        "fieldSelector=spec.nodeName%3Dnode&resourceVersion=10&resourceVersionMatch=NotOlderThan"
    );
    assert!(list.at - expired.at <= secs(10), "{asked:?}");
}
