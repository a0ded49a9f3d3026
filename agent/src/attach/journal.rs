//! What became of ADDs, for `ferrulectl explain`: where a VIF came from, how long each phase took, and why an
//! ADD failed. In memory and bounded: a restart forgets all of it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::phases::{Phases, Timeline};
use crate::{
    cluster::PodRef,
    decide::{Decision, VifSource},
    registry::Key,
};

/// Shared by the engine, which notes sources, and the CNI service, which notes times and failures.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    /// By the key that the runtime named.
    stories: BTreeMap<Key, Story>,
    /// The keys of `stories`, the oldest first; some may have none any more.
    order: VecDeque<Key>,
    /// The oldest first.
    failures: VecDeque<Failure>,
    in_flight: BTreeMap<u64, InFlightAdd>,
    next: u64,
}

/// How an attachment came to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// Where the VIF came from, and why from there.
    pub source: String,
    /// `None` until the ADD is answered.
    pub times: Option<Times>,
}

/// Where the time of an ADD went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// Milliseconds since the Unix epoch.
    pub began_ms: u64,
    pub total: Duration,
    /// In the order of the phases.
    pub phases: Vec<(&'static str, Duration)>,
}

/// ADDs in a row that failed for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub key: Key,
    pub pod: PodRef,
    /// Of the last one, in milliseconds since the Unix epoch.
    pub last_ms: u64,
    pub times: u64,
    /// As of the CNI specification.
    pub code: i32,
    pub message: String,
}

/// An ADD without an answer.
#[derive(Debug, Clone)]
pub struct InFlightAdd {
    pub key: Key,
    pub pod: PodRef,
    /// Milliseconds since the Unix epoch.
    pub began_ms: u64,
    phases: Phases,
}

/// Most stories. Full, they take about 1 MiB; a node has some hundred attachments.
const MAX_STORIES: usize = 2048;
/// Most failures, of all pods and of one.
const MAX_FAILURES: usize = 256;
const MAX_FAILURES_OF_POD: usize = 4;
/// Characters of an error's message.
const MAX_MESSAGE: usize = 1024;

// === impl Journal ===

impl Journal {
    /// Notes that an ADD has made an attachment.
    pub(super) fn attached(&self, key: &Key, source: VifSource, decision: &Decision) {
        let mut pages = self.pages();
        if pages.stories.insert(key.clone(), Story { source: words(source, decision), times: None }).is_none()
        {
            pages.order.push_back(key.clone());
        }
        while pages.order.len() > MAX_STORIES {
            if let Some(oldest) = pages.order.pop_front() {
                pages.stories.remove(&oldest);
            }
        }
    }

    /// Forgets a removed attachment.
    pub(super) fn detached(&self, key: &Key) {
        let mut pages = self.pages();
        if pages.stories.remove(key).is_some() {
            pages.order.retain(|it| it != key);
        }
    }

    /// Notes an ADD that has begun; returns its number for [`Self::end`].
    pub(crate) fn begin(&self, key: Key, pod: PodRef, phases: Phases) -> u64 {
        let mut pages = self.pages();
        let number = pages.next;
        pages.next += 1;
        pages.in_flight.insert(number, InFlightAdd { key, pod, began_ms: ms(SystemTime::now()), phases });
        number
    }

    /// Notes how an ADD ended: its code and message if it failed. A repeated ADD that found everything in
    /// place changes no story.
    pub(crate) fn end(&self, number: u64, timeline: &Timeline, error: Option<(i32, &str)>) {
        let mut pages = self.pages();
        let Some(InFlightAdd { key, pod, .. }) = pages.in_flight.remove(&number) else { return };
        match error {
            None => {
                if let Some(story) = pages.stories.get_mut(&key).filter(|it| it.times.is_none()) {
                    story.times = Some(Times::of(timeline));
                }
            }
            Some((code, message)) => pages.fail(key, pod, code, message),
        }
    }

