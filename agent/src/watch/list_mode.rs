//! How a server is asked for a list. Pure.

use super::error::WatchError;

/// A streamed list (`sendInitialEvents`) costs the server less memory than pages, and continues as a watch.
/// Not every server can stream lists.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListMode {
    #[default]
    Stream,
    /// The last stream failed, perhaps because the server cannot stream lists.
    PagesOnce,
    /// The server has rejected a streamed list.
    Pages,
}

// === impl ListMode ===

impl ListMode {
    /// Reacts to a streamed list that failed. Returns whether pages should be requested at once; otherwise
    /// they are requested after the backoff, because the server may be overloaded.
    pub(super) fn stream_failed(&mut self, error: &WatchError) -> bool {
        if error.is_unsupported() {
            *self = Self::Pages;
            return true;
        }
        if error.may_be_unsupported() {
            *self = Self::PagesOnce;
        }
        false
    }

    pub(super) fn list_completed(&mut self) {
        if *self == Self::PagesOnce {
            *self = Self::Stream;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ApiError, Status};

    #[test]
    fn pages_replace_streamed_lists_for_good_or_until_the_next_list() {
        for (code, at_once, then, after_list) in [
            (422, true, ListMode::Pages, ListMode::Pages),
            (500, false, ListMode::PagesOnce, ListMode::Stream),
            (429, false, ListMode::Stream, ListMode::Stream),
        ] {
            let mut mode = ListMode::default();
            let error = ApiError::refused("watch pods", Status { code, ..Status::default() }, None);
            assert_eq!((mode.stream_failed(&error.into()), mode), (at_once, then), "{code}");
            mode.list_completed();
            assert_eq!(mode, after_list, "{code}");
        }
    }
}
