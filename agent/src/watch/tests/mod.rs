//! How a watch behaves, against a server that does exactly what each test says.

mod script;
mod silence;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
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
}

/// A watch with all that it tells.
struct Test {
    script: Script,
    told: Told,
    memory: Kept,
    health: Health,
    metrics: Metrics,
    stop: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// What was told, as short texts: `+a/u1`, `-a/u1`, `synced`.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

#[derive(Clone, Default)]
struct Kept {
    saved: Arc<Mutex<Option<Saved>>>,
    is_full: Arc<AtomicBool>,
}

/// Position, identity and objects.
type Saved = (String, String, BTreeMap<String, Vec<u8>>);

impl Sink<TestObject> for Told {
    fn apply(&self, change: Change<TestObject>) {
        self.0.lock().unwrap().push(match change {
            Change::Applied(object) => format!("+{}/{}", object.key().name, object.uid()),
            Change::Gone { key, uid } => format!("-{}/{uid}", key.name),
            Change::Synced => "synced".to_owned(),
        });
    }
}

impl CheckpointStore for Kept {
    fn load(&self, _: &str, identity: &str) -> Option<Checkpoint> {
        let (position, of, objects) =
            self.saved.lock().unwrap().clone().filter(|(_, of, _)| of == identity)?;
        assert_eq!(of, "http://test /api/v1/pods fieldSelector=spec.nodeName=node");
        Some(Checkpoint { position, objects: objects.into_values().collect() })
    }

    fn save(
        &self,
        _: &str,
        identity: &str,
        update: &Update,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err("no space left on device".into());
        }
        let mut saved = self.saved.lock().unwrap();
        let before = saved.take().filter(|_| !update.replaces_all);
        let mut objects = before.map(|(_, _, objects)| objects).unwrap_or_default();
        for (key, object) in &update.objects {
            match object {
                Some(json) => objects.insert(key.clone(), json.clone()),
                None => objects.remove(key),
            };
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
        Self::go_on(replies, Kept::default())
    }

    /// As a restarted agent does.
    fn go_on(replies: impl IntoIterator<Item = Reply>, memory: Kept) -> Self {
        Self::with(replies, memory, SETTINGS)
    }

    fn with(replies: impl IntoIterator<Item = Reply>, memory: Kept, settings: Settings) -> Self {
        let (script, told, health) = (Script::new(replies), Told::default(), Health::default());
        let metrics = Metrics::default();
        let reflector = Reflector::new(
            Scope {
                name: "pods",
                path: "/api/v1/pods",
                selector: ("fieldSelector", "spec.nodeName=node".to_owned()),
            },
            Arc::new(Api::with_client(script.client())),
            told.clone(),
            Arc::new(memory.clone()),
            settings,
            metrics.watch.clone(),
            health.component("pods", false, ""),
        );
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(reflector.run(stopped));
        Self { script, told, memory, health, metrics, stop: Some((stop, task)) }
    }

    fn told(&self) -> Vec<String> {
        self.told.0.lock().unwrap().clone()
    }

    fn asked(&self) -> Vec<Asked> {
        self.script.asked()
    }

    fn state(&self) -> State {
        self.health.components()["pods"].state
    }

