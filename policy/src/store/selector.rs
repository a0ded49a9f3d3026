//! Selectors with interned texts.

use super::{word::Word, words::Words};
use crate::{Condition, Selector};

/// A selector; equal ones compare as equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Matcher(Box<[Test]>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Test {
    In(Word, Box<[Word]>),
    NotIn(Word, Box<[Word]>),
    Exists(Word),
    DoesNotExist(Word),
}

// === impl Matcher ===

impl Matcher {
    pub(crate) fn new(selector: &Selector, words: &mut Words) -> Self {
        let mut tests: Vec<_> = selector
            .0
            .iter()
            .map(|requirement| {
                let mut all = |values: &[String]| {
                    let mut values: Vec<_> = values.iter().map(|it| words.word(it)).collect();
                    values.sort_unstable();
                    values.dedup();
                    values.into_boxed_slice()
                };
                match &requirement.is {
                    Condition::In(values) => {
                        let values = all(values);
                        Test::In(words.word(&requirement.key), values)
                    }
                    Condition::NotIn(values) => {
                        let values = all(values);
                        Test::NotIn(words.word(&requirement.key), values)
                    }
                    Condition::Exists => Test::Exists(words.word(&requirement.key)),
                    Condition::DoesNotExist => Test::DoesNotExist(words.word(&requirement.key)),
                }
            })
            .collect();
        tests.sort();
        tests.dedup();
        Self(tests.into())
    }

    /// Whether the selector matches whatever the labels are.
    pub(crate) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, labels: &[(Word, Word)]) -> bool {
        let value = |key: &Word| {
            let at = labels.binary_search_by(|(it, _)| it.cmp(key)).ok()?;
            labels.get(at).map(|(_, value)| value)
        };
        self.0.iter().all(|test| match test {
            Test::In(key, values) => value(key).is_some_and(|it| values.binary_search(it).is_ok()),
            Test::NotIn(key, values) => value(key).is_none_or(|it| values.binary_search(it).is_err()),
            Test::Exists(key) => value(key).is_some(),
            Test::DoesNotExist(key) => value(key).is_none(),
        })
    }

    /// Labels of which each match has one, if the selector requires any.
    pub(crate) fn required(&self) -> Option<impl Iterator<Item = (Word, Word)>> {
        let ins = self.0.iter().filter_map(|test| match test {
            Test::In(key, values) => Some((key, values)),
            Test::NotIn(..) | Test::Exists(_) | Test::DoesNotExist(_) => None,
        });
        let (key, values) = ins.min_by_key(|(_, values)| values.len())?;
        Some(values.iter().map(|value| (key.clone(), value.clone())))
    }
}