    /// The story of the attachment that a runtime requested.
    pub fn story(&self, key: &Key) -> Option<Story> {
        self.pages().stories.get(key).cloned()
    }

    /// Where the time of each answered ADD went whose attachment exists.
    pub fn times(&self) -> Vec<Times> {
        self.pages().stories.values().filter_map(|it| it.times.clone()).collect()
    }

    /// The failures that match, the newest first.
    pub fn failures(&self, matches: impl Fn(&Key, &PodRef) -> bool) -> Vec<Failure> {
        self.pages().failures.iter().rev().filter(|it| matches(&it.key, &it.pod)).cloned().collect()
    }

    /// The ADDs in flight that match, the oldest first.
    pub fn in_flight(&self, matches: impl Fn(&Key, &PodRef) -> bool) -> Vec<InFlightAdd> {
        self.pages().in_flight.values().filter(|it| matches(&it.key, &it.pod)).cloned().collect()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Pages ===

impl Pages {
    fn fail(&mut self, key: Key, pod: PodRef, code: i32, message: &str) {
        let message: String = message.chars().take(MAX_MESSAGE).collect();
        let last_ms = ms(SystemTime::now());
        // A runtime tries again with the same sandbox, a kubelet with another one.
        let name = |pod: &PodRef| (pod.namespace.clone(), pod.name.clone());
        let is_of_pod = |it: &Failure| match pod.name.as_str() {
            "" => it.key == key,
            _ => name(&it.pod) == name(&pod),
        };
        let mut of_pod = self.failures.iter().enumerate().filter(|(_, it)| is_of_pod(it));
        let (first, count) = (of_pod.next().map(|(at, _)| at), of_pod.count() + 1);
        let last = self.failures.iter().rposition(is_of_pod);
        let same = last
            .and_then(|at| self.failures.get(at))
            .filter(|it| it.code == code && without_key(&it.message, &it.key) == without_key(&message, &key));
        let times = same.map_or(0, |it| it.times) + 1;
        let displaced = match (last, first) {
            (Some(last), _) if times > 1 => Some(last),
            (_, Some(first)) if count >= MAX_FAILURES_OF_POD => Some(first),
            _ => None,
        };
        if let Some(at) = displaced {
            self.failures.remove(at);
        } else if self.failures.len() >= MAX_FAILURES {
            self.failures.pop_front();
        }
        self.failures.push_back(Failure { key, pod, last_ms, times, code, message });
    }
}

// === impl InFlightAdd ===

impl InFlightAdd {
    /// What the ADD does now, or waits for.
    pub fn phase(&self) -> &'static str {
        self.phases.current().map_or("beginning", |phase| phase.as_str())
    }

    /// What the phase lacks, if that is known, and since when the ADD is in it, in milliseconds since the
    /// Unix epoch.
    pub fn wait(&self) -> (Option<&'static str>, u64) {
        match self.phases.wait() {
            Some((lacks, since)) => (lacks, ms(SystemTime::now() - since)),
            None => (None, self.began_ms),
        }
    }
}

// === impl Times ===

impl Times {
    fn of(timeline: &Timeline) -> Self {
        Self {
            began_ms: ms(timeline.began),
            total: timeline.total,
            phases: timeline.spent().map(|(phase, spent)| (phase.as_str(), spent)).collect(),
        }
    }
}

/// Where a VIF comes from, and why from there.
fn words(source: VifSource, decision: &Decision) -> String {
    match (source, decision) {
        (VifSource::Auto, Decision::Fixed(vif)) => {
            format!("the pod's {}, which goes before the agent's own IPAM (--vif-source auto)", vif.format)
        }
        (VifSource::Auto, Decision::FromIpam) => {
            "the agent's own IPAM, because the pod has no annotation vif.ferrule.dev/v1 (--vif-source auto)"
                .to_owned()
        }
        (VifSource::Ipam, Decision::FromIpam) => {
            "the agent's own IPAM, as for every pod (--vif-source ipam)".to_owned()
        }
        (VifSource::Annotation | VifSource::Ipam, Decision::Fixed(vif)) => {
            format!("the pod's {}, as for every pod (--vif-source annotation)", vif.format)
        }
        (VifSource::Kuryr, Decision::Fixed(vif)) => {
            format!("Kuryr's {}, as for every pod (--vif-source kuryr)", vif.format)
        }
        (VifSource::Annotation | VifSource::Kuryr, Decision::FromIpam) => "the agent's own IPAM".to_owned(),
    }
}

fn without_key(message: &str, key: &Key) -> String {
    message.replace(&key.to_string(), "")
}

fn ms(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::phases::Phase;

    fn key(container: &str) -> Key {
        Key::try_from(format!("net/{container}/eth0")).unwrap()
    }

    fn pod(name: &str) -> PodRef {
        PodRef { namespace: "shop".to_owned(), name: name.to_owned(), uid: String::new() }
    }

    fn add(journal: &Journal, container: &str, name: &str, error: Option<(i32, &str)>) {
        let phases = Phases::begin(false);
        let number = journal.begin(key(container), pod(name), phases.clone());
        phases.enter(Phase::Plug);
        assert_eq!(journal.in_flight(|it, _| *it == key(container))[0].phase(), "plug");
        if error.is_none() {
            journal.attached(&key(container), VifSource::Auto, &Decision::FromIpam);
        }
        journal.end(number, &phases.end().unwrap(), error);
    }

    #[test]
    fn an_attachment_has_a_source_and_times_until_it_is_removed() {
        let journal = Journal::default();
        add(&journal, "a", "web", None);
        let story = journal.story(&key("a")).unwrap();
        assert!(
            story.source.starts_with("the agent's own IPAM, because the pod has no annotation"),
            "{story:?}"
        );
        assert_eq!(story.times.clone().unwrap().phases[0].0, "plug");
        assert_eq!(journal.in_flight(|_, _| true).len(), 0);
        assert_eq!(journal.times(), story.times.clone().into_iter().collect::<Vec<_>>());
        let number = journal.begin(key("a"), pod("web"), Phases::untracked());
        journal.end(number, &Phases::begin(false).end().unwrap(), None);
        assert_eq!(journal.story(&key("a")).unwrap(), story, "a repeated ADD found everything in place");
        journal.detached(&key("a"));
        assert_eq!(journal.story(&key("a")), None);
    }

    #[test]
    fn failures_are_counted_while_they_repeat_and_bounded_for_each_pod() {
        let journal = Journal::default();
        let of = |name: &str| journal.failures(|_, it| *it == pod(name));
        add(&journal, "a", "db", Some((11, "no address")));
        for container in ["b", "c", "d"] {
            let message = format!("ADD of net/{container}/eth0: no address");
            add(&journal, container, "web", Some((11, &message)));
        }
        let found = of("web");
        assert_eq!((found.len(), found[0].times, &found[0].key), (1, 3, &key("d")));
        for number in 0..20 {
            add(&journal, "e", "web", Some((7, &format!("error {number}"))));
        }
        let found = of("web");
        assert_eq!((found.len(), found[0].message.as_str()), (MAX_FAILURES_OF_POD, "error 19"));
        assert_eq!(of("db").len(), 1, "another pod's failures stay");
        for number in 0..2 * MAX_FAILURES {
            add(&journal, "e", &format!("pod-{number}"), Some((7, &"x".repeat(9999))));
        }
        let all = journal.failures(|_, _| true);
        assert_eq!((all.len(), all[0].message.len()), (MAX_FAILURES, MAX_MESSAGE));
    }

    #[test]
    fn the_number_of_stories_is_bounded() {
        let journal = Journal::default();
        for number in 0..MAX_STORIES + 10 {
            journal.attached(&key(&format!("c{number}")), VifSource::Ipam, &Decision::FromIpam);
        }
        assert_eq!(journal.pages().stories.len(), MAX_STORIES);
        assert_eq!(journal.story(&key("c9")), None);
        assert!(journal.story(&key("c10")).is_some());
    }
}