    fn position(&self) -> Option<String> {
        self.memory.saved.lock().unwrap().as_ref().map(|(position, ..)| position.clone())
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

/// A stream that begins with a list of one pod, `a`, at position 10.
fn listing(then: impl IntoIterator<Item = Step>) -> Reply {
    let list = [event("ADDED", "a", "u1", 5), bookmark(10, true)];
    Reply::Stream(list.into_iter().chain(then).collect())
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_list_is_streamed_and_goes_over_into_the_watch() {
    let test =
        Test::start([listing([event("MODIFIED", "a", "u1", 11), event("ADDED", "b", "u2", 12), Step::Hang])]);
    sleep(secs(5)).await;
    assert_eq!(test.told(), ["+a/u1", "synced", "+a/u1", "+b/u2"]);
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
async fn a_server_that_streams_no_lists_is_asked_for_pages() {
    let test = Test::start([
        status(422),
        page(&[pod("a", "u1", 3)], 10, "more"),
        page(&[pod("b", "u2", 4)], 10, ""),
        Reply::Stream(vec![event("ADDED", "c", "u3", 11), Step::Hang]),
    ]);
    sleep(secs(5)).await;
    assert_eq!(test.told(), ["+a/u1", "+b/u2", "synced", "+c/u3"]);
    let asked = test.asked();
    assert!(asked[1].query.contains("limit=500") && !asked[1].query.contains("continue"), "{asked:?}");
    assert!(asked[2].query.contains("continue=more"), "{asked:?}");
    assert!(asked[3].query.contains("resourceVersion=10"), "{asked:?}");
    assert!(asked[3].at < secs(1), "without a pause");
}

#[tokio::test(start_paused = true)]
async fn fix_a_watch_that_ends_resumes_where_it_was_without_delay_and_without_a_list() {
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
    assert_eq!(versions, ["", "12", "20", "20"], "also a bookmark moves the position");
    assert!(asked[3].at < Duration::from_millis(6100), "no delay: {asked:?}");
    assert_eq!(test.told(), ["+a/u1", "synced", "+b/u2", "-b/u2"]);
    assert_eq!(test.position().as_deref(), Some("25"));
}

#[tokio::test(start_paused = true)]
async fn fix_streams_that_end_at_once_do_not_make_a_hot_loop() {
    for says in [Vec::new(), vec![bookmark(20, false)]] {
        let ends = (0..200).map(|_| Reply::Stream(says.clone()));
        let test = Test::start(std::iter::once(listing([])).chain(ends));
        sleep(secs(60)).await;
        let times = test.asked().len();
        assert!((4..12).contains(&times), "{times} requests in a minute");
    }
}

#[tokio::test(start_paused = true)]
async fn fix_an_expired_position_is_listed_again_and_a_lost_deletion_is_found() {
    for (expired, how) in [
        (Reply::Stream(vec![error(410, r#","reason":"Expired""#)]), "in the stream"),
        (status(410), "as the answer"),
    ] {
        let test = Test::start([
            listing([event("ADDED", "b", "u2", 12), Step::Wait(secs(2))]),
            expired,
            Reply::Stream(vec![event("ADDED", "a", "u9", 30), bookmark(31, true), Step::Hang]),
        ]);
        sleep(secs(20)).await;
        let expected = ["+a/u1", "synced", "+b/u2", "-a/u1", "+a/u9", "-b/u2"];
        assert_eq!(test.told(), expected, "{how}: `a` is another one of the same name, and `b` is gone");
        assert_eq!(test.position().as_deref(), Some("31"));
        assert_eq!(version(&test.asked()[2].query), "", "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_sends_us_in_circles_gets_slower_and_slower_requests() {
    let circle = |_| [listing([]), Reply::Stream(vec![error(410, "")])];
    let test = Test::start((0..50).flat_map(circle));
    sleep(secs(120)).await;
    let times = test.asked().len();
    assert!(times < 20, "{times} requests in two minutes");
}

#[tokio::test(start_paused = true)]
async fn fix_retry_after_is_obeyed_in_the_header_and_in_the_status() {
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
async fn fix_after_the_retry_timeout_it_is_unhealthy_and_goes_on_trying() {
    let mut replies = vec![listing([Step::Wait(secs(2))])];
    replies.extend((0..40).map(|_| status(500)));
    let mut test = Test::start(replies);
    sleep(secs(50)).await;
    assert_eq!(test.state(), State::Healthy, "for as long as it may be short");
    sleep(secs(20)).await;
    assert_eq!(test.state(), State::Unhealthy);
    sleep(secs(600)).await;
    let asked = test.asked();
    let last = asked.last().unwrap().at;
    assert!(last > secs(600), "it goes on: {last:?}");
    assert!(asked.len() < 45, "with pauses: {}", asked.len());
    test.stop().await;
}

#[tokio::test(start_paused = true)]
async fn it_is_healthy_again_when_it_follows_again() {
    let mut replies = vec![listing([Step::Wait(secs(2))])];
    replies.extend((0..8).map(|_| status(503)));
    replies.push(Reply::Stream(vec![Step::Hang]));
    let test = Test::start(replies);
    sleep(secs(100)).await;
    assert_eq!(test.state(), State::Unhealthy);
    sleep(secs(95)).await;
    assert_eq!(test.state(), State::Healthy, "also when nothing happens there");
}

#[tokio::test(start_paused = true)]
async fn a_half_open_connection_is_noticed_and_the_watch_resumes() {
    let test =
        Test::start([listing([event("ADDED", "b", "u2", 12), Step::Hang]), Reply::Stream(vec![Step::Hang])]);
    sleep(secs(100)).await;
    let asked = test.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked[1].at >= secs(90) && version(&asked[1].query) == "12", "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_with_another_history_is_noticed_though_it_says_nothing() {
    let silent = || Reply::Stream(vec![Step::Hang]);
    let test = Test::start([
        listing([event("ADDED", "b", "u2", 1200), Step::Hang]),
        silent(),
        page(&[], 40, ""),
        Reply::Stream(vec![bookmark(42, false), Step::Hang]),
    ]);
    sleep(secs(300)).await;
    assert_eq!(test.told()[3..], ["-a/u1", "-b/u2"]);
    assert_eq!((test.state(), test.position().as_deref()), (State::Healthy, Some("42")));
    assert_eq!(version(&test.asked()[3].query), "40", "of the history that there is");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_decoded_is_passed_over_and_counted() {
    let odd = r#"{"type":"ADDED","object":{"metadata":{"name":"odd","resourceVersion":"13"},"spec":7}}"#;
    let test = Test::start([
        listing([Step::Send(format!("{odd}\n")), event("ADDED", "b", "u2", 14), Step::Wait(secs(2))]),
        Reply::Stream(vec![Step::Hang]),
    ]);
    sleep(secs(10)).await;
    assert_eq!(test.told(), ["+a/u1", "synced", "+b/u2"]);
    let counted = test.metrics.watch.undecodable.get_or_create(&SourceLabels { source: "pods" }).get();
    assert_eq!((counted, version(&test.asked()[1].query)), (1, "14"));
}

#[tokio::test(start_paused = true)]
async fn fix_a_restarted_agent_resumes_at_the_position_that_was_kept_and_knows_its_pods() {
    let mut first = Test::start([listing([event("ADDED", "b", "u2", 12), Step::Hang])]);
    sleep(Duration::from_millis(100)).await;
    first.stop().await;
    let kept = first.memory.clone();
    let second =
        Test::go_on([Reply::Stream(vec![event("DELETED", "a", "u1", 13), Step::Hang])], kept.clone());
    sleep(secs(5)).await;
    let [asked] = second.asked().try_into().unwrap();
    assert_eq!(version(&asked.query), "12", "resumed, not listed");
    assert_eq!(second.told(), ["+a/u1", "+b/u2", "synced", "-a/u1"]);
    let third = Test::go_on([Reply::Stream(vec![error(410, "")]), listing([Step::Hang])], kept);
    sleep(secs(10)).await;
    assert_eq!(third.told(), ["+b/u2", "synced", "+a/u1", "-b/u2"], "what went while no agent ran is found");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_says_nothing_of_what_is_gone() {
    let test = Test::start([
        listing([event("ADDED", "b", "u2", 12), Step::Wait(secs(2))]),
        status(410),
        Reply::Stream(vec![event("ADDED", "c", "u3", 20), Step::Break]),
        Reply::Stream(vec![
            event("ADDED", "a", "u1", 5),
            event("ADDED", "b", "u2", 12),
            bookmark(31, true),
            Step::Hang,
        ]),
    ]);
    sleep(secs(30)).await;
    assert_eq!(test.told(), ["+a/u1", "synced", "+b/u2", "+c/u3", "+a/u1", "+b/u2", "-c/u3"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_event_of_an_older_object_does_not_take_the_newer_one_of_its_name() {
    let test =
        Test::start([listing([event("ADDED", "a", "u2", 12), event("DELETED", "a", "u1", 13), Step::Hang])]);
    sleep(secs(1)).await;
    assert_eq!(test.told(), ["+a/u1", "synced", "-a/u1", "+a/u2"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_watches_all_fail_is_survived() {
    let mut replies = vec![Reply::Stream(vec![error(500, "")]), page(&[pod("a", "u1", 3)], 10, "")];
    replies.extend((0..50).map(|_| Reply::Stream(vec![error(500, "")])));
    let test = Test::start(replies);
    sleep(secs(120)).await;
    assert_eq!(test.told(), ["+a/u1", "synced"], "pages were got");
    assert!(test.asked().len() < 15, "{}", test.asked().len());
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_the_cluster_has_not_is_looked_for_now_and_then() {
    let test = Test::start([status(404), status(404), status(404), listing([Step::Hang])]);
    sleep(secs(200)).await;
    let asked = test.asked();
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert!(asked[1].at >= secs(60));
    let told = test.told();
    assert_eq!(told[..2], ["synced", "synced"], "there is none: all of them have been told");
    assert!(told.ends_with(&["+a/u1".to_owned(), "synced".to_owned()]), "{told:?}");
}

fn version(query: &str) -> &str {
    query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn sources_come_and_go_while_others_are_followed() {
    let event = event("ADDED", "b", "u2", 12);
    let script = Script::new([listing([event, Step::Hang]), Reply::Stream(vec![Step::Hang])]);
    let (memory, told, health) = (Kept::default(), Told::default(), Health::default());
    let api = Arc::new(Api::with_client(script.client()));
    let watches =
        Watches::new(api, Arc::new(memory.clone()), SETTINGS, Metrics::default().watch, health.clone());
    let scope = || Scope {
        name: "pods",
        path: "/api/v1/pods",
        selector: ("fieldSelector", "spec.nodeName=node".to_owned()),
    };
    watches.add::<TestObject>(scope(), told.clone());
    watches.add::<TestObject>(scope(), told.clone());
    sleep(Duration::from_millis(100)).await;
    assert_eq!((script.asked().len(), watches.dead()), (1, None), "one that is there is not added again");
    watches.remove("pods").await;
    watches.remove("pods").await;
    assert!(health.components().is_empty());
    assert_eq!(
        memory.saved.lock().unwrap().as_ref().map(|(position, ..)| position.as_str()),
        Some("12"),
        "durable"
    );
    watches.add::<TestObject>(scope(), told.clone());
    sleep(Duration::from_millis(100)).await;
    assert_eq!(version(&script.asked()[1].query), "12", "it goes on where it was");
    assert_eq!(told.0.lock().unwrap().len(), 6, "what is known is told to the new one too");
    watches.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_placed_does_not_end_the_stream_and_the_next_one_begins_with_a_list() {
    let test = Test::start([
        listing([Step::Send("garbage\n".to_owned()), event("ADDED", "b", "u2", 14), Step::Wait(secs(2))]),
        Reply::Stream(vec![event("ADDED", "b", "u2", 14), bookmark(20, true), Step::Hang]),
    ]);
    sleep(secs(10)).await;
    assert_eq!(test.told(), ["+a/u1", "synced", "+b/u2", "+b/u2", "-a/u1"], "what the garbage was is found");
}

#[tokio::test(start_paused = true)]
async fn fix_streams_of_garbage_and_lists_without_an_end_do_not_make_a_hot_loop() {
    let garbage = || Reply::Stream(vec![Step::Send("<html>sign in</html>\n".to_owned())]);
    let test = Test::start(std::iter::once(listing([])).chain((0..200).map(|_| garbage())));
    sleep(secs(60)).await;
    assert!(test.asked().len() < 15, "{} requests in a minute", test.asked().len());
    let half = || Reply::Stream(vec![event("ADDED", "a", "u1", 5)]);
    let test = Test::start((0..200).map(|_| half()));
    sleep(secs(60)).await;
    assert!(test.asked().len() < 15, "{} requests in a minute", test.asked().len());
    assert!(!test.told().contains(&"synced".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_and_not_understood_is_at_least_not_gone() {
    let odd = r#"{"metadata":{"name":"a","namespace":"n","uid":"u1","resourceVersion":"30"},"spec":7}"#;
    let test = Test::start([
        status(422),
        page(&[pod("a", "u1", 3), pod("b", "u2", 4)], 10, ""),
        Reply::Stream(vec![error(410, "")]),
        page(&[odd.to_owned()], 31, ""),
        Reply::Stream(vec![Step::Hang]),
    ]);
    sleep(secs(10)).await;
    assert_eq!(test.told(), ["+a/u1", "+b/u2", "synced", "-b/u2"]);
}

#[tokio::test(start_paused = true)]
async fn a_position_is_never_kept_without_what_came_before_it() {
    let mut test = Test::start([listing([
        Step::Wait(secs(3)),
        event("ADDED", "b", "u2", 12),
        event("DELETED", "a", "u1", 13),
        Step::Wait(secs(3)),
        event("ADDED", "c", "u3", 14),
        Step::Hang,
    ])]);
    sleep(Duration::from_millis(2500)).await;
    test.memory.is_full.store(true, Ordering::SeqCst);
    sleep(secs(2)).await;
    assert_eq!(test.position().as_deref(), Some("10"), "the disk is full");
    test.memory.is_full.store(false, Ordering::SeqCst);
    sleep(secs(5)).await;
    test.stop().await;
    let second = Test::go_on([Reply::Stream(vec![Step::Hang])], test.memory.clone());
    sleep(secs(1)).await;
    assert_eq!(version(&second.asked()[0].query), "14");
    assert_eq!(
        second.told(),
        ["+b/u2", "+c/u3", "synced"],
        "what could not be written at first is there too"
    );
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_goes_away_is_unhealthy_after_a_while() {
    let replies = std::iter::once(listing([Step::Wait(secs(2))])).chain((0..9).map(|_| status(404)));
    let test = Test::start(replies);
    sleep(secs(200)).await;
    assert_eq!(test.state(), State::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn fix_a_server_that_comes_back_without_its_history_is_listed_at_once() {
    let away = (0..5).map(|_| status(503));
    let back = [Reply::Stream(vec![error(410, "")]), listing([event("ADDED", "b", "u2", 30), Step::Hang])];
    let test = Test::start(std::iter::once(listing([Step::Wait(secs(2))])).chain(away).chain(back));
    sleep(secs(120)).await;
    let asked = test.asked();
    let [.., expired, list] = asked.as_slice() else { panic!("{asked:?}") };
    assert!(list.at - expired.at <= secs(2), "{asked:?}");
}
