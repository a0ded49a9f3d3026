//! Requests a list page by page.
//!
//! The version that a list asks for decides what the API server has to do, as in client-go's reflector:
//!
//! * A first list asks for any version (0). The server answers from memory, whole, whatever the limit.
//! * Later lists ask for nothing older than the position, so that no list goes back in time. The server
//!   answers from memory too, but only without a limit.
//! * If the server does not have that version (it was restored from a backup, or lags behind), or if the
//!   whole list is too large for one response, the list asks for the newest one: a quorum read of etcd, in
//!   pages.

use std::sync::Arc;

use super::{
    error::WatchError,
    object::Object,
    scope::Scope,
    wire::{self, Page},
};
use crate::api::{Api, ApiError};

/// The pages of one list.
pub(super) struct Pages {
    api: Arc<Api>,
    scope: Scope,
    oldest: Oldest,
    has_limit: bool,
    token: String,
}

/// The oldest version that a list accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Oldest {
    Any,
    Position(String),
    Newest,
}

/// Objects in a page, as client-go has it.
const LIMIT: &str = "500";

// === impl Pages ===

impl Pages {
    /// `known`: the position, current or expired.
    pub(super) fn new(api: Arc<Api>, scope: Scope, known: Option<&str>) -> Self {
        let (oldest, has_limit) = match known {
            None => (Oldest::Any, true),
            Some(position) => (Oldest::Position(position.to_owned()), false),
        };
        Self { api, scope, oldest, has_limit, token: String::new() }
    }

    /// Requests the next page, and returns it with its size in bytes. The last page has no `continue` token.
    pub(super) async fn next<T: Object>(&mut self) -> Result<(Page<T>, usize), WatchError> {
        let what = format!("list {}", self.scope.name);
        let json = self.api.get(&what, &self.request()).await?;
        let page = wire::page(&json);
        let page: Page<T> = page.map_err(|error| ApiError::Invalid { what, why: error.to_string() })?;
        self.token.clone_from(&page.token);
        Ok((page, json.len()))
    }

    /// Reacts to an error of [`Self::next`]. Returns whether the list begins again, in another way.
    pub(super) fn restart(&mut self, error: &WatchError) -> bool {
        if !self.token.is_empty() {
            // The version of the pages has expired in the middle: everything at once, as client-go does.
            let restarts = error.is_expired();
            (self.has_limit, self.token) = (false, String::new());
            return restarts;
        }
        let has_other_way = error.is_expired() || error.is_version_too_large() || error.is_too_large();
        let restarts = self.oldest != Oldest::Newest && has_other_way;
        (self.oldest, self.has_limit) = (Oldest::Newest, true);
        restarts
    }

    fn request(&self) -> String {
        let limit = if self.has_limit { LIMIT } else { "" };
        let (version, matching) = match &self.oldest {
            // A continue token has its own version.
            _ if !self.token.is_empty() => ("", ""),
            Oldest::Any => ("0", ""),
            Oldest::Position(position) => (position.as_str(), "NotOlderThan"),
            Oldest::Newest => ("", ""),
        };
        self.scope.request(&[
            ("limit", limit),
            ("continue", &self.token),
            ("resourceVersion", version),
            ("resourceVersionMatch", matching),
        ])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::api::Status;

    fn pages(known: Option<&str>) -> Pages {
        let selector = Some(("fieldSelector", "x=y".to_owned()));
        let scope = Scope { name: "pods", path: "/api/v1/pods", selector };
        Pages::new(Arc::new(Api::new(None)), scope, known)
    }

    fn query(pages: &Pages) -> String {
        pages.request().replace("/api/v1/pods?fieldSelector=x%3Dy", "")
    }

    fn refused(code: u16, message: &str) -> WatchError {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        ApiError::refused("list pods", status, None).into()
    }

    fn too_large() -> WatchError {
        refused(504, "Too large resource version: 1200, current: 40")
    }

    #[test]
    fn a_first_list_takes_any_version_and_a_later_one_none_older_than_the_position() {
        let mut first = pages(None);
        assert_eq!(query(&first), "&limit=500&resourceVersion=0");
        first.token = "more".to_owned();
        assert_eq!(query(&first), "&limit=500&continue=more");
        assert_eq!(query(&pages(Some("1200"))), "&resourceVersion=1200&resourceVersionMatch=NotOlderThan");
    }

    #[test]
    fn a_version_that_the_server_does_not_have_leads_to_the_newest_one_once() {
        for error in [too_large(), refused(410, "")] {
            let mut list = pages(Some("1200"));
            assert!(list.restart(&error));
            assert_eq!(query(&list), "&limit=500");
            assert!(!list.restart(&error), "once");
        }
        assert!(!pages(Some("1200")).restart(&refused(504, "etcd is slow")));
        assert!(!pages(Some("1200")).restart(&refused(403, "Too large")));
    }

    #[test]
    fn a_list_that_is_too_large_as_a_whole_is_requested_in_pages_once() {
        let (what, after) = ("list pods".to_owned(), Duration::from_secs(60));
        let slow = |has_begun| ApiError::Timeout { what: what.clone(), after, has_begun }.into();
        let large = ApiError::TooLarge { what: what.clone(), limit: 1 }.into();
        for (known, error) in [(None, &large), (Some("1200"), &large), (None, &slow(true))] {
            let mut list = pages(known);
            assert!(list.restart(error));
            assert_eq!(query(&list), "&limit=500");
            assert!(!list.restart(error), "once");
        }
        assert!(!pages(None).restart(&slow(false)), "a server that does not answer at all");
    }

    #[test]
    fn an_expired_token_leads_to_a_list_without_pages_once() {
        let mut list = pages(Some("1200"));
        assert!(list.restart(&too_large()));
        list.token = "more".to_owned();
        assert!(list.restart(&refused(410, "")));
        assert_eq!(query(&list), "");
        assert!(!list.restart(&refused(410, "")));
        let mut list = pages(None);
        list.token = "more".to_owned();
        assert!(!list.restart(&refused(500, "")));
    }
}
