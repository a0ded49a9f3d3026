//! What has been told of which pod lately, and how often it has happened since.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::recorder::{PodEvent, collection};

/// The series that are going on.
#[derive(Debug, Default)]
pub(super) struct AllSeries(HashMap<Key, Series>);

/// What is the same: the pod and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pod: String,
    reason: &'static str,
}

/// One Event, and how often it has happened.
#[derive(Debug)]
pub(super) struct Series {
    namespace: String,
    event: String,
    count: u32,
    /// As the API server knows it.
    told: u32,
    told_at: Instant,
    last: Instant,
}

/// What happens again after a longer time is something new.
const GOES_ON: Duration = Duration::from_secs(600);
/// How often a series is told at most.
const PERIOD: Duration = Duration::from_secs(60);
/// The most that are kept, about 300 bytes each: a few reasons for each pod of the largest node.
const MOST: usize = 1024;

// === impl AllSeries ===

impl AllSeries {
    /// Counts it, if it is of a series that goes on.
    pub fn again(&mut self, key: &Key) -> bool {
        let Some(series) = self.0.get_mut(key).filter(|it| it.last.elapsed() < GOES_ON) else { return false };
        series.count = series.count.saturating_add(1);
        series.last = Instant::now();
        true
    }

    /// Begins a series with its first Event.
    pub fn begin(&mut self, key: Key, series: Series) {
        self.0.retain(|_, it| it.is_untold() || it.last.elapsed() < GOES_ON);
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, it)| it.last).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(key, series);
    }

    pub fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// When the next series is to be told, if one has anything to tell.
    pub fn due(&self) -> Option<Instant> {
        self.0.values().filter(|it| it.is_untold()).map(Series::due).min()
    }

    /// The series that has waited longest: the path of its Event, and how often it has happened. It counts as told.
    pub fn tell(&mut self) -> Option<(Key, String, u32)> {
        let untold = self.0.iter_mut().filter(|(_, it)| it.is_untold() && it.due() <= Instant::now());
        let (key, series) = untold.min_by_key(|(_, it)| it.due())?;
        (series.told, series.told_at) = (series.count, Instant::now());
        Some((key.clone(), format!("{}/{}", collection(&series.namespace), series.event), series.count))
    }
}

// === impl Series ===

impl Series {
    /// Of an Event that was just written.
    pub fn new(namespace: String, event: String) -> Self {
        let now = Instant::now();
        Self { namespace, event, count: 1, told: 1, told_at: now, last: now }
    }

    fn is_untold(&self) -> bool {
        self.count > self.told
    }

    fn due(&self) -> Instant {
        self.told_at + PERIOD
    }
}

// === impl Key ===

impl Key {
    pub fn of(note: &PodEvent) -> Self {
        let PodEvent { namespace, name, uid, reason, .. } = note;
        let pod = if uid.is_empty() { format!("{namespace}/{name}") } else { uid.clone() };
        Self { pod, reason }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn key(pod: usize) -> Key {
        Key { pod: pod.to_string(), reason: "CNIPlugFailed" }
    }

    fn begin(all: &mut AllSeries, pod: usize) {
        all.begin(key(pod), Series::new("n".to_owned(), format!("web.{pod}")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_series_that_has_been_quiet_longest_makes_room() {
        let mut all = AllSeries::default();
        for pod in 0..MOST {
            begin(&mut all, pod);
            advance(Duration::from_millis(1)).await;
        }
        assert!(all.again(&key(0)));
        begin(&mut all, MOST);
        assert_eq!(all.0.len(), MOST);
        assert!(all.again(&key(0)) && !all.again(&key(1)));
        advance(GOES_ON).await;
        begin(&mut all, 1);
        assert_eq!(all.0.len(), 2, "what is over is not kept, but what is still to be told");
    }

    #[tokio::test(start_paused = true)]
    async fn each_series_is_told_in_its_turn() {
        let mut all = AllSeries::default();
        begin(&mut all, 1);
        advance(Duration::from_secs(5)).await;
        begin(&mut all, 2);
        assert_eq!(all.due(), None, "nothing has happened again");
        assert!(all.again(&key(2)) && all.again(&key(1)));
        assert_eq!(all.tell(), None);
        advance(PERIOD).await;
        assert_eq!(all.tell().unwrap().1, "/apis/events.k8s.io/v1/namespaces/n/events/web.1");
        assert_eq!(
            all.tell().unwrap(),
            (key(2), "/apis/events.k8s.io/v1/namespaces/n/events/web.2".to_owned(), 2)
        );
        assert_eq!((all.tell(), all.due()), (None, None));
    }
}
