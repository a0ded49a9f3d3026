//! Repetitions of Events: counted, and reported now and then on the first Event.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::event::{About, Event, collection};

/// The current series.
#[derive(Debug, Default)]
pub(super) struct AllSeries(HashMap<Key, Series>);

/// Events of one pod and one reason form a series; those of other objects also have to say the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    object: String,
    reason: &'static str,
}

#[derive(Debug)]
pub(super) struct Series {
    namespace: String,
    event: String,
    count: u32,
    /// The count that the API server has.
    reported: u32,
    reported_at: Instant,
    last: Instant,
}

/// A repetition after a longer time starts a new series.
const MAX_GAP: Duration = Duration::from_secs(600);
/// The shortest time between two reports of a series.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// A few reasons for each pod of the largest node; about 300 bytes each.
const MAX_SERIES: usize = 1024;

// === impl AllSeries ===

impl AllSeries {
    /// Counts a repetition. Returns whether there is a current series.
    pub fn count(&mut self, key: &Key) -> bool {
        let Some(series) = self.0.get_mut(key).filter(|it| it.last.elapsed() < MAX_GAP) else { return false };
        series.count = series.count.saturating_add(1);
        series.last = Instant::now();
        true
    }

    /// Starts a series. At the capacity limit, it replaces the one with the oldest Event.
    pub fn insert(&mut self, key: Key, series: Series) {
        self.0.retain(|_, it| it.has_unreported() || it.last.elapsed() < MAX_GAP);
        if self.0.len() >= MAX_SERIES
            && let Some(oldest) = self.0.iter().min_by_key(|(_, it)| it.last).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(key, series);
    }

    pub fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// When the next report is due, if any series has an unreported repetition.
    pub fn due(&self) -> Option<Instant> {
        self.0.values().filter(|it| it.has_unreported()).map(Series::due).min()
    }

    /// The longest overdue report: the path of the Event, and the count. Marks it as reported.
    pub fn next_due(&mut self) -> Option<(Key, String, u32)> {
        let overdue = self.0.iter_mut().filter(|(_, it)| it.has_unreported() && it.due() <= Instant::now());
        let (key, series) = overdue.min_by_key(|(_, it)| it.due())?;
        (series.reported, series.reported_at) = (series.count, Instant::now());
        Some((key.clone(), format!("{}/{}", collection(&series.namespace), series.event), series.count))
    }
}

// === impl Series ===

impl Series {
    /// A series whose first Event has just been sent.
    pub fn new(namespace: String, event: String) -> Self {
        let now = Instant::now();
        Self { namespace, event, count: 1, reported: 1, reported_at: now, last: now }
    }

    fn has_unreported(&self) -> bool {
        self.count > self.reported
    }

    fn due(&self) -> Instant {
        self.reported_at + REPORT_INTERVAL
    }
}

// === impl Key ===

impl Key {
    pub fn of(event: &Event) -> Self {
        let Event { about, namespace, name, uid, reason, note, .. } = event;
        let mut object = if uid.is_empty() { format!("{namespace}/{name}") } else { uid.clone() };
        if *about != About::Pod {
            object.push_str(note);
        }
        Self { object, reason }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn key(pod: usize) -> Key {
        Key { object: pod.to_string(), reason: "CNIPlugFailed" }
    }

    fn insert(all: &mut AllSeries, pod: usize) {
        all.insert(key(pod), Series::new("n".to_owned(), format!("web.{pod}")));
    }

    #[tokio::test(start_paused = true)]
    async fn at_capacity_the_oldest_series_is_replaced() {
        let mut all = AllSeries::default();
        for pod in 0..MAX_SERIES {
            insert(&mut all, pod);
            advance(Duration::from_millis(1)).await;
        }
        assert!(all.count(&key(0)));
        insert(&mut all, MAX_SERIES);
        assert_eq!(all.0.len(), MAX_SERIES);
        assert!(all.count(&key(0)) && !all.count(&key(1)));
        advance(MAX_GAP).await;
        insert(&mut all, 1);
        assert_eq!(all.0.len(), 2, "ended series are pruned, unless a report is due");
    }

    #[tokio::test(start_paused = true)]
    async fn reports_are_due_in_turn() {
        let mut all = AllSeries::default();
        insert(&mut all, 1);
        advance(Duration::from_secs(5)).await;
        insert(&mut all, 2);
        assert_eq!(all.due(), None, "no repetition");
        assert!(all.count(&key(2)) && all.count(&key(1)));
        assert_eq!(all.next_due(), None);
        advance(REPORT_INTERVAL).await;
        assert_eq!(all.next_due().unwrap().1, "/apis/events.k8s.io/v1/namespaces/n/events/web.1");
        assert_eq!(
            all.next_due().unwrap(),
            (key(2), "/apis/events.k8s.io/v1/namespaces/n/events/web.2".to_owned(), 2)
        );
        assert_eq!((all.next_due(), all.due()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_repetition_within_ten_minutes_continues_the_series() {
        let mut all = AllSeries::default();
        insert(&mut all, 1);
        assert!(!all.count(&key(2)));
        advance(Duration::from_secs(599)).await;
        assert!(all.count(&key(1)));
        // Counted from the last repetition.
        advance(Duration::from_secs(599)).await;
        assert!(all.count(&key(1)));
        advance(Duration::from_secs(600)).await;
        assert!(!all.count(&key(1)));
        all.remove(&key(1));
        assert_eq!(all.due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_is_due_sixty_seconds_after_the_last_one() {
        let mut all = AllSeries::default();
        let start = Instant::now();
        insert(&mut all, 1);
        assert!(all.count(&key(1)));
        assert_eq!(all.due(), Some(start + Duration::from_secs(60)));
        advance(Duration::from_secs(60)).await;
        assert_eq!(all.next_due().unwrap().2, 2, "due at this instant");
        assert!(all.count(&key(1)));
        assert_eq!(all.due(), Some(start + Duration::from_secs(120)));
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_1024_series_at_most() {
        let mut all = AllSeries::default();
        for pod in 0..1024 {
            insert(&mut all, pod);
            advance(Duration::from_millis(1)).await;
        }
        assert!(all.count(&key(0)));
        insert(&mut all, 1024);
        assert_eq!((all.0.len(), all.0.contains_key(&key(1))), (1024, false));
    }

    #[test]
    fn events_of_pods_without_uid_are_distinguished_by_name() {
        let event = |name: &str, uid: &str, reason| Event {
            about: About::Pod,
            namespace: "n".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            reason,
            is_warning: true,
            note: String::new(),
        };
        let key = |name, uid, reason| Key::of(&event(name, uid, reason));
        assert_eq!(key("a", "u1", "X"), key("b", "u1", "X"));
        assert_ne!(key("a", "u1", "X"), key("a", "u2", "X"));
        assert_ne!(key("a", "u1", "X"), key("a", "u1", "Y"));
        assert_ne!(key("a", "", "X"), key("b", "", "X"));
        assert_eq!(key("a", "", "X").object, "n/a");
    }
}
