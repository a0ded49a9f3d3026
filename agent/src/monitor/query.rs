//! What a client asks for: which recorded entries, and whether new ones too.

use std::{collections::VecDeque, sync::Arc};

use ferrule_proto::observer::GetFlowsRequest;
use prost_types::Timestamp;

use super::{
    filter::{FilterError, Filters},
    history::{CAPACITY, History},
    seen::Seen,
};

/// A valid request.
#[derive(Debug)]
pub struct Query {
    filters: Filters,
    /// The newest, or with `is_first` the oldest. `None`: all.
    number: Option<usize>,
    is_first: bool,
    pub follows: bool,
    /// Both in nanoseconds since the Unix epoch, and included.
    since: Option<u64>,
    pub until: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("`first` and `follow` exclude each other: ask for the newest entries, or do not follow")]
    FirstAndFollow,
    #[error("the field {0} is not a time between 1970 and 2554")]
    Time(&'static str),
}

// === impl Query ===

impl Query {
    /// # Errors
    /// If the request contradicts itself, or a filter is not supported.
    pub fn new(request: &GetFlowsRequest) -> Result<Self, QueryError> {
        let GetFlowsRequest { number, follow, blacklist, whitelist, since, until, first } = request;
        if *first && *follow {
            return Err(QueryError::FirstAndFollow);
        }
        let filters = Filters::new(whitelist, blacklist)?;
        let time = |name, time: &Option<Timestamp>| {
            time.as_ref().map(|it| nanoseconds(it).ok_or(QueryError::Time(name))).transpose()
        };
        let number = match *number {
            0 if *follow && since.is_none() => Some(0),
            0 => None,
            number => Some(usize::try_from(number).unwrap_or(usize::MAX)),
        };
        Ok(Self {
            filters,
            number,
            is_first: *first,
            follows: *follow,
            since: time("since", since)?,
            until: time("until", until)?,
        })
    }

    /// The recorded entries that the client gets, oldest first, and the position behind the history.
    pub fn recorded(&self, history: &History) -> (VecDeque<Arc<Seen>>, u64) {
        let all = history.read(0, CAPACITY);
        let mut matching: VecDeque<_> = all.entries.into_iter().filter(|it| self.matches(it)).collect();
        let number = self.number.unwrap_or(usize::MAX);
        if self.is_first {
            matching.truncate(number);
        } else {
            matching.drain(..matching.len().saturating_sub(number));
        }
        (matching, all.next)
    }

    pub fn matches(&self, seen: &Seen) -> bool {
        self.since.is_none_or(|since| since <= seen.time)
            && self.until.is_none_or(|until| seen.time <= until)
            && self.filters.matches(seen)
    }
}

fn nanoseconds(time: &Timestamp) -> Option<u64> {
    let seconds = u64::try_from(time.seconds).ok()?;
    let nanos = u64::try_from(time.nanos).ok().filter(|it| *it < 1_000_000_000)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}
