//! Why a filter is refused, and how large filters may be.

/// A filter is refused: it would match something else than its author means.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("the filter's field {field} is not supported: {why}; remove it from the filter")]
    Unsupported { field: &'static str, why: &'static str },
    #[error("the filter's field {field} has the value {value:?}, expected {expected}")]
    Value { field: &'static str, value: String, expected: &'static str },
    #[error("the request has {0} filters, expected at most {MAX_FILTERS}")]
    TooMany(usize),
    #[error("the filter's field {field} has {values} values, expected at most {MAX_VALUES}")]
    TooManyValues { field: &'static str, values: usize },
}

/// Each entry is compared with all filters of each client.
pub(super) const MAX_FILTERS: usize = 64;
/// Of one field.
pub(super) const MAX_VALUES: usize = 64;
