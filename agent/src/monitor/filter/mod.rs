//! Filters of `observer.Observer`: which entries a client gets.

mod error;
mod field;
mod unsupported;

use ferrule_proto::flow::FlowFilter;

use self::{error::MAX_FILTERS, field::Field};
use super::seen::Seen;

pub use error::FilterError;

/// The filters of a request.
#[derive(Debug, Default)]
pub struct Filters {
    /// Empty: everything.
    include: Vec<Filter>,
    exclude: Vec<Filter>,
}

/// Matches if all fields do.
#[derive(Debug)]
struct Filter(Vec<Field>);

// === impl Filters ===

impl Filters {
    /// # Errors
    /// If a filter has a field that is not supported, or an invalid value.
    pub fn new(include: &[FlowFilter], exclude: &[FlowFilter]) -> Result<Self, FilterError> {
        let filters = include.len() + exclude.len();
        if filters > MAX_FILTERS {
            return Err(FilterError::TooMany(filters));
        }
        let compile = |filters: &[FlowFilter]| filters.iter().map(Filter::new).collect::<Result<_, _>>();
        Ok(Self { include: compile(include)?, exclude: compile(exclude)? })
    }

    pub fn matches(&self, seen: &Seen) -> bool {
        let is_included = self.include.is_empty() || self.include.iter().any(|it| it.matches(seen));
        is_included && !self.exclude.iter().any(|it| it.matches(seen))
    }
}

// === impl Filter ===

impl Filter {
    fn new(filter: &FlowFilter) -> Result<Self, FilterError> {
        unsupported::check(filter)?;
        Ok(Self(field::compile(filter)?))
    }

    fn matches(&self, seen: &Seen) -> bool {
        self.0.iter().all(|field| field.matches(seen))
    }
}
