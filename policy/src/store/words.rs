//! Interned texts and sets of labels: equal ones are stored once, and compared by number.

use std::{collections::HashSet, sync::Arc};

use super::{ports::NamedPort, word::Word};

/// Interned labels, ordered by key.
pub(crate) type Labels = Arc<[(Word, Word)]>;

/// Interned named ports, ordered.
pub(crate) type Ports = Arc<[NamedPort]>;

/// The pools. What is used by nothing else is dropped after each doubling.
#[derive(Default)]
pub(crate) struct Words {
    words: HashSet<Word>,
    labels: HashSet<Labels>,
    ports: HashSet<Ports>,
    next: u64,
    /// The size of all pools at which they are swept next.
    sweep_at: usize,
}

/// The pools are not swept below this size.
const MIN_SWEEP: usize = 1024;

// === impl Words ===

impl Words {
    pub(crate) fn word(&mut self, text: &str) -> Word {
        if let Some(word) = self.words.get(text) {
            return word.clone();
        }
        self.next += 1;
        let word = Word::new(self.next, text);
        self.words.insert(word.clone());
        word
    }

    /// The word of a text that something uses.
    pub(crate) fn find(&self, text: &str) -> Option<Word> {
        self.words.get(text).cloned()
    }

    pub(crate) fn labels<'a>(&mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
        let labels = labels.into_iter();
        let mut labels: Vec<_> = labels.map(|(key, value)| (self.word(key), self.word(value))).collect();
        labels.sort_unstable();
        if let Some(known) = self.labels.get(labels.as_slice()) {
            return known.clone();
        }
        let labels = Labels::from(labels);
        self.labels.insert(labels.clone());
        labels
    }

    pub(crate) fn ports(&mut self, mut ports: Vec<NamedPort>) -> Ports {
        ports.sort_unstable();
        ports.dedup();
        if let Some(known) = self.ports.get(ports.as_slice()) {
            return known.clone();
        }
        let ports = Ports::from(ports);
        self.ports.insert(ports.clone());
        ports
    }

    /// Drops what nothing else uses, if the pools have doubled since the last time.
    pub(crate) fn sweep(&mut self) {
        let size = |it: &Self| it.words.len() + it.labels.len() + it.ports.len();
        if size(self) < self.sweep_at.max(MIN_SWEEP) {
            return;
        }
        self.labels.retain(|it| Arc::strong_count(it) > 1);
        self.ports.retain(|it| Arc::strong_count(it) > 1);
        self.words.retain(Word::is_used);
        self.sweep_at = 2 * size(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_and_labels_are_stored_once_and_dropped_when_unused() {
        let mut words = Words::default();
        let kept = words.labels([("app", "kept")]);
        assert!(Arc::ptr_eq(&kept, &words.labels([("app", "kept")])));
        assert_eq!(words.word("app"), kept.first().unwrap().0);
        for job in 0..2 * MIN_SWEEP {
            words.labels([("app", &*format!("job-{job}"))]);
            words.sweep();
        }
        assert!(words.words.len() < MIN_SWEEP && words.labels.len() < MIN_SWEEP);
        assert!(Arc::ptr_eq(&kept, &words.labels([("app", "kept")])));
        assert!(words.find("job-0").is_none());
    }
}
